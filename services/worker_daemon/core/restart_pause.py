"""How long a process that must live waits before its next start: not at all once, then longer and longer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RestartPause:
    """Pauses in seconds. What ended after `lived_s_min` had lived well, and the next start begins at once.

    What ends again and again soon after its start costs a host as much as one that never starts.
    """

    s_min: float
    s_max: float
    lived_s_min: float
    _next_s: float = 0.0

    def after(self, lived_s: float) -> float:
        """Before the next start of what served for so long; 0 for a start that failed."""
        pause_s = 0.0 if lived_s >= self.lived_s_min else self._next_s
        self._next_s = min(max(2 * pause_s, self.s_min), self.s_max)
        return pause_s
