"""How prepares end: the worker is ready, it could not be prepared, or its host was lost."""

from __future__ import annotations

from looseleaf.ids import LeaseId, Version
from looseleaf.services.scheduler.core.actions import AnswerPreparation
from looseleaf.services.scheduler.core.demoting import demote
from looseleaf.services.scheduler.core.events import PreparationFailed, WorkerPrepared
from looseleaf.services.scheduler.core.eviction import evictable
from looseleaf.services.scheduler.core.facts import RecipeFacts, WorkerStage
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.preparations import Preparation
from looseleaf.services.scheduler.core.preparing import preparation_requested, skip
from looseleaf.services.scheduler.core.speculation import Parked
from looseleaf.services.scheduler.core.state import State


def worker_prepared(state: State, event: WorkerPrepared, now_s: float) -> None:
    """The worker holds the closures: from this event on a Run finds it PREPARED."""
    demoted = False
    preparation = state.preparations.take(event.request_id)
    if preparation is None:
        return
    host = state.hosts.get(preparation.host_id)
    if host is not None and host.alive and host.incarnation == preparation.incarnation:
        worker = host.workers.get(event.worker_id)
        if worker is None:
            worker = host.workers[event.worker_id] = Worker(
                event.worker_id, preparation.session_id, WorkerStage.HOST_READY, pid=event.pid)
        worker.preparing = False
        if event.worker_id != preparation.worker_id and (old := host.workers.get(preparation.worker_id)) is not None:
            # Its daemon would not use it any more, as after an install.
            old.preparing, old.prepared, old.merged, old.context_gpus = False, None, None, ()
            state.speculation.close_context(old.worker_id, now_s, used=False)
            # It may go now, from a GPU too.
            state.hosts.touch(host.host_id, old)
            _end_replaced(state, host, old, now_s)
        if not worker.stage.busy and event.worker_id not in state.leases.workers_in_use(host.host_id):
            worker.stage = worker.stage if worker.stage.ready else WorkerStage.HOST_READY
            demoted = _settle_on_gpus(state, worker, host, event, now_s)
            opens = preparation.gpu_indices or preparation.context_gpus
            if opens and event.stage is WorkerStage.HOST_READY and not worker.has_run:
                # A run has taken the GPU, or it cannot be opened: the next keystroke finds it no better.
                later_s = now_s + state.limits.device_retry_s
                state.sessions.touch(preparation.session_id).device_not_before_s = later_s
            held = worker.prepared
            if held is not None and _cell(held) != _cell(preparation.recipe):
                state.speculation.drop(worker)
            worker.session_id, worker.version = preparation.session_id, preparation.recipe.version
            worker.prepared, worker.prepared_at, worker.prepared_at_s = preparation.recipe, state.number, now_s
            worker.prepare_ms = event.prepare_ms
            worker.resident_bytes = max(worker.resident_bytes, event.resident_bytes)
            worker.unsettle()
        state.hosts.touch(host.host_id, worker)
        state.dirty = True
    for waiter in preparation.waiters:
        state.act(AnswerPreparation(waiter, event.worker_id, preparation.host_id, event.prepare_ms))
    _continue(state, preparation, now_s)
    if demoted and host is not None and state.preparations.get(preparation.session_id) is None:
        worker = host.workers.get(event.worker_id)
        if worker is not None:
            demote(state, host, worker, now_s)


def _end_replaced(state: State, host: Host, old: Worker, now_s: float) -> None:
    """Ends a worker on which nothing has run and nothing is ready any more, or learns that its daemon has ended it.

    Until a heartbeat tells that, it would count as one that its session has, and no other is made ready in its place.
    """
    in_use = old.worker_id in state.leases.workers_in_use(host.host_id)
    if old.speculative and not in_use and evictable(old, host.heartbeats, now_s):
        state.evict(host, old, LeaseId(""))


def _cell(recipe: RecipeFacts) -> tuple[str, Version]:
    """Which text at which version, however much more is known: a heartbeat tells only that."""
    return recipe.source_hash, recipe.version


def _settle_on_gpus(state: State, worker: Worker, host: Host, event: WorkerPrepared, now_s: float) -> bool:
    """Takes in where the worker is ready. True if its data must leave a device, since a lease has it meanwhile."""
    session = state.sessions.touch(worker.session_id)
    worker.context_gpus = event.gpu_indices if event.stage is WorkerStage.CONTEXT_READY else ()
    if worker.context_gpus:
        state.speculation.open_context(worker, host.host_id, state.sessions.tenant(worker.session_id), now_s)
    else:
        state.speculation.close_context(
            worker.worker_id, now_s, used=event.stage is WorkerStage.DEVICE_READY)
    if event.stage is not WorkerStage.DEVICE_READY:
        if worker.parked:
            worker.gpu_indices = ()
            state.speculation.unpark(worker, session, now_s, used=False)
        worker.parked = False
        return False
    if any(state.leases.occupied(host.host_id, index) for index in event.gpu_indices):
        return True
    worker.parked, worker.gpu_indices = True, event.gpu_indices
    park(state, host, worker, now_s)
    return False


def park(state: State, host: Host, worker: Worker, now_s: float) -> None:
    """A worker's data lie on GPUs without a lease; from now on that is charged unless it is a warm one."""
    tenant = state.sessions.tenant(worker.session_id)
    state.speculation.park(worker, Parked(host.host_id, worker.session_id, tenant, len(worker.gpu_indices), now_s))


def preparation_failed(state: State, event: PreparationFailed, now_s: float) -> None:
    """Nothing is lost: Run takes the cold path."""
    preparation = state.preparations.take(event.request_id)
    if preparation is None:
        return
    worker = state.hosts.worker(preparation.host_id, preparation.worker_id)
    if worker is not None:
        worker.preparing = False
        state.speculation.drop(worker)
        worker.prepared, worker.merged, worker.context_gpus = None, None, ()
        state.speculation.close_context(worker.worker_id, now_s, used=False)
        state.hosts.touch(preparation.host_id, worker)
    reason = f"The worker could not be prepared ({event.message or event.reason})."
    for waiter in preparation.waiters:
        skip(state, waiter, reason)
    state.dirty = True
    _continue(state, preparation, now_s)


def host_lost(state: State, host: Host, now_s: float) -> None:
    """Preparations on a host whose daemon is gone come to nothing."""
    for preparation in state.preparations.on_host(host.host_id):
        state.preparations.take(preparation.request_id)
        waiters = [*preparation.waiters, *([preparation.successor.request_id] if preparation.successor else [])]
        for waiter in waiters:
            skip(state, waiter, "The host of the worker was lost.")


def _continue(state: State, preparation: Preparation, now_s: float) -> None:
    if preparation.successor is not None:
        preparation_requested(state, preparation.successor, now_s)
