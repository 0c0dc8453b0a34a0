"""Up to which stage a worker is prepared, and on which GPUs: speculation's rule applied to the pool as it is."""

from __future__ import annotations

from itertools import chain

from looseleaf.ids import LeaseId, WorkerId
from looseleaf.services.scheduler.core.contexts import counts, displaced, most_on, opening_on
from looseleaf.services.scheduler.core.events import PreparationRequested
from looseleaf.services.scheduler.core.eviction import eviction_rank
from looseleaf.services.scheduler.core.facts import WorkerStage
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.rooms import HostRoom
from looseleaf.services.scheduler.core.speculation import how_far
from looseleaf.services.scheduler.core.state import State
from looseleaf.services.scheduler.core.waiting import any_waits_for_gpus

_HOST: tuple[WorkerStage, tuple[int, ...]] = (WorkerStage.HOST_READY, ())


def choose_stage(
    state: State, event: PreparationRequested, host: Host, worker: Worker | None, now_s: float,
) -> tuple[WorkerStage, tuple[int, ...]]:
    """The stage and its GPUs. A warm worker keeps the GPUs that it is bound to, since nobody else needs them."""
    limits = state.limits
    if limits.prepare_stage_max is WorkerStage.HOST_READY:
        return _HOST
    if worker is not None and worker.gpu_indices and worker.has_run:
        kept = limits.prepare_stage_max is WorkerStage.DEVICE_READY
        return (WorkerStage.DEVICE_READY, worker.gpu_indices) if kept else _HOST
    if how_far(event, limits, gpu_idle=True, may_spend=True) is WorkerStage.HOST_READY:
        return _HOST
    if now_s < state.sessions.touch(event.session_id).device_not_before_s:
        return _HOST
    idle = _idle_gpus(state, event, host, worker, now_s)
    stage = how_far(
        event, limits, gpu_idle=bool(idle) and not any_waits_for_gpus(state),
        may_spend=may_spend(state, event, worker))
    if stage is WorkerStage.DEVICE_READY:
        return stage, idle
    if stage is WorkerStage.CONTEXT_READY:
        likely = _likely_gpus(state, event, host, worker, now_s)
        return (stage, likely) if likely else _HOST
    return _HOST


def reached(worker: Worker) -> WorkerStage:
    """How far an idle worker of a session is ready."""
    if worker.gpu_indices:
        return WorkerStage.DEVICE_READY
    return WorkerStage.CONTEXT_READY if worker.context_gpus else WorkerStage.HOST_READY


def may_spend(state: State, event: PreparationRequested, worker: Worker | None) -> bool:
    """True if the session has not wasted too much, and its tenant's speculation leaves room for one more."""
    session = state.sessions.touch(event.session_id)
    if session.spare_gpu_s <= 0:
        return False
    if worker is not None and worker.worker_id in state.speculation.parked:
        return True
    coming = sum(
        len(other.gpu_indices) for other in state.preparations
        if other.gpu_indices and state.sessions.tenant(other.session_id) == session.tenant)
    wanted = state.speculation.gpus_of(session.tenant) + coming + event.recipe.gpu_count
    return wanted <= state.speculative_gpus_max(session.tenant)


def clear_gpus(state: State, host: Host, gpus: tuple[int, ...], worker: Worker | None) -> None:
    """Ends the completed workers that stand on GPUs which `choose_stage` gave to an edit, for `worker` or a new one.

    On GPUs on which its own data lie already nobody has to make way.
    """
    if worker is not None and worker.gpu_indices == gpus:
        return
    wanted = set(gpus)
    for other in list(host.workers.values()):
        if other.gpu_indices and not other.evicting and not wanted.isdisjoint(other.gpu_indices):
            state.greedy.evicted(other)
            state.evict(host, other, LeaseId(""))


def _idle_gpus(
    state: State, event: PreparationRequested, host: Host, worker: Worker | None, now_s: float,
) -> tuple[int, ...]:
    """GPUs of the host that nobody needs now, or those on which the worker's data lie already; empty: too few.

    Free ones first, then those of completed workers in whose sessions nobody edits a cell, the least valuable first:
    who edits is nearer to a Run. A worker with a context goes nowhere else: it would be another one, made from nothing.
    """
    count = event.recipe.gpu_count
    if worker is not None and worker.gpu_indices:
        return worker.gpu_indices if len(worker.gpu_indices) == count else ()
    room = state.rooms.look_at(host.host_id, now_s)
    if room is None:
        return ()
    not_these = {index for other in state.preparations.on_host(host.host_id) for index in other.gpu_indices}
    if event.recipe.gpu_bytes > host.least_spare_bytes:
        not_these |= {
            index for index in range(host.gpu_count) if host.spare_bytes(index) < event.recipe.gpu_bytes}
    # From the end, since runs take the first free ones.
    idle = [index for index in reversed(room.free) if index not in not_these]
    if worker is not None and worker.context_gpus:
        idle += _unused_gpus(state, event, room, not_these, now_s)
        fits = len(worker.context_gpus) == count and set(worker.context_gpus).issubset(idle)
        return worker.context_gpus if fits else ()
    if len(idle) < count:
        idle += _unused_gpus(state, event, room, not_these, now_s)
    return tuple(sorted(idle[:count])) if len(idle) >= count else ()


def _unused_gpus(
    state: State, event: PreparationRequested, room: HostRoom, not_these: set[int], now_s: float,
) -> list[int]:
    def unused(worker: Worker) -> bool:
        lately = worker.prepared is not None and now_s - worker.edited_at_s < state.limits.speculative_expiry_s
        completed = worker.has_run and worker.hold is None and worker.worker_id in room.may_go
        return completed and not lately and worker.session_id != event.session_id

    found = [
        (max(eviction_rank(worker, now_s, state.limits) for worker in holders), index)
        for index, holders in room.warm.items() if index not in not_these and all(unused(worker) for worker in holders)]
    return [index for _rank, index in sorted(found)]


def _likely_gpus(
    state: State, event: PreparationRequested, host: Host, worker: Worker | None, now_s: float,
) -> tuple[int, ...]:
    """Where a context is opened: free GPUs, then those of idle workers, those with fewest contexts first.

    From the end, since runs of others take the first free ones, and a context cannot be moved.
    """
    if worker is not None and len(worker.context_gpus) == event.recipe.gpu_count:
        return worker.context_gpus
    room = state.rooms.look_at(host.host_id, now_s)
    if room is None:
        return ()
    contexts = dict.fromkeys([*room.free, *room.warm], 0)
    opened = [
        other.context_gpus for other in host.workers.values() if other.context_gpus and counts(state, other, now_s)]
    opening = [coming.context_gpus for coming in opening_on(state, host)]
    for index in chain.from_iterable([*opened, *opening]):
        if index in contexts:
            contexts[index] += 1
    fit = [index for index, count in contexts.items() if count < most_on(state, host, index)]
    fit.sort(key=lambda index: (index in room.warm, contexts[index], -index))
    count = event.recipe.gpu_count
    if len(fit) < count:
        # Then those where tenants hold more than their part.
        left: dict[WorkerId, Worker] = {}
        for index in sorted(contexts.keys() - fit, reverse=True):
            going = displaced(state, host, index, event.session_id, count, now_s, left)
            if going is not None and len(fit) < count:
                fit.append(index)
                left.update((worker.worker_id, worker) for worker in going)
    return tuple(sorted(fit[:count])) if len(fit) >= count else ()
