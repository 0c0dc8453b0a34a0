"""Remembers results of mutating requests by request id, so that a repeated request changes nothing twice."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from looseleaf.clock import Clock, SystemClock
from looseleaf.errors import CapacityExceeded, InvalidArgument

ENTRIES_MAX: Final = 10_000
BYTES_MAX: Final = 32 << 20
TTL_S: Final = 600.0
RUNNING_MAX: Final = 1_000


@dataclass
class _Entry:
    request: bytes
    response: Any
    size_bytes: int
    expires_s: float


class RequestMemory:
    """`once` runs each (method, request id) at most once while it is remembered.

    A success is remembered for `ttl_s`, at most `entries_max` and `bytes_max` of them, oldest forgotten first. A
    failure is not: the repeat runs again. Repeats that arrive meanwhile wait for the first one. The work goes on when
    its caller gives up, so that the caller's repeat finds the result. Belongs to one event loop.
    """

    def __init__(
        self,
        *,
        entries_max: int = ENTRIES_MAX,
        bytes_max: int = BYTES_MAX,
        ttl_s: float = TTL_S,
        running_max: int = RUNNING_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._ttl_s = ttl_s
        self._running_max = running_max
        self._clock = clock or SystemClock()
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._running: dict[tuple[str, str], tuple[bytes, asyncio.Task[Any]]] = {}
        self._bytes = 0

    async def once(self, request: Any, work: Callable[[], Awaitable[Any]]) -> Any:
        """The response of `work()` for this request (a message with a `request_id`), run now or remembered.

        Raises InvalidArgument REQUEST_ID_MISSING or REQUEST_ID_REUSED (same id, other contents), CapacityExceeded
        TOO_MANY_REQUESTS, and whatever `work` raises.
        """
        if not request.request_id:
            raise InvalidArgument("REQUEST_ID_MISSING", "a request that changes something needs a request_id")
        key = (request.DESCRIPTOR.full_name, request.request_id)
        text = request.SerializeToString(deterministic=True)
        self._forget_old()
        if (entry := self._entries.get(key)) is not None:
            _check_same(entry.request, text)
            return entry.response
        if (running := self._running.get(key)) is not None:
            _check_same(running[0], text)
            return await asyncio.shield(running[1])
        if len(self._running) >= self._running_max:
            raise CapacityExceeded("TOO_MANY_REQUESTS", "too many changes at once; nothing was done, ask again")
        task = asyncio.ensure_future(self._run(key, text, work))
        self._running[key] = (text, task)
        return await asyncio.shield(task)

    async def drain(self) -> None:
        """Waits until nothing runs; for `Service.on_stop`."""
        await asyncio.gather(*(task for _text, task in self._running.values()), return_exceptions=True)

    async def _run(self, key: tuple[str, str], text: bytes, work: Callable[[], Awaitable[Any]]) -> Any:
        try:
            response = await work()
        finally:
            del self._running[key]
        self._remember(key, text, response)
        return response

    def _remember(self, key: tuple[str, str], text: bytes, response: Any) -> None:
        size_bytes = len(text) + response.ByteSize()
        if size_bytes > self._bytes_max:
            return
        self._entries[key] = _Entry(text, response, size_bytes, self._clock.monotonic_s() + self._ttl_s)
        self._bytes += size_bytes
        while self._bytes > self._bytes_max or len(self._entries) > self._entries_max:
            self._forget_first()

    def _forget_old(self) -> None:
        now_s = self._clock.monotonic_s()
        while self._entries and next(iter(self._entries.values())).expires_s <= now_s:
            self._forget_first()

    def _forget_first(self) -> None:
        _key, entry = self._entries.popitem(last=False)
        self._bytes -= entry.size_bytes


def _check_same(known: bytes, text: bytes) -> None:
    if known != text:
        raise InvalidArgument("REQUEST_ID_REUSED", "this request_id was used for another request; nothing was done")
