"""Threads that cells left running: they may change state at any time."""

from __future__ import annotations

import threading
import weakref
from typing import Final

# Threads of ours, of ipykernel and of the event loop touch no variable of the session.
_QUIET: Final = ("looseleaf", "asyncio_", "IPythonHistory", "IOPub", "Control", "Heartbeat", "Shell channel")

# Of these libraries.
_SHOWING: Final = frozenset({"tqdm"})


class LeftThreads:
    """Remembers the threads that appeared while a cell ran."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._left: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def before_cell(self) -> None:
        """What runs now was not started by the coming cell."""
        self._known = weakref.WeakSet(threading.enumerate())

    def after_cell(self) -> None:
        """What is new was."""
        for thread in threading.enumerate():
            if thread not in self._known and not thread.name.startswith(_QUIET):
                self._left.add(thread)

    def alive(self) -> bool:
        """Whether one of them still runs."""
        return any(thread.is_alive() for thread in self._left)

    def may_write(self) -> bool:
        """Whether one of them still runs that is no library's helper, which only shows how far something is."""
        return any(thread.is_alive() and _top(type(thread)) not in _SHOWING for thread in self._left)


def _top(cls: type) -> str:
    return str(cls.__module__).partition(".")[0]
