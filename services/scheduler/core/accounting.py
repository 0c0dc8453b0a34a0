"""Honest accounting (design §6): a GPU is held from the grant of its lease to its release, used or not."""

from __future__ import annotations

from dataclasses import replace

from looseleaf.services.scheduler.core.facts import Figures, Totals
from looseleaf.services.scheduler.core.leases import LeaseEntry, LeaseStatus, LeaseTable


class Accounts:
    """Sums over all executions since the first start; GPU-seconds count each GPU of a lease."""

    def __init__(self, totals: Totals) -> None:
        self.totals = totals

    def close(self, entry: LeaseEntry, now_s: float, figures: Figures | None) -> float:
        """The lease ended: GPU-seconds that it held.

        Of an adopted lease the grant was not seen: the daemon's own figure stands if it is there, else the time
        since adoption.
        """
        if entry.status is LeaseStatus.EVICTING:
            return 0.0
        seconds = max(0.0, now_s - entry.granted_at_s)
        if entry.adopted and figures is not None:
            seconds = max(seconds, figures.gpu_held_s)
        gpu_seconds = seconds * len(entry.lease.gpu_indices)
        self.totals = replace(self.totals, held_gpu_s=self.totals.held_gpu_s + gpu_seconds)
        return gpu_seconds

    def opened(self) -> None:
        """One more execution was asked for."""
        self.totals = replace(self.totals, executions=self.totals.executions + 1)

    def held_gpu_s(self, leases: LeaseTable, now_s: float) -> float:
        """The sum with the leases that still run."""
        running = (
            max(0.0, now_s - entry.granted_at_s) * len(entry.lease.gpu_indices)
            for entry in leases if entry.status is not LeaseStatus.EVICTING
        )
        return self.totals.held_gpu_s + sum(running)
