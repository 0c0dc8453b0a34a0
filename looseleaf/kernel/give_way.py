"""A commit that nobody waits for gives way to a cell that arrives (design §3)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

# By default it does nothing, so one that comes late is harmless.
SIGNAL: Final = signal.SIGURG


class GaveWay(BaseException):
    """The commit was broken off: nothing of it happened, the next one does all of it.

    No Exception, so that neither a person's `__getstate__` nor code that reports what cannot be saved swallows it.
    """


class GiveWay:
    """Breaks off work on the main thread, at its next bytecode, as an interrupt would."""

    def __init__(self) -> None:
        self._main_thread = threading.main_thread().ident
        self._breakable = False

    @contextmanager
    def breakable(self) -> Iterator[None]:
        """Inside, until `hold`, `arrived` raises GaveWay here. Main thread only."""
        previous = signal.signal(SIGNAL, self._break_off)
        self._breakable = True
        try:
            yield
        finally:
            self._breakable = False
            signal.signal(SIGNAL, previous)

    def hold(self) -> None:
        """From here the work must be done to its end."""
        self._breakable = False

    def arrived(self) -> None:
        """A cell arrived; from any thread. Nothing happens if no breakable work is under way."""
        if self._breakable and self._main_thread is not None:
            signal.pthread_kill(self._main_thread, SIGNAL)

    def _break_off(self, _number: int, _frame: FrameType | None) -> None:
        if self._breakable:
            self._breakable = False
            raise GaveWay
