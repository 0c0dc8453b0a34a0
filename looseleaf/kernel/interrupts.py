"""SIGINT around cells: a KeyboardInterrupt in their own code only, a call while they run elsewhere."""

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
def interrupts_held() -> Iterator[Callable[[], bool]]:
    """Inside, SIGINT breaks nothing off; what it gives tells whether one came. Main thread only.

    From a cell's end to its reply nothing is left to interrupt, unless the cell is to run once more.
    """
    came: list[int] = []
    with _handling(lambda number, _frame: came.append(number)):
        yield lambda: bool(came)


class RequestInterrupts:
    """SIGINT from a request's arrival to its reply: what comes too early or too late breaks nothing off.

    Outside the main thread, where no signal arrives, all of it does nothing.
    """

    def __init__(self) -> None:
        self._is_pending = False

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._is_pending = True

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Inside, an interrupt is only remembered."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._is_pending = False
        with _handling(self._note):
            yield

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Inside `kept`: the cell and what is done for it. There an interrupt raises, and one that came before."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with _handling(signal.default_int_handler):
            if self._is_pending:
                self._is_pending = False
                raise KeyboardInterrupt
            yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
