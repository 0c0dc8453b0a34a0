"""Channels to services: one policy, a deadline on every call, errors of ours only.

    channel = open_channel("unix:/run/x/scheduler.sock", peer="scheduler")
    scheduler = SchedulerServiceStub(channel)
    pool = await scheduler.GetPool(GetPoolRequest(), timeout_s=2)                  # unary
    async with scheduler.RequestRun(request, timeout_s=60) as news:                # server stream
        async for message in news: ...
    stored = await store.PutUnits(iterable_or_async_iterable, timeout_s=60)        # client stream
    async with daemon.Execute(timeout_s=NO_DEADLINE) as call:                      # both
        await call.write(ExecuteRequest(...)); reply = await call.read()           # None at the end
    await channel.close()

`timeout_s` is obligatory; `NO_DEADLINE` is allowed for streams only (keepalive then notices a dead peer within 40 s).
Inside a servicer's handler it is cut to what the handler's own caller left. Leaving `async with` cancels the call.
Every failure is a LooseLeafError: the service's own error, `<PEER>_DOWN` (Unavailable) or `<PEER>_TIMEOUT` (Timeout).
UNAVAILABLE is retried by the channel (4 attempts, 50 ms to 1 s); nothing else is, a stream only before its first
message.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

import grpc
import structlog

from looseleaf.errors import InvalidArgument, LooseLeafError
from looseleaf.logs import carried_ids
from looseleaf.rpc import policy, status

NO_DEADLINE: Final = math.inf


def open_channel(target: str, peer: str, *, message_bytes_max: int = policy.MESSAGE_BYTES_MAX) -> Channel:
    """A channel that connects when first used; `peer` ("store", "scheduler", ...) names the other side in errors.

    Must be called, used and closed on one running event loop.
    """
    return Channel(target, peer, message_bytes_max)


class Channel:
    """What generated stubs take for a `grpc.aio.Channel`."""

    def __init__(self, target: str, peer: str, message_bytes_max: int = policy.MESSAGE_BYTES_MAX) -> None:
        self.target = target
        self.peer = peer
        self._channel = grpc.aio.insecure_channel(target, options=policy.client_options(message_bytes_max))

    async def wait_ready(self, timeout_s: float) -> None:
        """Returns once connected; raises Unavailable `<PEER>_DOWN` after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._channel.channel_ready()
        except TimeoutError as error:
            raise status.peer_down(self.peer, self.target, f"no connection within {timeout_s} s") from error

    async def close(self) -> None:
        """Cancels what runs on it. Idempotent."""
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    # The four factories below have the names and parameters that generated stubs use.
    def unary_unary(self, method: str, **serializers: Any) -> Callable[..., Any]:
        """A method `await m(request, timeout_s=...)`."""
        return _UnaryMethod(self, self._channel.unary_unary(method, **serializers))

    def unary_stream(self, method: str, **serializers: Any) -> Callable[..., Any]:
        """A method `m(request, timeout_s=...) -> Stream`."""
        return _ServerStreamMethod(self, self._channel.unary_stream(method, **serializers))

    def stream_unary(self, method: str, **serializers: Any) -> Callable[..., Any]:
        """A method `await m(iterable, timeout_s=...)`."""
        return _ClientStreamMethod(self, self._channel.stream_unary(method, **serializers))

    def stream_stream(self, method: str, **serializers: Any) -> Callable[..., Any]:
        """A method `m(timeout_s=...) -> Stream`."""
        return _BothStreamMethod(self, self._channel.stream_stream(method, **serializers))


class _Method:
    def __init__(self, channel: Channel, inner: Any) -> None:
        self._peer = channel.peer
        self._target = channel.target
        self._inner = inner

    def _options(self, timeout_s: float, *, streaming: bool) -> dict[str, Any]:
        if math.isnan(timeout_s) or timeout_s <= 0 or (timeout_s == NO_DEADLINE and not streaming):
            raise InvalidArgument("DEADLINE_MISSING", f"a call needs a positive finite timeout_s, not {timeout_s}")
        remaining = policy.remaining_s()
        if remaining is not None and remaining <= 0:
            raise status.timeout_passed(self._peer, self._target)
        limit = policy.effective_timeout_s(timeout_s)
        request_id = structlog.contextvars.get_contextvars().get("request") or secrets.token_hex(8)
        ids = ((policy.CARRIED_ID_PREFIX + key, value) for key, value in carried_ids().items())
        return {
            "timeout": None if limit == NO_DEADLINE else limit,
            "metadata": ((policy.REQUEST_ID_KEY, str(request_id)), *ids),
        }


class _UnaryMethod(_Method):
    async def __call__(self, request: Any, *, timeout_s: float) -> Any:
        with _translated(self._peer, self._target):
            return await self._inner(request, **self._options(timeout_s, streaming=False))


class _ServerStreamMethod(_Method):
    def __call__(self, request: Any, *, timeout_s: float) -> Stream:
        return Stream(self._inner(request, **self._options(timeout_s, streaming=True)), self._peer, self._target)


class _ClientStreamMethod(_Method):
    async def __call__(self, requests: Iterable[Any] | AsyncIterable[Any], *, timeout_s: float) -> Any:
        async with Stream(self._inner(**self._options(timeout_s, streaming=False)), self._peer, self._target) as call:
            async for request in _each(requests):
                if not await call.write(request):
                    break
            return await call.result()


class _BothStreamMethod(_Method):
    def __call__(self, *, timeout_s: float) -> Stream:
        return Stream(self._inner(**self._options(timeout_s, streaming=True)), self._peer, self._target)


class Stream:
    """A call with streamed messages on one or both sides; an async iterator and an async context manager."""

    def __init__(self, call: Any, peer: str, target: str) -> None:
        self._call = call
        self._connected = False
        self._peer = peer
        self._target = target

    async def read(self) -> Any | None:
        """The next message, or None at the end of a call that succeeded; raises the call's error.

        Cancelling it, also by `asyncio.timeout`, ends the whole call: to wait a while only, keep the read in a task.
        """
        with _translated(self._peer, self._target):
            message = await self._call.read()
            if message is grpc.aio.EOF:  # type: ignore[attr-defined]
                return None
            return message

    async def write(self, message: Any) -> bool:
        """Sends a message, waiting while the other side does not read; False if the call is over (read says why).

        Cancelling it ends the whole call.
        """
        try:
            with _translated(self._peer, self._target):
                await self._connected_or_over()
                if self._call.done():
                    return False
                # Not self._call.write(): when the server has ended the call, that marks it INTERNAL on this side, and
                # the server's own status, which is under way, is lost.
                await self._call._cython_call.send_serialized_message(message.SerializeToString())
        except (LooseLeafError, grpc.aio.InternalError):
            return False
        except asyncio.CancelledError:
            self._call.cancel()
            raise
        return True

    async def _connected_or_over(self) -> None:
        """gRPC's own wait for the connection never ends if the call is over before it, as by a closed channel."""
        if self._connected or self._call.done():
            return
        over = asyncio.Event()
        self._call.add_done_callback(lambda _call: over.set())
        waits = [asyncio.ensure_future(self._call.wait_for_connection()), asyncio.ensure_future(over.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._connected = True

    async def done_writing(self) -> None:
        """Tells the other side that no message follows. Idempotent, also after the call's end."""
        if self._call.done():
            return
        # A failure means that the call is over by now: read and result say why.
        with _translated(self._peer, self._target), suppress(grpc.aio.InternalError):
            await self._call.done_writing()

    async def result(self) -> Any:
        """Ends writing and returns the one answer of a client stream; raises the call's error."""
        await self.done_writing()
        with _translated(self._peer, self._target):
            return await self._call

    def cancel(self) -> None:
        """Ends the call now. Idempotent."""
        self._call.cancel()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        message = await self.read()
        if message is None:
            raise StopAsyncIteration
        return message

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.cancel()


@contextmanager
def _translated(peer: str, target: str) -> Any:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise status.from_rpc_error(error, peer, target) from None
    except asyncio.CancelledError:
        # gRPC raises this also when the *other side* cancelled the call; a real cancellation of this task is counted.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise status.peer_down(peer, target, "the call was cancelled") from None


async def _each(requests: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request
