"""Commits that are broken off: what nobody waits for by a cell that arrives, any other by the person (design §3)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, Literal

from looseleaf.checkpoint.persons_code import BreakOff

# By default it does nothing, so one that comes late is harmless.
SIGNAL: Final = signal.SIGURG
By = Literal["cell", "interrupt"]


class GaveWay(BreakOff):
    """The commit was broken off: nothing of it happened, the next one does all of it.

    No Exception, so that neither a person's `__getstate__` nor code that reports what cannot be saved swallows it.
    """


class GiveWay:
    """Breaks off work on the main thread, at its next bytecode, as an interrupt would."""

    def __init__(self) -> None:
        self._main_thread = threading.main_thread().ident
        self._breakable_by: By | None = None

    @contextmanager
    def breakable(self, by: By) -> Iterator[None]:
        """Inside, until `hold`, `arrived` (`by` cell) or `interrupted` raises GaveWay here. Main thread only."""
        previous = signal.signal(SIGNAL, self._break_off)
        self._breakable_by = by
        try:
            yield
        finally:
            self._breakable_by = None
            signal.signal(SIGNAL, previous)

    def hold(self) -> None:
        """From here the work must be done to its end."""
        self._breakable_by = None

    def arrived(self) -> None:
        """A cell arrived; from any thread. Nothing happens if no work that it may break off is under way."""
        self._signal("cell")

    def interrupted(self) -> None:
        """The person pressed stop; as `arrived`."""
        self._signal("interrupt")

    def _signal(self, by: By) -> None:
        if self._breakable_by == by and self._main_thread is not None:
            signal.pthread_kill(self._main_thread, SIGNAL)

    def _break_off(self, _number: int, _frame: FrameType | None) -> None:
        if self._breakable_by is not None:
            self._breakable_by = None
            raise GaveWay
