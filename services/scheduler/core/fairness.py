"""Whose turn it is among tenants: by the GPU-seconds that each used lately, divided by its weight (design §6).

Use decays with a half-life. A GPU counts from the grant of its lease on, at once as `fair_quantum_s`, so that tenants
take turns within one round of placing too. One tenant alone is served first come, first served.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from looseleaf.ids import LeaseId, SessionId
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.queue import Run, RunQueue


@dataclass(slots=True)
class _Use:
    """One tenant: GPU-seconds of ended leases, decayed to `at_s`; GPUs of its leases, their grant times summed."""

    ended_gpu_s: float = 0.0
    at_s: float = 0.0
    gpus: int = 0
    granted_gpu_s: float = 0.0
    # When it got a GPU last.
    last_s: float = -math.inf


class TenantShares:
    """GPU-seconds by tenant. A tenant without leases whose use has decayed to nothing is forgotten."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._weights = dict(limits.tenant_weights)
        self._uses: dict[str, _Use] = {}
        self._leases: dict[LeaseId, tuple[str, int, float]] = {}

    def begin(self, lease_id: LeaseId, tenant: str, gpus: int, now_s: float) -> None:
        """A lease of `tenant` occupies GPUs from now on."""
        use = self._uses.setdefault(tenant, _Use(at_s=now_s))
        use.gpus += gpus
        use.granted_gpu_s += gpus * now_s
        use.last_s = now_s
        self._leases[lease_id] = (tenant, gpus, now_s)

    def end(self, lease_id: LeaseId, now_s: float) -> None:
        """A lease ended; one that was never begun is none of ours."""
        if lease_id not in self._leases:
            return
        tenant, gpus, granted_at_s = self._leases.pop(lease_id)
        use = self._uses[tenant]
        use.ended_gpu_s = self._decayed(use, now_s) + gpus * (now_s - granted_at_s)
        use.at_s = now_s
        use.gpus -= gpus
        use.granted_gpu_s -= gpus * granted_at_s

    def gpus(self, tenant: str) -> int:
        """GPUs that the tenant's leases occupy."""
        use = self._uses.get(tenant)
        return use.gpus if use is not None else 0

    def granted_at_s(self, tenant: str) -> float:
        """When the tenant got a GPU last; long ago if that is not known any more."""
        use = self._uses.get(tenant)
        return use.last_s if use is not None else -math.inf

    def used_gpu_s(self, tenant: str, now_s: float) -> float:
        """Decayed GPU-seconds, those of running leases included; per unit of the tenant's weight."""
        use = self._uses.get(tenant)
        if use is None:
            return 0.0
        running = use.gpus * (now_s + self._limits.fair_quantum_s) - use.granted_gpu_s
        return (self._decayed(use, now_s) + running) / self.weight(tenant)

    def weight(self, tenant: str) -> float:
        """The tenant's weight, 1 unless one is set."""
        return self._weights.get(tenant, 1.0)

    def weights_of_active(self, tenant: str) -> float:
        """The weights of all tenants that used GPUs lately, and of `tenant`."""
        return sum(self.weight(name) for name in {tenant, *self._uses})

    def forget_idle(self, now_s: float) -> None:
        """Forgets tenants that used less than a GPU-second, decayed, and hold nothing."""
        for tenant, use in list(self._uses.items()):
            if not use.gpus and self._decayed(use, now_s) < 1.0:
                del self._uses[tenant]

    def _decayed(self, use: _Use, now_s: float) -> float:
        return float(use.ended_gpu_s * 0.5 ** ((now_s - use.at_s) / self._limits.fair_half_life_s))


def in_turn(
    queue: RunQueue, shares: TenantShares, limits: Limits, now_s: float,
    session_runs: Callable[[SessionId], bool] = lambda _session_id: False,
) -> Iterator[Run]:
    """Every run that waits, in the order in which they are served; safe against changes of the queue meanwhile.

    A tenant whose first run has waited `fair_fifo_after_s`, and that got no GPU for as long, goes first, with that one
    run. Then the tenant with the least use per weight is next; the weight doubles while its first run has waited
    `fair_double_after_s`. Batch runs count as arrived later. Runs that their own session holds back, since another of
    its cells runs (`session_runs`) or waits before them, take no turn of their tenant's: they come last.
    """
    if len(queue.by_tenant()) < 2:
        yield from queue
        return
    waiting, held_back = _split(queue, session_runs)
    used = {tenant: shares.used_gpu_s(tenant, now_s) for tenant in waiting}
    starved = [
        runs[0] for tenant, runs in waiting.items()
        if now_s - max(runs[0].rank_s, shares.granted_at_s(tenant)) >= limits.fair_fifo_after_s]
    yield from sorted(starved, key=lambda run: run.key)
    for run in starved:
        used[run.tenant] += _turn(run, shares, limits)
    first = dict.fromkeys((run.tenant for run in starved), 1)

    def entry(tenant: str, place: int) -> tuple[float, tuple[float, int], str, int]:
        head = waiting[tenant][place]
        aged = 2.0 if now_s - head.rank_s >= limits.fair_double_after_s else 1.0
        return (used[tenant] / aged, head.key, tenant, place)

    heads = [
        entry(tenant, first.get(tenant, 0)) for tenant, runs in waiting.items() if first.get(tenant, 0) < len(runs)]
    heapq.heapify(heads)
    while heads:
        _share, _key, tenant, place = heapq.heappop(heads)
        run = waiting[tenant][place]
        yield run
        used[tenant] += _turn(run, shares, limits)
        if place + 1 < len(waiting[tenant]):
            heapq.heappush(heads, entry(tenant, place + 1))
    yield from held_back


def turns_matter(queue: RunQueue) -> bool:
    """True if the order of turns, which waiting and use change, decides more than who is first.

    A host that is kept for a run of several GPUs is free for those whose turn has come to be before it.
    """
    return len(queue.by_tenant()) > 1 and any(run.reserved_host is not None for run in queue)


def _split(
    queue: RunQueue, session_runs: Callable[[SessionId], bool],
) -> tuple[dict[str, list[Run]], list[Run]]:
    """By tenant the runs that may be placed, the first of each session that runs nothing; and the others."""
    waiting: dict[str, list[Run]] = {}
    held_back: list[Run] = []
    seen: set[SessionId] = set()
    for run in queue:
        if run.session_id in seen or session_runs(run.session_id):
            held_back.append(run)
        else:
            waiting.setdefault(run.tenant, []).append(run)
        seen.add(run.session_id)
    return waiting, held_back


def _turn(run: Run, shares: TenantShares, limits: Limits) -> float:
    return run.recipe.gpu_count * limits.fair_quantum_s / shares.weight(run.tenant)
