"""When to start a service again: pure, time passed in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RestartDelay:
    """Doubles from `delay_s_min` to `delay_s_max` while a service keeps failing.

    A life of at least `delay_s_max` counts as success and begins again at the minimum.
    """

    delay_s_min: float
    delay_s_max: float
    _next_s: float = -1.0

    def after_exit(self, started_s: float, now_s: float) -> float:
        """How long to wait before the next start, for a life from `started_s` to `now_s`."""
        if self._next_s < 0 or now_s - started_s >= self.delay_s_max:
            self._next_s = self.delay_s_min
        delay_s = min(self._next_s, self.delay_s_max)
        self._next_s = min(self.delay_s_max, max(self._next_s, 0.05) * 2)
        return delay_s
