"""Commits of CPU cells while the kernel is idle, on its event loop, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class IdleCommits:
    """Calls `commit` on the event loop's thread once nothing was scheduled anew for the given delay.

    The loop is the main thread's, so a commit never runs beside a cell or beside another commit; `cancel`, called when
    a cell arrives, takes back one that has not begun.
    """

    def __init__(self, commit: Callable[[], None]) -> None:
        self._commit = commit
        self._timer: asyncio.TimerHandle | None = None

    def schedule(self, loop: asyncio.AbstractEventLoop, delay_s: float) -> None:
        """Commits after `delay_s`, unless cancelled or scheduled anew before."""
        self.cancel()
        self._timer = loop.call_later(delay_s, self._run)

    def cancel(self) -> None:
        """Takes back the scheduled commit, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def hurry(self, commit: Callable[[], None]) -> None:
        """Calls `commit` now if something is scheduled. That follows in its time, for what `commit` leaves."""
        if self._timer is not None:
            commit()

    def _run(self) -> None:
        self._timer = None
        self._commit()
