"""A host's GPUs that no lease holds, and what stands on them."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, field

from looseleaf.ids import SessionId, WorkerId
from looseleaf.services.scheduler.core.eviction import evictable, eviction_rank
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.leases import LeaseTable
from looseleaf.services.scheduler.core.limits import Limits

# When it will change depends on more than the time: it must be looked at each time.
AT_ONCE = -math.inf


@dataclass(slots=True)
class HostRoom:
    """A host's GPUs without a lease, by what stands on them, as of one moment."""

    host: Host
    # Workers that some lease names, as it stands.
    in_use: Set[WorkerId]
    free: list[int] = field(default_factory=list)
    # GPU -> the workers bound to it; each may be ended or can take a cell of its session.
    warm: dict[int, list[Worker]] = field(default_factory=dict)
    # Of the workers bound to GPUs those that may be ended for somebody else's cell.
    may_go: set[WorkerId] = field(default_factory=set)
    # When time alone will change it, or what ending its workers costs.
    changes_at_s: float = math.inf

    @property
    def open(self) -> bool:
        """True if some run may fit."""
        return bool(self.free or self.warm)

    def idle_of(self, session_id: SessionId) -> list[Worker]:
        """Workers of the session that can take its next cell."""
        return [worker for worker in self.host.workers.of_session(session_id) if self._serves(worker)]

    def _serves(self, worker: Worker) -> bool:
        return worker.stage.ready and not worker.evicting and worker.worker_id not in self.in_use

    def look_at_bound(self, worker: Worker, now_s: float, limits: Limits) -> bool:
        """Notes whether a worker on a GPU may go, and until when that is so; True if it may, or can serve."""
        if worker.pinned_until > self.host.heartbeats:
            self.changes_at_s = AT_ONCE
        if now_s < worker.held_until_s:
            self.changes_at_s = min(self.changes_at_s, worker.held_until_s)
        if not worker.has_run and now_s - worker.prepared_at_s < limits.speculative_expiry_s:
            self.changes_at_s = min(self.changes_at_s, worker.prepared_at_s + limits.speculative_expiry_s)
        if worker.worker_id not in self.in_use and evictable(worker, self.host.heartbeats, now_s):
            self.may_go.add(worker.worker_id)
            return True
        return self._serves(worker)

    def oldest_speculative(self, now_s: float) -> Worker | None:
        """The speculative worker that was prepared first, of those that may go."""
        going = (
            worker for worker in self.host.workers.values()
            if worker.speculative and worker.worker_id not in self.in_use
            and evictable(worker, self.host.heartbeats, now_s))
        return min(going, key=lambda worker: (worker.prepared_at_s, worker.worker_id), default=None)


def host_room(host: Host, leases: LeaseTable, now_s: float, limits: Limits) -> HostRoom:
    """Sorts a host's GPUs: leased or busy ones are left out."""
    room = HostRoom(host, leases.workers_in_use(host.host_id))
    taken = leases.taken(host.host_id)
    if len(taken) >= host.gpu_count:
        return room
    bound: dict[int, list[Worker]] = {}
    stuck: list[int] = []
    for worker in host.workers.bound():
        if taken and taken.issuperset(worker.gpu_indices):
            continue
        goes = room.look_at_bound(worker, now_s, limits)
        for index in worker.gpu_indices:
            if index in bound:
                bound[index].append(worker)
            else:
                bound[index] = [worker]
        if not goes:
            stuck += worker.gpu_indices
    for index in range(host.gpu_count):
        if index not in taken:
            if index not in bound:
                room.free.append(index)
            elif index not in stuck:
                room.warm[index] = bound[index]
    return room


def take_gpus(
    room: HostRoom, count: int, bound: tuple[int, ...], keep: Worker | None, now_s: float, limits: Limits,
    spare_bytes: int = 0,
) -> tuple[tuple[int, ...], tuple[WorkerId, ...]] | None:
    """`count` GPUs of one host, the `bound` ones first, then free ones, then those of the cheapest victims.

    Only GPUs on which others than our workers leave `spare_bytes` of memory count. Of the free ones, and of those whose
    victims are of one class, those come first on which `keep` has a context.
    """
    tight = spare_bytes > room.host.least_spare_bytes
    if tight and any(room.host.spare_bytes(index) < spare_bytes for index in bound):
        return None
    gpus = list(bound)
    free = [index for index in room.free if room.host.spare_bytes(index) >= spare_bytes] if tight else room.free
    contexts = keep.context_gpus if keep is not None else ()
    if contexts:
        free = sorted(free, key=lambda index: (index not in contexts, index))
    gpus += free[: max(0, count - len(gpus))]
    if len(gpus) < count:
        others = [
            index for index in room.warm if index not in gpus and _all_may_go(room, index, keep)
            and not (tight and room.host.spare_bytes(index) < spare_bytes)]
        if contexts:
            others.sort(key=lambda index: _victims_order(room, index, contexts, now_s, limits))
        else:
            others.sort(key=lambda index: _cost(room, index, now_s, limits))
        gpus += others[: count - len(gpus)]
        if len(gpus) < count:
            return None
    elif not bound:
        # Free ones are enough: nobody makes way.
        return tuple(sorted(gpus)), ()
    victims = {
        holder.worker_id
        for index in gpus for holder in room.warm.get(index, []) if keep is None or holder.worker_id != keep.worker_id
    }
    if not victims <= room.may_go:
        return None
    return tuple(sorted(gpus)), tuple(sorted(victims))


def _all_may_go(room: HostRoom, index: int, keep: Worker | None) -> bool:
    for worker in room.warm[index]:  # noqa: SIM110 - a generator for each GPU costs more than the look
        if worker is keep or worker.worker_id not in room.may_go:
            return False
    return True


def _cost(room: HostRoom, index: int, now_s: float, limits: Limits) -> tuple[tuple[int, float, str], int]:
    holders = room.warm[index]
    if len(holders) == 1:
        return eviction_rank(holders[0], now_s, limits), index
    return max(eviction_rank(worker, now_s, limits) for worker in holders), index


def _victims_order(
    room: HostRoom, index: int, contexts: tuple[int, ...], now_s: float, limits: Limits,
) -> tuple[int, bool, tuple[tuple[int, float, str], int]]:
    cost = _cost(room, index, now_s, limits)
    return cost[0][0], index not in contexts, cost


def victims_cost(
    room: HostRoom, victims: tuple[WorkerId, ...], now_s: float, limits: Limits,
) -> tuple[int, float]:
    """The class and priority of the dearest of them, (0, 0.0) if there are none."""
    if not victims:
        return 0, 0.0
    costs = [eviction_rank(room.host.workers[worker_id], now_s, limits)[:2] for worker_id in victims]
    return max(costs)


def loses_variables(room: HostRoom, victims: tuple[WorkerId, ...]) -> bool:
    """True if one of them holds variables that no version has."""
    return any(room.host.workers[worker_id].hold is not None for worker_id in victims)
