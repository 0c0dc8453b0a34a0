"""What every RPC of every server passes through, in this order: request id, deadline, metrics, errors.

One wrapper serves the four kinds of handler; each layer is an async context manager around the whole call.
"""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_status import rpc_status

from looseleaf.errors import Internal, LooseLeafError, Timeout, Unsupported
from looseleaf.logs import CARRIED_KEYS, get_logger, log_context, own_ids
from looseleaf.rpc import policy, status
from looseleaf.rpc.metrics import RpcMetrics

log = get_logger()

# Request fields that become ids of the log context.
_LOGGED_FIELDS = {
    "session_id": "session", "execution_id": "execution", "cell_id": "cell", "worker_id": "worker",
    "host_id": "host", "epoch": "epoch",
}


@dataclass
class Call:
    """One call in progress."""

    method: str
    request: Any | None  # None for a stream of requests
    context: Any
    code: str = ""
    reason: str = ""


Layer = Callable[[Call], AbstractAsyncContextManager[None]]


class LayerInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Wraps each handler of a server in the layers, outermost first."""

    def __init__(self, metrics: RpcMetrics) -> None:
        self._layers: tuple[Layer, ...] = (request_id_layer, deadline_layer, metrics_layer(metrics), error_layer)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return self._wrap(handler, handler_call_details.method)

    def _wrap(self, handler: Any, method: str) -> Any:
        inner = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        name = method.lstrip("/")

        async def answer(request: Any, context: Any) -> Any:
            async with self._around(name, None if handler.request_streaming else request, context):
                return await inner(request, context)

        async def answers(request: Any, context: Any) -> None:
            # Writing here, rather than yielding, makes a client's cancellation end the inner generator at once.
            async with self._around(name, None if handler.request_streaming else request, context):
                produced = inner(request, context)
                if inspect.isawaitable(produced):
                    await produced
                    return
                try:
                    async for message in produced:
                        await context.write(message)
                finally:
                    await produced.aclose()

        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        outer: Any = answers if handler.response_streaming else answer
        return make(outer, handler.request_deserializer, handler.response_serializer)

    @asynccontextmanager
    async def _around(self, method: str, request: Any | None, context: Any) -> AsyncIterator[None]:
        call = Call(method, request, context)
        async with AsyncExitStack() as stack:
            for layer in self._layers:
                await stack.enter_async_context(layer(call))
            yield


@asynccontextmanager
async def request_id_layer(call: Call) -> AsyncIterator[None]:
    """Binds to the log context the request's id (the caller's or a new one) and the ids of what it is about.

    Those that the request names count for more than those that its caller sent along, and this process's own for most.
    """
    metadata = dict(call.context.invocation_metadata() or ())
    request_id = metadata.get(policy.REQUEST_ID_KEY) or secrets.token_hex(8)
    ids: dict[str, Any] = {"request": request_id, "method": call.method}
    for key in CARRIED_KEYS:
        if value := metadata.get(policy.CARRIED_ID_PREFIX + key):
            ids[key] = value
    if call.request is not None:
        known = call.request.DESCRIPTOR.fields_by_name
        for field, key in _LOGGED_FIELDS.items():
            if field in known and (value := getattr(call.request, field)):
                ids[key] = value
    with log_context(**{**ids, **own_ids()}):
        yield


@asynccontextmanager
async def deadline_layer(call: Call) -> AsyncIterator[None]:
    """Makes the caller's deadline that of the calls which this handler makes."""
    remaining_s: float | None = call.context.time_remaining()
    policy.bind_deadline(remaining_s)
    yield


def metrics_layer(metrics: RpcMetrics) -> Layer:
    """Counts the call, its time and its outcome."""

    @asynccontextmanager
    async def layer(call: Call) -> AsyncIterator[None]:
        began_s = time.monotonic()
        metrics.running.labels(call.method).inc()
        completed = False
        try:
            yield
            completed = True
        finally:
            if not completed and not call.code:
                remaining_s = call.context.time_remaining()
                late = remaining_s is not None and remaining_s <= 0
                call.code = call.reason = "DEADLINE_EXCEEDED" if late else "CANCELLED"
            elapsed_s = time.monotonic() - began_s
            metrics.running.labels(call.method).dec()
            metrics.finished(call.method, call.code or "OK", call.reason, elapsed_s)
            log.debug("rpc_finished", code=call.code or "OK", reason=call.reason, elapsed_ms=round(elapsed_s * 1e3, 2))

    return layer


@asynccontextmanager
async def error_layer(call: Call) -> AsyncIterator[None]:
    """Turns LooseLeafErrors into their status, and everything unexpected into Internal BUG without its text."""
    try:
        yield
    except LooseLeafError as error:
        log.info("rpc_refused", code=error.code, reason=error.reason)
        await _abort(call, error)
    except grpc.aio.AbortError:
        code = call.context.code()
        call.code = code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
        call.reason = call.code
        raise
    except NotImplementedError as error:
        # The generated base class sets this code for a method that the servicer lacks.
        missing = call.context.code() is grpc.StatusCode.UNIMPLEMENTED
        text = f"this server does not offer {call.method}: is it another version?"
        await _abort(call, Unsupported("METHOD_UNKNOWN", text) if missing else _unexpected(error))
    except Exception as error:
        await _abort(call, _unexpected(error))


def _unexpected(error: Exception) -> LooseLeafError:
    if isinstance(error, TimeoutError):
        log.warning("rpc_timed_out", exc_info=error)
        return Timeout("TIME_LIMIT", "The service's own time limit passed; ask again with the same request id.")
    error_id = secrets.token_hex(8)
    log.error("rpc_failed_unexpectedly", error_id=error_id, exc_info=error)
    return Internal(
        "BUG", f"LooseLeaf met a fault of its own; saved state is safe. The service's log has it as {error_id}.",
        error_id=error_id,
    )


async def _abort(call: Call, error: LooseLeafError) -> None:
    call.code, call.reason = error.code, error.reason
    if getattr(error, status.RELAYED_ATTRIBUTE, False):
        # Our own channel has already retried: a second round of retries on top would multiply the load.
        call.context.set_trailing_metadata(((policy.RETRY_PUSHBACK_KEY, "-1"),))
    converted = rpc_status.to_status(status.to_status(error))
    trailing = (*(call.context.trailing_metadata() or ()), *converted.trailing_metadata)
    await call.context.abort(converted.code, converted.details, trailing_metadata=trailing)
