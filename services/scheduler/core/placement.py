"""Which GPUs a run gets (design §6): on the session's own prepared or warm worker if it can be, free ones first.

GPUs that only hold idle workers come last and cost evictions; a running or saving worker is never touched. A gang
of k GPUs lies on one host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from looseleaf.ids import HostId, WorkerId
from looseleaf.services.scheduler.core.facts import StartPath
from looseleaf.services.scheduler.core.hosts import Worker
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.queue import Run
from looseleaf.services.scheduler.core.room_index import RoomIndex
from looseleaf.services.scheduler.core.rooms import HostRoom, loses_variables, take_gpus, victims_cost
from looseleaf.services.scheduler.core.values import value

Rank = tuple[bool, bool, int, int, int, float, int]
# A worker that was prepared for something else still has its imports: COLD by the book, better than a new one.
_GRADES = {StartPath.PREPARED: 0, StartPath.WARM: 1, StartPath.COLD: 2}
_GRADE_ARRIVING, _GRADE_NEW = 3, 4


@value
class Placement:
    """Where a run goes, on which worker (empty: a new one), and whom it displaces."""

    host_id: HostId
    gpu_indices: tuple[int, ...]
    worker_id: WorkerId
    path: StartPath
    victims: tuple[WorkerId, ...] = ()


def worker_path(worker: Worker, run: Run) -> StartPath:
    """PREPARED: known, before the run arrived, to hold its closures; WARM: ran a cell before; else COLD."""
    if worker.prepared is not None and worker.prepared_at < run.arrived_at and worker.prepared.covers(run.recipe):
        return StartPath.PREPARED
    return StartPath.WARM if worker.has_run else StartPath.COLD


def place(
    run: Run, index: RoomIndex, preparing_on: HostId | None, closed: Collection[HostId], now_s: float,
) -> Placement | None:
    """The best placement of `run`, or None if there is no room now.

    A run that needs a certain worker gets that one or none. `preparing_on`: a host where a new worker of the session is
    under way; `closed`: hosts kept for others. Deterministic: ties go by host id.
    """

    wanted_bytes = run.wanted_gpu_bytes(now_s, index.limits)

    def usable(host_id: HostId) -> bool:
        host = index.host(host_id)
        return (
            host_id not in closed and host.heartbeats >= run.avoided.get(host_id, 0)
            and host.takes_work(now_s, index.limits) and host.fits(run.recipe.gpu_count, wanted_bytes))

    likely = index.hosts_of(run.session_id)
    if preparing_on is not None:
        likely.add(preparing_on)
    best: tuple[tuple[Rank, str], Placement] | None = None
    for host_id in _worth_a_look(run, index, likely, usable, now_s):
        room = index.room(host_id)
        for option, grade in _options(run, room, preparing_on, now_s, index.limits):
            key = (_rank(room, option, grade, now_s, index.limits), host_id)
            if best is None or key < best[0]:
                best = (key, option)
    return best[1] if best else None


def could_place(run: Run, room: HostRoom, now_s: float, limits: Limits) -> bool:
    """Whether `place` would find room on this host if that were open for work."""
    host = room.host
    return (
        room.open and host.heartbeats >= max(run.avoided.get(host.host_id, 0), host.unresponsive_until)
        and host.fits(run.recipe.gpu_count, run.wanted_gpu_bytes(now_s, limits))
        and bool(_options(run, room, None, now_s, limits)))


def _worth_a_look(
    run: Run, index: RoomIndex, likely: set[HostId], usable: Callable[[HostId], bool], now_s: float,
) -> Iterator[HostId]:
    """Hosts among which the best placement is: those with workers of the session, and the best one for a new worker.

    Where others than our workers leave too little memory on some GPU only a look at the host tells.
    """
    tight = index.tight_hosts(run.wanted_gpu_bytes(now_s, index.limits))

    def roomy(host_id: HostId) -> bool:
        return host_id not in tight and usable(host_id)

    for host_id in likely | tight:
        if usable(host_id) and index.room(host_id).open:
            yield host_id
    if run.need.worker_id:
        return
    free = index.with_free(run.recipe.gpu_count, roomy)
    if free is not None:
        yield free
    elif run.recipe.gpu_count == 1:
        cheapest = index.cheapest.first(roomy)
        if cheapest is not None:
            yield cheapest
    else:
        yield from filter(usable, index.open_hosts())


def _rank(room: HostRoom, option: Placement, grade: int, now_s: float, limits: Limits) -> Rank:
    """Lower is better: no variables lost, the session's state at hand, few evictions, a ready worker, cheap victims, a
    full host so that gangs find an empty one.

    A worker with the session's state is worth an eviction: whoever gives way prepares anew while somebody thinks, a
    cell without it while somebody waits.
    """
    kind, priority = victims_cost(room, option.victims, now_s, limits)
    loses = loses_variables(room, option.victims)
    without_state = grade > _GRADES[StartPath.WARM]
    return (loses, without_state, len(option.victims), grade, kind, priority, len(room.free))


def _options(
    run: Run, room: HostRoom, preparing_on: HostId | None, now_s: float, limits: Limits,
) -> list[tuple[Placement, int]]:
    """Placements on one host, each with a grade of the worker it offers, 0 the readiest."""
    found = []
    needed, spare_bytes = run.need.worker_id, run.wanted_gpu_bytes(now_s, limits)
    for worker in room.idle_of(run.session_id):
        if needed and worker.worker_id != needed:
            continue
        option = _on_worker(run, room, worker, spare_bytes, now_s, limits)
        if option is not None:
            found.append((option, _GRADES[option.path]))
    fresh = None if needed else take_gpus(
        room, run.recipe.gpu_count, (), None, now_s, limits, spare_bytes)
    if fresh is not None:
        gpus, victims = fresh
        option = Placement(room.host.host_id, gpus, WorkerId(""), StartPath.COLD, victims)
        found.append((option, _GRADE_ARRIVING if room.host.host_id == preparing_on else _GRADE_NEW))
    return found


def _on_worker(
    run: Run, room: HostRoom, worker: Worker, spare_bytes: int, now_s: float, limits: Limits,
) -> Placement | None:
    count = run.recipe.gpu_count
    bound = worker.gpu_indices
    # A device context cannot change its set of GPUs: a bound worker serves only cells of that many.
    if bound and (len(bound) != count or not all(index in room.warm for index in bound)):
        return None
    if worker.context_gpus and not bound and not worker.preparing:
        # Nor can one that waits for its data: whoever stands there makes way, else a new worker is as good.
        bound = worker.context_gpus
        if len(bound) != count or not all(index in room.warm or index in room.free for index in bound):
            return None
    if run.need.worker_id and worker.gpu_indices and not run.patient(now_s, limits):
        # It runs there or nowhere, and beside a worker of ours nobody sees that others have left.
        spare_bytes = 0
    taken = take_gpus(room, count, bound, worker, now_s, limits, spare_bytes)
    if taken is None:
        return None
    gpus, victims = taken
    return Placement(room.host.host_id, gpus, worker.worker_id, worker_path(worker, run), victims)
