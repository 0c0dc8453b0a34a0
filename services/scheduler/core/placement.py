"""Which GPUs a run gets (design §6): free ones first, on the session's own prepared or warm worker if it can be.

GPUs that only hold idle workers come last and cost evictions; a running or saving worker is never touched. A gang
of k GPUs lies on one host.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from looseleaf.ids import HostId, WorkerId
from looseleaf.services.scheduler.core.eviction import evictable, eviction_rank
from looseleaf.services.scheduler.core.facts import StartPath
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.leases import LeaseTable
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.queue import Run

Rank = tuple[int, int, int, float, int]
# A worker that was prepared for something else still has its imports: COLD by the book, better than a new one.
_GRADES = {StartPath.PREPARED: 0, StartPath.WARM: 1, StartPath.COLD: 2}
_GRADE_ARRIVING, _GRADE_NEW = 3, 4


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a run goes, on which worker (empty: a new one), and whom it displaces."""

    host_id: HostId
    gpu_indices: tuple[int, ...]
    worker_id: WorkerId
    path: StartPath
    victims: tuple[WorkerId, ...] = ()


@dataclass(slots=True)
class HostRoom:
    """A host's GPUs without a lease, by what stands on them."""

    host: Host
    free: list[int]
    # GPU -> the workers bound to it; each may be ended or can take a cell of its session.
    warm: dict[int, list[Worker]]
    # Idle workers of any session that no lease names.
    idle: list[Worker]

    def may_go(self, worker: Worker, now_s: float) -> bool:
        """Whether the worker may be ended for somebody else's cell."""
        return evictable(worker, self.host.heartbeats, now_s)


def host_room(host: Host, leases: LeaseTable, now_s: float) -> HostRoom:
    """Sorts a host's GPUs: leased or busy ones are left out."""
    if leases.full(host.host_id, host.gpu_count):
        return HostRoom(host, [], {}, [])
    in_use = leases.workers_in_use(host.host_id)
    bound: dict[int, list[Worker]] = {}
    for worker in host.workers.values():
        for index in worker.gpu_indices:
            bound.setdefault(index, []).append(worker)
    free, warm = [], {}
    for index in range(host.gpu_count):
        if leases.occupied(host.host_id, index):
            continue
        holders = bound.get(index, [])
        if not holders:
            free.append(index)
        elif all(_may_go(worker, host, in_use, now_s) or _may_serve(worker, in_use) for worker in holders):
            warm[index] = holders
    idle = [worker for worker in host.workers.values() if _may_serve(worker, in_use)]
    return HostRoom(host, free, warm, idle)


def _may_go(worker: Worker, host: Host, in_use: set[WorkerId], now_s: float) -> bool:
    return worker.worker_id not in in_use and evictable(worker, host.heartbeats, now_s)


def _may_serve(worker: Worker, in_use: set[WorkerId]) -> bool:
    return worker.stage.ready and not worker.evicting and worker.worker_id not in in_use


def worker_path(worker: Worker, run: Run) -> StartPath:
    """PREPARED: known, before the run arrived, to hold its closures; WARM: ran a cell before; else COLD."""
    if worker.prepared is not None and worker.prepared_at < run.arrived_at and worker.prepared.covers(run.recipe):
        return StartPath.PREPARED
    return StartPath.WARM if worker.has_run else StartPath.COLD


def place(
    run: Run, rooms: Collection[HostRoom], preparing_on: HostId | None, now_s: float, limits: Limits,
) -> Placement | None:
    """The best placement of `run` in `rooms`, or None if there is no room now.

    A run that needs a certain worker gets that one or none. `preparing_on`: a host where a new worker of the session is
    under way. Deterministic: ties go by host id.
    """
    best: tuple[tuple[Rank, str], Placement] | None = None
    for room in rooms:
        for option, grade in _options(run, room, preparing_on, now_s, limits):
            key = (_rank(room, option, grade, now_s, limits), room.host.host_id)
            if best is None or key < best[0]:
                best = (key, option)
    return best[1] if best else None


def _rank(room: HostRoom, option: Placement, grade: int, now_s: float, limits: Limits) -> Rank:
    """Lower is better: few evictions, a ready worker, cheap victims, a full host so that gangs find an empty one."""
    costs = [eviction_rank(room.host.workers[worker_id], now_s, limits)[:2] for worker_id in option.victims]
    kind, priority = max(costs, default=(0, 0.0))
    return (len(option.victims), grade, kind, priority, len(room.free))


def _options(
    run: Run, room: HostRoom, preparing_on: HostId | None, now_s: float, limits: Limits,
) -> list[tuple[Placement, int]]:
    """Placements on one host, each with a grade of the worker it offers, 0 the readiest."""
    found = []
    needed = run.need.worker_id
    own = [worker for worker in room.idle if worker.session_id == run.session_id]
    for worker in own:
        if needed and worker.worker_id != needed:
            continue
        option = _on_worker(run, room, worker, now_s, limits)
        if option is not None:
            found.append((option, _GRADES[option.path]))
    fresh = None if needed else _take(room, run.recipe.gpu_count, (), None, now_s, limits)
    if fresh is not None:
        gpus, victims = fresh
        option = Placement(room.host.host_id, gpus, WorkerId(""), StartPath.COLD, victims)
        found.append((option, _GRADE_ARRIVING if room.host.host_id == preparing_on else _GRADE_NEW))
    return found


def _on_worker(run: Run, room: HostRoom, worker: Worker, now_s: float, limits: Limits) -> Placement | None:
    count = run.recipe.gpu_count
    bound = worker.gpu_indices
    # A device context cannot change its set of GPUs: a bound worker serves only cells of that many.
    if bound and (len(bound) != count or not all(index in room.warm for index in bound)):
        return None
    taken = _take(room, count, bound, worker, now_s, limits)
    if taken is None:
        return None
    gpus, victims = taken
    return Placement(room.host.host_id, gpus, worker.worker_id, worker_path(worker, run), victims)


def _take(
    room: HostRoom, count: int, bound: tuple[int, ...], keep: Worker | None, now_s: float, limits: Limits,
) -> tuple[tuple[int, ...], tuple[WorkerId, ...]] | None:
    """`count` GPUs of one host, the `bound` ones first, then free ones, then those of the cheapest victims."""
    gpus = list(bound)
    gpus += room.free[: max(0, count - len(gpus))]
    if len(gpus) < count:
        others = [index for index in room.warm if index not in gpus and _all_may_go(room, index, keep, now_s)]
        others.sort(key=lambda index: _cost(room, index, now_s, limits))
        gpus += others[: count - len(gpus)]
    if len(gpus) < count:
        return None
    victims = {
        holder.worker_id
        for index in gpus for holder in room.warm.get(index, []) if keep is None or holder.worker_id != keep.worker_id
    }
    if not all(room.may_go(room.host.workers[worker_id], now_s) for worker_id in victims):
        return None
    return tuple(sorted(gpus)), tuple(sorted(victims))


def _all_may_go(room: HostRoom, index: int, keep: Worker | None, now_s: float) -> bool:
    return all(worker is not keep and room.may_go(worker, now_s) for worker in room.warm[index])


def _cost(room: HostRoom, index: int, now_s: float, limits: Limits) -> tuple[tuple[int, float, str], int]:
    return max(eviction_rank(worker, now_s, limits) for worker in room.warm[index]), index
