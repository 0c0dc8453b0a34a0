"""A host's GPUs that no lease holds, and what stands on them."""

from __future__ import annotations

from dataclasses import dataclass, field

from looseleaf.ids import WorkerId
from looseleaf.services.scheduler.core.eviction import evictable, eviction_rank
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.leases import LeaseTable
from looseleaf.services.scheduler.core.limits import Limits


@dataclass(slots=True)
class HostRoom:
    """A host's GPUs without a lease, by what stands on them, as of one moment."""

    host: Host
    # All of its GPUs, leased ones included.
    gpus: int
    free: list[int] = field(default_factory=list)
    # GPU -> the workers bound to it; each may be ended or can take a cell of its session.
    warm: dict[int, list[Worker]] = field(default_factory=dict)
    # Idle workers of any session that no lease names.
    idle: list[Worker] = field(default_factory=list)
    # Workers that may be ended for somebody else's cell.
    may_go: set[WorkerId] = field(default_factory=set)
    # Workers that were prepared and never ran.
    speculative: int = 0
    # When the first of those that may go was prepared.
    oldest_speculative: tuple[float, WorkerId] | None = None
    # Time alone will change it.
    timed: bool = False

    @property
    def open(self) -> bool:
        """True if some run may fit."""
        return bool(self.free or self.warm)


def host_room(host: Host, leases: LeaseTable, now_s: float) -> HostRoom:
    """Sorts a host's GPUs: leased or busy ones are left out."""
    room = HostRoom(host, host.gpu_count)
    in_use = leases.workers_in_use(host.host_id)
    bound: dict[int, list[Worker]] = {}
    for worker in host.workers.values():
        for index in worker.gpu_indices:
            bound.setdefault(index, []).append(worker)
        if worker.worker_id not in in_use:
            _look_at(room, worker, now_s)
        if worker.speculative:
            room.speculative += 1
            room.timed = room.timed or bool(worker.gpu_indices)
    if leases.full(host.host_id, host.gpu_count):
        room.idle.clear()
        return room
    idle = {worker.worker_id for worker in room.idle}
    for index in range(host.gpu_count):
        if leases.occupied(host.host_id, index):
            continue
        holders = bound.get(index)
        if not holders:
            room.free.append(index)
        elif all(worker.worker_id in room.may_go or worker.worker_id in idle for worker in holders):
            room.warm[index] = holders
    return room


def _look_at(room: HostRoom, worker: Worker, now_s: float) -> None:
    """A worker that no lease names: may it serve, may it go?"""
    if worker.pinned_until > room.host.heartbeats or now_s < worker.held_until_s:
        room.timed = True
    if worker.stage.ready and not worker.evicting:
        room.idle.append(worker)
    if evictable(worker, room.host.heartbeats, now_s):
        room.may_go.add(worker.worker_id)
        if worker.speculative:
            age = (worker.prepared_at_s, worker.worker_id)
            room.oldest_speculative = min(room.oldest_speculative or age, age)


def take_gpus(
    room: HostRoom, count: int, bound: tuple[int, ...], keep: Worker | None, now_s: float, limits: Limits,
) -> tuple[tuple[int, ...], tuple[WorkerId, ...]] | None:
    """`count` GPUs of one host, the `bound` ones first, then free ones, then those of the cheapest victims.

    Of the free ones those come first on which `keep` has a context.
    """
    gpus = list(bound)
    free = room.free
    if keep is not None and keep.context_gpus:
        free = sorted(free, key=lambda index: (index not in keep.context_gpus, index))
    gpus += free[: max(0, count - len(gpus))]
    if len(gpus) < count:
        others = [index for index in room.warm if index not in gpus and _all_may_go(room, index, keep)]
        others.sort(key=lambda index: _cost(room, index, now_s, limits))
        gpus += others[: count - len(gpus)]
    if len(gpus) < count:
        return None
    victims = {
        holder.worker_id
        for index in gpus for holder in room.warm.get(index, []) if keep is None or holder.worker_id != keep.worker_id
    }
    if not victims <= room.may_go:
        return None
    return tuple(sorted(gpus)), tuple(sorted(victims))


def _all_may_go(room: HostRoom, index: int, keep: Worker | None) -> bool:
    return all(worker is not keep and worker.worker_id in room.may_go for worker in room.warm[index])


def _cost(room: HostRoom, index: int, now_s: float, limits: Limits) -> tuple[tuple[int, float, str], int]:
    return max(eviction_rank(worker, now_s, limits) for worker in room.warm[index]), index


def victims_cost(
    room: HostRoom, victims: tuple[WorkerId, ...], now_s: float, limits: Limits,
) -> tuple[int, float]:
    """The class and priority of the dearest of them, (0, 0.0) if there are none."""
    costs = [eviction_rank(room.host.workers[worker_id], now_s, limits)[:2] for worker_id in victims]
    return max(costs, default=(0, 0.0))
