"""Which modules a forked process has imported itself, told without a look at those that it was forked with.

A look at a name writes the name's reference count, and in a forked process the first write to a page copies it: all
names of a zygote are about a thousand pages, 4 to 8 ms.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import Final

# Looked at first; twice as many each time, until the mark is among them.
_LOOKED_AT_MIN: Final = 64
_TRIES_MAX: Final = 8


class NewModules:
    """The names in `sys.modules` that came since `mark`; without one, all of them."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()

    def mark(self) -> None:
        """What is imported now is not new. For a process that is about to be forked; no other thread may import."""
        self._known = frozenset(sys.modules)
        # New names come behind the last: this module's, which nobody imports anew as a person may any other.
        sys.modules[__name__] = sys.modules.pop(__name__)

    def names(self) -> list[str]:
        """In the order in which they came. Also while other threads import."""
        count = _LOOKED_AT_MIN
        while self._known:
            last = _last_modules(count)
            if last is None:
                break
            if __name__ in last:
                return [name for name in last[: last.index(__name__)][::-1] if name not in self._known]
            if count >= len(sys.modules):
                break  # somebody took the mark away
            count *= 2
        # One call: no other thread changes the dictionary in the middle of it.
        return [name for name in list(sys.modules) if name not in self._known]


def _last_modules(count: int) -> list[str] | None:
    """The newest names, the last one first; None if other threads import so fast that they cannot be listed."""
    for _ in range(_TRIES_MAX):
        try:
            return list(islice(reversed(sys.modules), count))
        except RuntimeError:  # one was imported between two of these calls
            continue
    return None


NEW_MODULES: Final = NewModules()
