"""Honest accounting (design §6): a GPU is held from the grant of its lease to its release, used or not."""

from __future__ import annotations

from typing import Final

from looseleaf.services.scheduler.core.facts import ExecutionRecord, Totals
from looseleaf.services.scheduler.core.leases import LeaseEntry, LeaseStatus, LeaseTable

# The mean time of a lease follows about this many of the last ones.
ESTIMATE_LEASES: Final = 50


class Accounts:
    """Sums over all executions since the first start; GPU-seconds count each GPU of a lease."""

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        # Of this life: leases that ended and their decayed mean time, for estimates.
        self.ended_leases = 0
        self.mean_held_s = 0.0

    def close(self, entry: LeaseEntry, now_s: float) -> float:
        """The lease ended: GPU-seconds that it held; of an adopted one, since its adoption."""
        if entry.status is LeaseStatus.EVICTING:
            return 0.0
        held_s = max(0.0, now_s - entry.granted_at_s)
        self.ended_leases += 1
        self.mean_held_s += (held_s - self.mean_held_s) / min(self.ended_leases, ESTIMATE_LEASES)
        return self.add(held_s * len(entry.lease.gpu_indices))

    def add(self, gpu_s: float) -> float:
        """Counts GPU-seconds; returns them."""
        self.totals = Totals(self.totals.held_gpu_s + gpu_s)
        return gpu_s

    def held_gpu_s(self, leases: LeaseTable, now_s: float) -> float:
        """The sum with the leases that still run."""
        running = (
            max(0.0, now_s - entry.granted_at_s) * len(entry.lease.gpu_indices)
            for entry in leases if entry.status is not LeaseStatus.EVICTING
        )
        return self.totals.held_gpu_s + sum(running)


def unseen_gpu_s(record: ExecutionRecord) -> float:
    """GPU-seconds that the daemon measured beyond those counted for the execution, 0 if there are none.

    The scheduler's own count, from grant to release, is the longer one unless it was away or had given the lease up.
    """
    if record.figures is None or record.lease is None:
        return 0.0
    return max(0.0, record.figures.gpu_held_s * len(record.lease.gpu_indices) - record.held_gpu_s)
