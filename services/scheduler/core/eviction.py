"""Who gives way when nothing is free: GreedyDual-Size-Frequency over completed workers, then speculative ones.

Priority of a worker = clock + rate of its session's GPU cells x cost of making it ready again / bytes it holds;
the clock rises to the priority of each victim, so that unused workers age.
"""

from __future__ import annotations

import math

from looseleaf.services.scheduler.core.hosts import Worker
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.units import MIB

# What a cold preparation costs when this worker's own was never measured (the paper's median).
_PREPARE_MS_DEFAULT = 710.0
_SIZE_BYTES_MIN = 64 * MIB


class GreedyDual:
    """The clock of the eviction order."""

    def __init__(self) -> None:
        self.clock = 0.0

    def touch(self, worker: Worker, frequency: float) -> None:
        """The worker was used; `frequency` is its session's decayed count of GPU cells."""
        cost_ms = worker.prepare_ms or _PREPARE_MS_DEFAULT
        size = max(worker.resident_bytes, _SIZE_BYTES_MIN) / _SIZE_BYTES_MIN
        worker.eviction_priority = self.clock + frequency * cost_ms / size

    def evicted(self, worker: Worker) -> None:
        """The worker is a victim: the clock moves on to it."""
        self.clock = max(self.clock, worker.eviction_priority)


def eviction_rank(worker: Worker, now_s: float, limits: Limits) -> tuple[int, float, str]:
    """Sorts victims, first to go first: completed; of speculative ones the expired, those over share, the others."""
    if worker.has_run:
        # Ending one that holds variables which no version has costs them: it goes last of these.
        priority = worker.eviction_priority if worker.hold is None else math.inf
        return (0, priority, worker.worker_id)
    expired = now_s - worker.prepared_at_s >= limits.speculative_expiry_s
    return (1 if expired else 2 if worker.over_share else 3, worker.prepared_at_s, worker.worker_id)


def evictable(worker: Worker, heartbeats: int, now_s: float) -> bool:
    """True if the worker may be ended; leases are not looked at.

    It neither runs nor saves, is not kept for variables that no version has, and has not just refused.
    """
    return not (
        worker.evicting or worker.preparing or now_s < worker.held_until_s or heartbeats < worker.pinned_until
        or worker.stage.busy)
