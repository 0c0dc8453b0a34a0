"""Calls to any server by what it says about itself (gRPC reflection): JSON in, JSON out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

from google.protobuf import descriptor, descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.json_format import ParseError
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from looseleaf.errors import InvalidArgument, NotFound
from looseleaf.rpc.client import Channel

REFLECTION_TIMEOUT_S: Final = 10.0
FILES_MAX: Final = 1_000

_KINDS: Final = {
    (False, False): "unary_unary", (False, True): "unary_stream",
    (True, False): "stream_unary", (True, True): "stream_stream",
}


class Reflection:
    """What a server says about itself; fetched when asked, kept for this object's life.

    Answers have fields as the protos name them, or with `json_names` in lowerCamelCase, as grpcurl prints them.
    """

    def __init__(self, channel: Channel, json_names: bool = False) -> None:
        self._channel = channel
        self._json_names = json_names
        self._stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        self._pool = descriptor_pool.DescriptorPool()
        self._files: set[str] = set()

    async def services(self) -> list[str]:
        """Full names of the server's services, sorted."""
        answer = await self._ask(reflection_pb2.ServerReflectionRequest(list_services=""))
        return sorted(service.name for service in answer.list_services_response.service)

    async def describe(self, symbol: str) -> str:
        """A service, method, message or enum as text like its .proto; raises NotFound SYMBOL_UNKNOWN."""
        await self._load_symbol(symbol)
        return describe(find(self._pool, symbol))

    async def method(self, name: str) -> descriptor.MethodDescriptor:
        """The method "pkg.Service/Method" or "pkg.Service.Method"; raises NotFound SYMBOL_UNKNOWN."""
        symbol = name.strip("/").replace("/", ".")
        service_name, _, method_name = symbol.rpartition(".")
        await self._load_symbol(service_name)
        found = find(self._pool, service_name)
        if isinstance(found, descriptor.ServiceDescriptor) and method_name in found.methods_by_name:
            return found.methods_by_name[method_name]
        raise NotFound("SYMBOL_UNKNOWN", f"the server has no method {name!r}; `looseleaf rpc list` shows what it has")

    async def call(self, method: descriptor.MethodDescriptor, texts: list[Any], timeout_s: float) -> AsyncIterator[Any]:
        """Calls with requests given as plain JSON values; yields the answers as plain JSON values.

        Raises InvalidArgument REQUEST_MALFORMED, or what the server raises.
        """
        requests = [self._parse(method.input_type, text) for text in texts]
        if not method.client_streaming and len(requests) != 1:
            raise InvalidArgument("REQUEST_MALFORMED", f"{method.name} takes one request, not {len(requests)}")
        response_class = message_factory.GetMessageClass(method.output_type)
        path = f"/{method.containing_service.full_name}/{method.name}"
        make = getattr(self._channel, _KINDS[method.client_streaming, method.server_streaming])
        bound = make(
            path, request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response_class.FromString,
        )
        if not method.server_streaming:
            argument = requests if method.client_streaming else requests[0]
            yield self._to_json(await bound(argument, timeout_s=timeout_s))
            return
        stream = bound(timeout_s=timeout_s) if method.client_streaming else bound(requests[0], timeout_s=timeout_s)
        async with stream:
            if method.client_streaming:
                for request in requests:
                    await stream.write(request)
                await stream.done_writing()
            async for message in stream:
                yield self._to_json(message)

    def _parse(self, kind: descriptor.Descriptor, value: Any) -> Any:
        if not isinstance(value, dict):
            raise InvalidArgument("REQUEST_MALFORMED", f"a {kind.full_name} is a JSON object, not {value!r}")
        try:
            message = message_factory.GetMessageClass(kind)()
            return json_format.ParseDict(value, message, descriptor_pool=self._pool)
        except (ParseError, TypeError, AttributeError) as error:
            raise InvalidArgument("REQUEST_MALFORMED", f"this is not a {kind.full_name}: {error}") from error

    def _to_json(self, message: Any) -> Any:
        return json_format.MessageToDict(
            message, preserving_proto_field_name=not self._json_names, descriptor_pool=self._pool)

    async def _load_symbol(self, symbol: str) -> None:
        answer = await self._ask(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
        await self._load(list(answer.file_descriptor_response.file_descriptor_proto))

    async def _load(self, serialized: list[bytes]) -> None:
        """Adds files to the pool, what they import first."""
        for data in serialized:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            if file.name in self._files:
                continue
            if len(self._files) >= FILES_MAX:
                raise InvalidArgument("TOO_MANY_FILES", f"the server describes more than {FILES_MAX} files")
            self._files.add(file.name)
            for imported in file.dependency:
                if imported not in self._files:
                    answer = await self._ask(reflection_pb2.ServerReflectionRequest(file_by_filename=imported))
                    await self._load(list(answer.file_descriptor_response.file_descriptor_proto))
            self._pool.Add(file)

    async def _ask(self, request: Any) -> Any:
        async with self._stub.ServerReflectionInfo(timeout_s=REFLECTION_TIMEOUT_S) as call:
            await call.write(request)
            await call.done_writing()
            answer = await call.read()
        if answer is None:
            raise NotFound("SYMBOL_UNKNOWN", f"the server at {self._channel.target} does not describe itself")
        if answer.HasField("error_response"):
            text = f"the server knows no {_asked(request)!r}; `looseleaf rpc list` shows what it has"
            raise NotFound("SYMBOL_UNKNOWN", text)
        return answer


def find(pool: Any, symbol: str) -> Any:
    """The descriptor of a full name; raises NotFound SYMBOL_UNKNOWN."""
    finders = (pool.FindServiceByName, pool.FindMessageTypeByName, pool.FindEnumTypeByName, pool.FindMethodByName)
    for finder in finders:
        try:
            return finder(symbol)
        except KeyError:
            continue
    raise NotFound("SYMBOL_UNKNOWN", f"the server knows no {symbol!r}")


def describe(found: Any) -> str:
    """A descriptor as .proto text."""
    if isinstance(found, descriptor.ServiceDescriptor):
        lines = [f"  {_method_text(method)}" for method in found.methods]
        return "\n".join([f"service {found.full_name} {{", *lines, "}"])
    if isinstance(found, descriptor.MethodDescriptor):
        return _method_text(found)
    if isinstance(found, descriptor.EnumDescriptor):
        return "\n".join([f"enum {found.full_name} {{", *(f"  {v.name} = {v.number};" for v in found.values), "}"])
    proto = descriptor_pb2.DescriptorProto()
    found.CopyToProto(proto)
    return "\n".join([f"message {found.full_name} {{", *(f"  {_field_text(field)}" for field in found.fields), "}"])


def parse_requests(text: str, streaming: bool) -> list[Any]:
    """Request values of JSON text: one, or for a stream of requests an array or one value a line."""
    try:
        if not streaming:
            return [json.loads(text or "{}")]
        value = json.loads(text or "[]")
        return value if isinstance(value, list) else [value]
    except json.JSONDecodeError as error:
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError:
            raise InvalidArgument("REQUEST_MALFORMED", f"the request is not JSON: {error}") from error


def _method_text(method: descriptor.MethodDescriptor) -> str:
    request = ("stream " if method.client_streaming else "") + method.input_type.full_name
    response = ("stream " if method.server_streaming else "") + method.output_type.full_name
    return f"rpc {method.name}({request}) returns ({response});"


def _field_text(field: Any) -> str:
    proto = descriptor_pb2.FieldDescriptorProto
    kind = field.message_type.full_name if field.message_type else field.enum_type.full_name if field.enum_type else (
        proto.Type.Name(field.type).removeprefix("TYPE_").lower())
    if field.message_type and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return f"map<{_field_text(key).split()[0]}, {_field_text(value).split()[0]}> {field.name} = {field.number};"
    repeated = "repeated " if is_repeated(field) else ""
    return f"{repeated}{kind} {field.name} = {field.number};"


def is_repeated(field: Any) -> bool:
    """Across protobuf versions: `label` is deprecated where `is_repeated` exists."""
    known = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if known is None else known)


def _asked(request: Any) -> str:
    return str(request.file_containing_symbol or request.file_by_filename)
