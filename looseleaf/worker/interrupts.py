"""SIGINT in a worker: KeyboardInterrupt inside a cell, nothing anywhere else.

While a cell runs the handler is Python's own, as in an ordinary kernel: a handler of ours would be a frame in the
person's traceback.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def _ignore(_number: int, _frame: FrameType | None) -> None:
    # A handler, not SIG_IGN: ignoring would be inherited by the processes that a cell starts.
    return


def ignore_interrupts() -> None:
    """From now on SIGINT does nothing. Never raises, even if one is pending."""
    while True:
        try:
            signal.signal(signal.SIGINT, _ignore)
            return
        except KeyboardInterrupt:
            continue


def run_interruptible(cell: Callable[[], None]) -> None:
    """Runs `cell` with KeyboardInterrupt on; it is off again when this returns or raises.

    An interrupt at the very edge of the cell raises KeyboardInterrupt here, even when the cell has ended: `cell` must
    keep its result elsewhere.
    """
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        cell()
    finally:
        # Written out: between a call and the first line of its body an interrupt could still raise.
        while True:
            try:
                signal.signal(signal.SIGINT, _ignore)
                break
            except KeyboardInterrupt:
                continue


@contextmanager
def interrupts_cancel(task: asyncio.Task[object], loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Inside, the first SIGINT cancels `task`, as ipykernel does for cells that await; a second one raises.

    Raising at once would leave the task in the loop, to go on in the middle of the next cell that awaits.
    """
    count = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 1:
            signal.default_int_handler(number, frame)
        loop.call_soon_threadsafe(task.cancel)

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
