"""SIGINT while a cell runs elsewhere: a call instead of a KeyboardInterrupt in the kernel's event loop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interrupts_call(callback: Callable[[], None], at_once: Callable[[], None]) -> Iterator[None]:
    """Inside, SIGINT calls `at_once` in the handler, then `callback` on the running event loop.

    Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def handle(_number: int, _frame: FrameType | None) -> None:
        at_once()
        loop.call_soon_threadsafe(callback)

    with _handling(handle):
        yield


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Inside, SIGINT does nothing: from a cell's end to its reply nothing is left to interrupt. Main thread only."""
    with _handling(lambda _number, _frame: None):
        yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
