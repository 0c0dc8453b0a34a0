"""Work for the kernel's main thread, asked for by other threads, and work that must not keep it busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


async def on_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Runs blocking work on a thread, so that the main thread keeps serving messages."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def call_on(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> Future[None]:
    """Calls `work` on the thread of `loop`, between its callbacks; the future has its outcome.

    A caller that has given up waiting by then does not keep it from being called.
    """
    done: Future[None] = Future()

    def call() -> None:
        try:
            work()
        except BaseException as error:
            if done.set_running_or_notify_cancel():
                done.set_exception(error)
            return
        if done.set_running_or_notify_cancel():
            done.set_result(None)

    loop.call_soon_threadsafe(call)
    return done
