"""Workers that wait where their session's Run could not start: it would find none that serves it.

A context waits on a GPU which somebody else's cell has meanwhile, or every GPU of the host is in use while another host
has one. Neither a context nor a worker can be moved: it is ended, and another one made ready elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from looseleaf.ids import HostId, LeaseId
from looseleaf.services.scheduler.core.contexts import counts
from looseleaf.services.scheduler.core.events import PreparationRequested
from looseleaf.services.scheduler.core.eviction import evictable
from looseleaf.services.scheduler.core.facts import RecipeFacts
from looseleaf.services.scheduler.core.fitting import wanted_gpu_bytes
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.rooms import take_gpus
from looseleaf.services.scheduler.core.speculation import fork_wait_s
from looseleaf.services.scheduler.core.state import State


def end_stuck(
    state: State, event: PreparationRequested, workers: Iterable[tuple[Host, Worker]], now_s: float,
) -> None:
    """Ends those of a session's workers, so that its edit gets another one ready.

    Not those that hold data on a GPU, run, are being prepared, or are kept for variables that no version has. One whose
    context's GPU is taken goes also if it has run; while only its host is full, one that has run stays.
    """
    for host, worker in workers:
        if worker.gpu_indices or not _may_go(state, host, worker, now_s):
            continue
        taken = any(state.leases.occupied(host.host_id, index) for index in worker.context_gpus)
        if taken or (not worker.has_run and _room_elsewhere_only(state, event, host, now_s)):
            state.evict(host, worker, LeaseId(""))


def end_stuck_by_lease(state: State, host: Host, gpus: Collection[int], now_s: float) -> None:
    """A cell has taken `gpus`: cells in which somebody types and whose contexts wait there are made ready anew at once
    (`prepare_again`), not only with the next keystroke, which may not come before Run.

    They stay while no GPU is to be had where they would be made ready: this one may be free again first.
    """
    taken = set(gpus)
    waiting = [
        worker for worker in host.workers.values()
        if worker.context_gpus and not worker.gpu_indices and not worker.has_run]
    for worker in waiting:
        if taken.isdisjoint(worker.context_gpus):
            continue
        if not counts(state, worker, now_s) or not _may_go(state, host, worker, now_s):
            continue
        if fork_wait_s(state.sessions.touch(worker.session_id), now_s):
            continue
        if worker.prepared is not None and _new_one_finds_gpus(state, worker.prepared, now_s):
            state.evict(host, worker, LeaseId(""))


def _may_go(state: State, host: Host, worker: Worker, now_s: float) -> bool:
    in_use = worker.worker_id in state.leases.workers_in_use(host.host_id)
    return not in_use and evictable(worker, host.heartbeats, now_s)


def _room_elsewhere_only(state: State, event: PreparationRequested, host: Host, now_s: float) -> bool:
    """True if all GPUs of `host` are in use, and a new worker would find one on another.

    One on which a worker is kept, or prepared, may be had soon.
    """
    if fork_wait_s(state.sessions.touch(event.session_id), now_s):
        return False
    state.rooms.refresh(now_s)
    if host.host_id not in state.rooms or state.rooms.room(host.host_id).open:
        return False
    return _new_one_finds_gpus(state, event.recipe, now_s)


def _new_one_finds_gpus(state: State, recipe: RecipeFacts, now_s: float) -> bool:
    """True if the host that a new worker would get (`place_for_new`) has the cell's GPUs to give to anybody now."""
    gpu_bytes = wanted_gpu_bytes(state, recipe, now_s)

    def able(host_id: HostId) -> bool:
        host = state.rooms.host(host_id)
        return host.takes_work(now_s, state.limits) and host.fits(recipe.gpu_count, gpu_bytes)

    state.rooms.refresh(now_s)
    best = state.rooms.for_new.first(able)
    if best is None:
        return False
    room = state.rooms.room(best)
    return take_gpus(room, recipe.gpu_count, (), None, now_s, state.limits, gpu_bytes) is not None
