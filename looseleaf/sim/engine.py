"""The clock of a simulation: callbacks in the order of their time, of equal times in the order of their making."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Engine:
    """Time goes on from callback to callback; `steps` counts them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.steps = 0
        self._number = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, time_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        """Calls `callback(*arguments)` at `time_s`, which must not lie in the past."""
        self._number += 1
        heappush(self._heap, (time_s, self._number, callback, arguments))

    def after(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        """The same, `delay_s` from now."""
        self._number += 1
        heappush(self._heap, (self.now_s + delay_s, self._number, callback, arguments))

    def run(self, until_s: float) -> None:
        """Calls everything that is due up to `until_s`, where the clock stands afterwards; the rest stays."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, callback, arguments = heappop(heap)
            self.steps += 1
            callback(*arguments)
        self.now_s = until_s
