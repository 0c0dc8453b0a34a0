"""Tells the daemon when what a cell left running changes, so that the GPU goes back as soon as nothing needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from looseleaf.worker.leftovers import leftovers

# Ends of processes and tasks raise no event that covers all three kinds; a look costs about 0.2 ms.
LOOK_INTERVAL_S: Final = 0.1

Items = list[dict[str, str]]


class LeftWatch:
    """Looks while the worker is idle, on its event loop, and calls `tell` with what still runs when that has changed.

    The last call is the one with nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[Items], None]) -> None:
        self._loop = loop
        self._tell = tell
        self._timer: asyncio.TimerHandle | None = None
        self._told: Items | None = None

    def start(self) -> None:
        """The cell has ended and left something."""
        self._told = None
        self._look()

    def stop(self) -> None:
        """The next cell begins; at its end it is seen anew what still runs."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        items = leftovers(self._loop)
        if items != self._told:
            self._told = items
            self._tell(items)
        self._timer = self._loop.call_later(LOOK_INTERVAL_S, self._look) if items else None
