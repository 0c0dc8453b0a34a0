"""Runs blocking work of an aio service on a bounded number of threads with a bounded queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from looseleaf.errors import CapacityExceeded, Unavailable

_P = ParamSpec("_P")
_T = TypeVar("_T")


class BoundedExecutor:
    """At most `threads` calls run and at most `pending_max` wait or run at once. Used from one event loop."""

    def __init__(self, name: str, *, threads: int = 4, pending_max: int = 256) -> None:
        self._name = name
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)
        self._pending_max = pending_max
        self._pending = 0
        self._closed = False

    @property
    def pending(self) -> int:
        """Calls that wait or run now."""
        return self._pending

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The function's result or error.

        A cancelled caller does not stop a call that began: it runs to its end on its thread and its result is dropped.
        Raises CapacityExceeded `EXECUTOR_FULL` at the limit and Unavailable `EXECUTOR_CLOSED` after `close`.
        """
        if self._closed:
            raise Unavailable("EXECUTOR_CLOSED", f"{self._name} is stopping", executor=self._name)
        if self._pending >= self._pending_max:
            text = f"{self._name} has {self._pending} calls waiting; nothing was changed, retry"
            raise CapacityExceeded("EXECUTOR_FULL", text, executor=self._name, retry_after_ms=100)
        loop = asyncio.get_running_loop()
        self._pending += 1
        future = self._pool.submit(function, *args, **kwargs)
        # Counted down when the thread is done, not when the caller gave up: that is what the limit is about.
        future.add_done_callback(lambda _: _post(loop, self._done))
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Refuses new calls and waits for those that were accepted."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)

    def _done(self) -> None:
        self._pending -= 1


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
