"""Hosts that the provider was told to end and has not begun to: they are paid for, so they count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from looseleaf.ids import HostId

# Pause before a stop that failed is ordered again, doubled each time.
RETRY_S_MIN: Final = 2.0
RETRY_S_MAX: Final = 60.0


@dataclass(slots=True)
class _End:
    gpu_count: int
    pause_s: float = RETRY_S_MIN
    # None while the provider has not answered.
    retry_at_s: float | None = None


class HostEnds:
    """Bounded by the hosts that there are: each is one that was known or on its way."""

    def __init__(self) -> None:
        self._ends: dict[HostId, _End] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, host_id: HostId) -> bool:
        return host_id in self._ends

    @property
    def gpus(self) -> int:
        """GPUs that are paid for and of use to nobody."""
        return sum(end.gpu_count for end in self._ends.values())

    @property
    def failing(self) -> int:
        """Hosts whose last stop failed."""
        return sum(1 for end in self._ends.values() if end.pause_s > RETRY_S_MIN)

    def begin(self, host_id: HostId, gpu_count: int) -> None:
        """A stop was ordered."""
        self._ends[host_id] = _End(gpu_count)

    def ended(self, host_id: HostId) -> None:
        """The provider has begun to end it."""
        self._ends.pop(host_id, None)

    def failed(self, host_id: HostId, now_s: float) -> None:
        """The provider could not."""
        end = self._ends.get(host_id)
        if end is not None:
            end.retry_at_s = now_s + end.pause_s
            end.pause_s = min(2 * end.pause_s, RETRY_S_MAX)

    def keep(self, running: frozenset[HostId]) -> None:
        """Forgets those that the provider does not pay for any more."""
        for host_id in self._ends.keys() - running:
            del self._ends[host_id]

    def due(self, now_s: float) -> list[HostId]:
        """Hosts whose stop is to be ordered again; each is told once a failure."""
        due = [host_id for host_id, end in self._ends.items() if end.retry_at_s is not None and end.retry_at_s <= now_s]
        for host_id in due:
            self._ends[host_id].retry_at_s = None
        return due
