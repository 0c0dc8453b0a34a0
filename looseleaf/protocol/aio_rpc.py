"""Requests and replies on an event loop: the daemon's side of every link."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from looseleaf.errors import CapacityExceeded, LooseLeafError, Unavailable
from looseleaf.protocol.aio import AsyncChannel
from looseleaf.protocol.channel import peer_closed
from looseleaf.protocol.frames import Message, close_fds
from looseleaf.protocol.rpc import (
    OK,
    Reply,
    as_fault,
    build_error,
    build_message,
    is_reply,
    open_reply,
    request_timeout,
    unknown_message,
)

# Requests of one peer that are handled at the same time; more are refused, so that replies and events still flow.
HANDLERS_MAX: Final = 64

AsyncHandler = Callable[[Message, list[int]], Awaitable["Reply | Message | None"]]
EventHandler = Callable[[Message, list[int]], "Awaitable[None] | None"]


class AsyncLink:
    """Requests in both directions over `channel`, on the channel's loop.

    `handlers`: request type → coroutine function of (message, fds). Requests are started in order and run side by side.
    `on_event` gets the messages without id, in order; if it returns an awaitable, reading goes on after it (so it can
    push back on the peer), and it must not await a request on this link. Fds left in a list are closed afterwards: to
    keep one, pop it.
    """

    def __init__(
        self,
        channel: AsyncChannel,
        handlers: Mapping[str, AsyncHandler] | None = None,
        on_event: EventHandler | None = None,
    ) -> None:
        self.channel = channel
        self.handlers: dict[str, AsyncHandler] = dict(handlers or {})
        self.on_event = on_event
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[tuple[Message, list[int]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: LooseLeafError | None = None

    @property
    def error(self) -> LooseLeafError | None:
        """Why the connection has ended, or None while it lives."""
        return self._error

    async def serve(self) -> LooseLeafError:
        """Reads until the connection ends and returns why. Raises only CancelledError.

        By then every handler was cancelled, every own request has failed and the channel is closed. An exception in
        `on_event` ends the connection too: a LooseLeafError as it is, another as Internal `BUG`.
        """
        try:
            while True:
                await self._take(*await self.channel.recv())
        except Exception as error:
            self._error = self._error or as_fault(error)
        finally:
            await self._end(self._error or peer_closed("this side closed the connection"))
        return self._error

    async def request(
        self, type_: str, body: Message, fds: Sequence[int] = (), timeout_s: float | None = None
    ) -> tuple[Message, list[int]]:
        """The reply's body and fds, which are the caller's.

        Raises the peer's error, Unavailable `PEER_CLOSED`, Timeout `REQUEST_TIMEOUT`. `serve` must be running.
        """
        if self._error is not None:
            raise self._error
        request_id = next(self._ids)
        future: asyncio.Future[tuple[Message, list[int]]] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = future
        try:
            await self.channel.send(build_message(type_, request_id, body), fds)
            message, reply_fds = await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise request_timeout(type_, timeout_s) from None
        finally:
            self._pending.pop(request_id, None)
            if future.cancelled() is False and future.done():
                future.exception()  # read it: the caller may have been cancelled meanwhile
        return open_reply(message, reply_fds)

    async def send_event(self, type_: str, body: Message, fds: Sequence[int] = ()) -> None:
        """Sends a message that gets no reply; waits while the peer is slow."""
        await self.channel.send(build_message(type_, 0, body), fds)

    def close(self) -> None:
        """Ends the connection; `serve` returns. Idempotent."""
        self._error = self._error or peer_closed("this side closed the connection")
        self.channel.close()

    async def _take(self, message: Message, fds: list[int]) -> None:
        if is_reply(message):
            future = self._pending.pop(message["id"], None)
            if future is None or future.done():
                close_fds(fds)
            else:
                future.set_result((message, fds))
        elif message.get("id", 0):
            self._start(message, fds)
        else:
            try:
                if self.on_event is not None:
                    waiting = self.on_event(message, fds)
                    if inspect.isawaitable(waiting):
                        await waiting
            finally:
                close_fds(fds)

    def _start(self, message: Message, fds: list[int]) -> None:
        if len(self._tasks) >= HANDLERS_MAX:
            close_fds(fds)
            busy = CapacityExceeded("TOO_MANY_REQUESTS", f"more than {HANDLERS_MAX} requests at once; ask again later")
            with contextlib.suppress(Unavailable):  # the peer has gone: what it sent before is still taken
                self.channel.send_now(build_error(message["id"], busy))
            return
        task = asyncio.get_running_loop().create_task(self._answer(message, fds))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: Message, fds: list[int]) -> None:
        reply = Reply({})
        try:
            handler = self.handlers.get(message["t"])
            if handler is None:
                raise unknown_message(message)
            answer = await handler(message, fds)
            reply = answer if isinstance(answer, Reply) else Reply(answer or {})
            await self._send_reply(message["id"], build_message(OK, message["id"], reply.body), reply.fds)
        except Exception as error:
            await self._send_reply(message["id"], build_error(message["id"], error), ())
        finally:
            close_fds(fds)
            if reply.close_fds:
                close_fds(reply.fds)

    async def _send_reply(self, request_id: int, message: Message, fds: Sequence[int]) -> None:
        if self._error is not None or self.channel.closed:
            return  # nobody is left to read it
        try:
            await self.channel.send(message, fds)
        except LooseLeafError as error:
            if error.reason == "PEER_CLOSED":
                return
            raise

    async def _end(self, error: LooseLeafError) -> None:
        self._error = error
        self.channel.close()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(error)
        self._pending.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
