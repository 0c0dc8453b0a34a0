"""Errors of ours as google.rpc.Status and back; nothing of gRPC's own errors leaves `looseleaf.rpc`."""

from __future__ import annotations

import json
from typing import Any, Final

import grpc
from google.protobuf.any_pb2 import Any as AnyProto
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from looseleaf.errors import (
    ERRORS_BY_CODE,
    CapacityExceeded,
    Internal,
    LooseLeafError,
    Timeout,
    Unavailable,
    Unsupported,
)

DOMAIN: Final = "looseleaf"
MESSAGE_CHARS_MAX: Final = 2_000
FIELDS_BYTES_MAX: Final = 8_000
RETRY_AFTER_DEFAULT_S: Final = 1.0
RETRY_AFTER_FIELD: Final = "retry_after_s"
# Set on errors that came from another service: this service must not make its caller's channel retry them.
RELAYED_ATTRIBUTE: Final = "relayed_by_rpc"


def to_status(error: LooseLeafError) -> status_pb2.Status:
    """The error as a Status with ErrorInfo{reason, domain, fields}; CapacityExceeded also says when to retry.

    Texts are cut to MESSAGE_CHARS_MAX, fields beyond FIELDS_BYTES_MAX are left out and counted in `fields_left_out`.
    """
    status = status_pb2.Status(
        code=code_pb2.Code.Value(error.code),
        message=(error.message or error.reason)[:MESSAGE_CHARS_MAX],
    )
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=_encode_fields(error.fields))
    if not error.message:
        info.metadata["message_empty"] = "true"
    _pack(status, info)
    if isinstance(error, CapacityExceeded):
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.CopyFrom(_duration(error.fields.get(RETRY_AFTER_FIELD, RETRY_AFTER_DEFAULT_S)))
        _pack(status, retry)
    return status


def from_status(status: status_pb2.Status) -> LooseLeafError | None:
    """The error that `to_status` made, or None if the status is not ours."""
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    found = retry_found = False
    for detail in status.details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            candidate = error_details_pb2.ErrorInfo()
            detail.Unpack(candidate)
            if candidate.domain == DOMAIN:
                info, found = candidate, True
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry_found = detail.Unpack(retry)
    if not found:
        return None
    fields = {key: _decode_field(text) for key, text in info.metadata.items()}
    message = "" if fields.pop("message_empty", False) else status.message
    cls = ERRORS_BY_CODE.get(_code_name(status.code), Internal)
    if cls is CapacityExceeded and retry_found:
        fields[RETRY_AFTER_FIELD] = retry.retry_delay.ToTimedelta().total_seconds()
    return cls(info.reason, message, **fields)


def from_rpc_error(error: grpc.aio.AioRpcError, peer: str, target: str) -> LooseLeafError:
    """Any failure of a call as an error of ours.

    `peer` names the other side in reasons made here: "store" gives STORE_DOWN and STORE_TIMEOUT.
    """
    translated = _from_details(error) or _from_code(error, peer, target)
    setattr(translated, RELAYED_ATTRIBUTE, True)
    return translated


def peer_down(peer: str, target: str, details: str = "") -> Unavailable:
    """What a caller gets when the other side cannot be reached or went away during the call."""
    named = peer.replace("_", " ")
    text = f"The {named} cannot be reached at {target}. Saved state is safe; `looseleaf status` shows what is down."
    return Unavailable(f"{peer.upper()}_DOWN", text, address=target, details=details[:MESSAGE_CHARS_MAX])


def timeout_passed(peer: str, target: str) -> Timeout:
    """What a caller gets when its own deadline passed before the call began."""
    text = f"No time was left to ask the {peer}: nothing was done. Ask again."
    return Timeout(f"{peer.upper()}_TIMEOUT", text, address=target)


def _from_details(error: grpc.aio.AioRpcError) -> LooseLeafError | None:
    try:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]
    except ValueError:
        # The details contradict the code: the code is what gRPC itself vouches for.
        return None
    return None if status is None else from_status(status)


def _from_code(error: grpc.aio.AioRpcError, peer: str, target: str) -> LooseLeafError:
    code, details = error.code(), error.details() or ""
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return peer_down(peer, target, details)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        text = f"The {peer} did not answer in time: it may have done what was asked. Asking again does nothing twice."
        return Timeout(f"{peer.upper()}_TIMEOUT", text, address=target)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return CapacityExceeded("RPC_LIMIT", f"A call to the {peer} met a limit: {details}", address=target)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Unsupported("METHOD_UNKNOWN", f"The {peer} at {target} does not know this call: is it another version?")
    cls = ERRORS_BY_CODE.get(code.name, Internal)
    reason = "BUG" if cls is Internal else f"RPC_{code.name}"
    return cls(reason, f"The {peer} answered {code.name}: {details}"[:MESSAGE_CHARS_MAX], address=target)


def _encode_fields(fields: dict[str, Any]) -> dict[str, str]:
    encoded: dict[str, str] = {}
    left_out = used = 0
    for key, value in fields.items():
        text = _encode_field(value)
        used += len(key) + len(text.encode())
        if used > FIELDS_BYTES_MAX:
            left_out += 1
        else:
            encoded[key] = text
    if left_out:
        encoded["fields_left_out"] = str(left_out)
    return encoded


def _encode_field(value: Any) -> str:
    """A string as it is where that is unambiguous, all else as JSON."""
    if isinstance(value, str):
        return value if _decode_field(value) == value else json.dumps(value)
    return json.dumps(value, default=str)


def _decode_field(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _duration(seconds: Any) -> Duration:
    value = float(seconds) if isinstance(seconds, int | float) else RETRY_AFTER_DEFAULT_S
    whole, nanos = divmod(round(max(0.0, value) * 1e9), 1_000_000_000)
    return Duration(seconds=whole, nanos=nanos)


def _pack(status: status_pb2.Status, detail: Any) -> None:
    packed = AnyProto()
    packed.Pack(detail)
    status.details.append(packed)


def _code_name(number: int) -> str:
    return code_pb2.Code.Name(number) if number in code_pb2.Code.values() else "UNKNOWN"
