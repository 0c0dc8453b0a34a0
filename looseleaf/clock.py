"""Where time comes from; policies take it as an argument, edges ask a `Clock`."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time. `monotonic_s` never goes back; `unix_ms` is only for people to read."""

    def monotonic_s(self) -> float: ...

    def unix_ms(self) -> int: ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that a test or the simulator moves by hand."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_ms(self) -> int:
        return int(self.now_s * 1000)

    def advance(self, seconds: float) -> None:
        """Moves time forward by `seconds` >= 0."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self.now_s += seconds
