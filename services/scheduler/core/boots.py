"""Hosts that were asked for and have not come yet."""

from __future__ import annotations

from collections import deque

from looseleaf.services.scheduler.core.limits import Limits


class Boots:
    """Each has a deadline; one that passes it is given up, so that another can be asked for."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._deadlines: deque[float] = deque()
        # After a boot that failed nothing is asked for before.
        self.not_before_s = 0.0
        self.ordered = 0
        self.failed = 0

    @property
    def count(self) -> int:
        """How many are awaited."""
        return len(self._deadlines)

    def order(self, count: int, now_s: float) -> None:
        """So many were asked for."""
        self._deadlines.extend([now_s + self._limits.boot_timeout_s] * count)
        self.ordered += count

    def came(self) -> None:
        """A host that was not known has come; whether it is one that was asked for nobody can tell."""
        if self._deadlines:
            self._deadlines.popleft()

    def fail(self, count: int, now_s: float) -> None:
        """The provider could not start so many; it is asked again after a while."""
        for _ in range(min(count, len(self._deadlines))):
            self._deadlines.pop()
            self.failed += 1
        self.not_before_s = now_s + self._limits.boot_retry_s

    def expire(self, now_s: float) -> None:
        """Gives up those that did not come in time."""
        while self._deadlines and self._deadlines[0] <= now_s:
            self._deadlines.popleft()
            self.failed += 1
