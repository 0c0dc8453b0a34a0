"""Preparations: which worker is made ready for a cell before Run, without a GPU and without executing anything.

One prepare at a time and at most one speculative worker per session; while one is under way only the newest edit
waits. When there is no good place the answer says why, and Run takes the cold path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from looseleaf.ids import HostId, LeaseId, Version, WorkerId
from looseleaf.services.scheduler.core.actions import AnswerPreparation, PrepareWorker
from looseleaf.services.scheduler.core.contexts import make_room
from looseleaf.services.scheduler.core.events import PreparationFailed, PreparationRequested, WorkerPrepared
from looseleaf.services.scheduler.core.eviction import evictable, eviction_rank
from looseleaf.services.scheduler.core.facts import RecipeFacts, WorkerStage
from looseleaf.services.scheduler.core.fencing import see_epoch
from looseleaf.services.scheduler.core.fitting import wanted_gpu_bytes
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.preparations import Preparation
from looseleaf.services.scheduler.core.refusals import stale_epoch
from looseleaf.services.scheduler.core.speculation import Parked, count_fork, fork_wait_s
from looseleaf.services.scheduler.core.stages import choose_stage, clear_gpus, reached
from looseleaf.services.scheduler.core.state import State
from looseleaf.services.scheduler.core.stuck_contexts import end_stuck


def preparation_requested(state: State, event: PreparationRequested, now_s: float) -> None:
    """Starts, joins or queues a prepare, or says why not."""
    if not see_epoch(state, event.session_id, event.epoch, now_s):
        state.refuse(event.request_id, stale_epoch(event.epoch, state.sessions.epoch(event.session_id)))
        return
    state.see_tenant(event.session_id, event.tenant)
    current = state.preparations.get(event.session_id)
    if current is None:
        _start(state, event, now_s)
    elif current.recipe == event.recipe and current.epoch == event.epoch:
        _supersede(state, current, None)
        if len(current.waiters) < state.limits.waiters_per_run_max:
            current.waiters.append(event.request_id)
        else:
            _skip(state, event.request_id, "Too many callers wait for this preparation.")
    else:
        _supersede(state, current, event)


def _supersede(state: State, current: Preparation, newest: PreparationRequested | None) -> None:
    if current.successor is not None:
        _skip(state, current.successor.request_id, "A newer edit took its place.")
    current.successor = newest


def _skip(state: State, request_id: str, reason: str) -> None:
    state.act(AnswerPreparation(request_id, skipped_reason=reason))


def _start(state: State, event: PreparationRequested, now_s: float) -> None:
    if not state.ready:
        _skip(state, event.request_id, "The scheduler has just started and waits for its hosts.")
        return
    if state.leases.session_runs(event.session_id):
        _skip(state, event.request_id, "This notebook's GPU cell is running; its worker can be prepared afterwards.")
        return
    workers = state.hosts.workers_of(event.session_id)
    end_stuck(state, workers, now_s)
    own = _usable(state, event, workers, now_s)
    for host, worker in own:
        if worker.prepared is not None and worker.prepared.covers(event.recipe):
            worker.prepared_at_s = now_s
            state.hosts.touch(host.host_id, worker)
            if choose_stage(state, event, host, worker, now_s)[0] > reached(worker):
                _order(state, event, host, worker, now_s)
            else:
                state.act(AnswerPreparation(event.request_id, worker.worker_id, host.host_id))
            return
    if own:
        _order(state, event, *own[0], now_s)
        return
    session = state.sessions.touch(event.session_id)
    wait_s = fork_wait_s(session, now_s)
    if wait_s:
        _skip(state, event.request_id, f"This notebook has needed new workers too often; the next in {wait_s:.0f} s.")
        return
    new_host, reason = _host_for_new(state, event, now_s)
    if new_host is None:
        _skip(state, event.request_id, reason)
    else:
        count_fork(session, now_s, state.limits)
        _order(state, event, new_host, None, now_s)


def _usable(
    state: State, event: PreparationRequested, workers: Iterable[tuple[Host, Worker]], now_s: float,
) -> list[tuple[Host, Worker]]:
    """Of a session's workers the idle ones on hosts that take work, the fittest first."""
    found = []
    gpu_bytes = wanted_gpu_bytes(state, event.recipe, now_s)
    for host, worker in workers:
        if not host.takes_work(now_s, state.limits) or not host.fits(event.recipe.gpu_count, gpu_bytes):
            continue
        if not worker.stage.ready or worker.evicting or worker.worker_id in state.leases.workers_in_use(host.host_id):
            continue
        if worker.gpu_indices and len(worker.gpu_indices) != event.recipe.gpu_count:
            continue
        found.append((host, worker))
    found.sort(key=lambda pair: (not pair[1].has_run, -pair[1].version, pair[1].worker_id))
    return found


def _host_for_new(state: State, event: PreparationRequested, now_s: float) -> tuple[Host | None, str]:
    """The host with most room, or None and a sentence for people."""

    def able(host_id: HostId) -> bool:
        host = state.rooms.host(host_id)
        return host.takes_work(now_s, state.limits) and host.fits(event.recipe.gpu_count, gpu_bytes)

    gpu_bytes = wanted_gpu_bytes(state, event.recipe, now_s)

    unfinished = [
        worker for host, worker in state.hosts.workers_of(event.session_id)
        if worker.speculative and not worker.evicting and host.takes_work(now_s, state.limits)]
    if unfinished:
        return None, "This notebook's other worker is not ready yet."
    state.rooms.refresh(now_s)
    best = state.rooms.for_new.first(able)
    if best is not None:
        return state.rooms.host(best), ""
    hosts = state.hosts.open_for_work(now_s)
    if not any(host.holds(event.recipe) for host in hosts):
        return None, _nowhere(hosts, event.recipe.gpu_count)
    _make_room(state, able, event, now_s)
    limit = state.limits.prepared_max_per_host
    return None, f"Every GPU host holds its {limit} prepared workers already; the oldest unused one gives way."


def _nowhere(hosts: list[Host], gpu_count: int) -> str:
    if any(host.gpu_count >= gpu_count for host in hosts):
        return "No connected host has enough GPU memory for this cell's variables."
    return "No GPU host is connected." if gpu_count == 1 else f"No connected host has {gpu_count} GPUs."


def _make_room(
    state: State, able: Callable[[HostId], bool], event: PreparationRequested, now_s: float,
) -> None:
    """Ends the longest expired speculative worker of another session, so that the next request finds room."""
    host_id = state.rooms.oldest_speculative.first(able)
    if host_id is None:
        return
    host = state.rooms.host(host_id)
    in_use = state.leases.workers_in_use(host_id)
    expired = [
        worker for worker in host.workers.values()
        if worker.speculative and worker.session_id != event.session_id and worker.worker_id not in in_use
        and now_s - worker.prepared_at_s >= state.limits.speculative_expiry_s
        and evictable(worker, host.heartbeats, now_s)]
    if expired:
        state.evict(host, min(expired, key=lambda worker: eviction_rank(worker, now_s, state.limits)), LeaseId(""))


def _order(state: State, event: PreparationRequested, host: Host, worker: Worker | None, now_s: float) -> None:
    worker_id = worker.worker_id if worker is not None else WorkerId("")
    stage, gpus = choose_stage(state, event, host, worker, now_s)
    state.speculation.totals.ordered += 1
    if stage is WorkerStage.DEVICE_READY:
        clear_gpus(state, host, gpus, worker)
    elif worker is None or worker.context_gpus != gpus:
        make_room(state, host, gpus, event.session_id, now_s, lambda other: demote(state, host, other))
    if worker is not None:
        worker.preparing = True
        if not worker.gpu_indices:
            # A Run that comes meanwhile goes there too.
            worker.context_gpus = gpus or worker.context_gpus
        state.hosts.touch(host.host_id, worker)
    data, context = (gpus, ()) if stage is WorkerStage.DEVICE_READY else ((), gpus)
    state.preparations.add(Preparation(
        event.request_id, event.session_id, event.epoch, event.recipe, host.host_id, host.incarnation, worker_id,
        data, context, [event.request_id],
    ))
    state.act(PrepareWorker(
        event.request_id, host.host_id, host.address, event.session_id, event.epoch, event.recipe, worker_id,
        stage, gpus,
    ))


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
        if not worker.stage.busy and event.worker_id not in state.leases.workers_in_use(host.host_id):
            worker.stage = worker.stage if worker.stage.ready else WorkerStage.HOST_READY
            demoted = _settle_on_gpus(state, worker, host, event, now_s)
            if (preparation.gpu_indices or preparation.context_gpus) and event.stage is WorkerStage.HOST_READY:
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
            demote(state, host, worker)


def _cell(recipe: RecipeFacts) -> tuple[str, Version]:
    """Which text at which version, however much more is known: a heartbeat tells only that."""
    return recipe.source_hash, recipe.version


def _settle_on_gpus(state: State, worker: Worker, host: Host, event: WorkerPrepared, now_s: float) -> bool:
    """Takes in where the worker is ready. True if its data must leave a device, since a lease has it meanwhile."""
    session = state.sessions.touch(worker.session_id)
    state.speculation.opened(worker, event.stage)
    worker.context_gpus = event.gpu_indices if event.stage is WorkerStage.CONTEXT_READY else ()
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
    if not worker.has_run and worker.worker_id not in state.speculation.parked:
        tenant = state.sessions.tenant(worker.session_id)
        state.speculation.parked[worker.worker_id] = Parked(
            host.host_id, worker.session_id, tenant, len(worker.gpu_indices), now_s)


def demote(state: State, host: Host, worker: Worker) -> None:
    """A speculative worker leaves its GPUs, with its context; what it holds in host memory stays ready."""
    assert worker.prepared is not None
    worker.preparing = True
    state.hosts.touch(host.host_id, worker)
    request_id = f"demote-{state.number}-{worker.worker_id}"
    epoch = state.sessions.epoch(worker.session_id)
    state.preparations.add(Preparation(
        request_id, worker.session_id, epoch, worker.prepared, host.host_id, host.incarnation, worker.worker_id))
    state.act(PrepareWorker(
        request_id, host.host_id, host.address, worker.session_id, epoch, worker.prepared, worker.worker_id,
        leave_device=True))


def demote_expired(state: State, now_s: float) -> None:
    """Data of cells that nobody types in any more leave the GPUs; marks those of tenants that hold too many."""
    tenants = {parked.tenant for parked in state.speculation.parked.values()}
    over = {name for name in tenants if state.speculation.gpus_of(name) > state.speculative_gpus_max(name)}
    for worker_id, parked in list(state.speculation.parked.items()):
        worker = state.hosts.worker(parked.host_id, worker_id)
        host = state.hosts.get(parked.host_id)
        if worker is None or host is None:
            # Its host no longer lists it.
            gone = Worker(worker_id, parked.session_id, WorkerStage.GONE)
            state.speculation.unpark(gone, state.sessions.touch(parked.session_id), now_s, used=False)
            continue
        if worker.over_share != (parked.tenant in over):
            worker.over_share = parked.tenant in over
            state.hosts.touch(host.host_id, worker)
        idle = not worker.evicting and worker.worker_id not in state.leases.workers_in_use(host.host_id)
        old = now_s - worker.prepared_at_s >= state.limits.speculative_expiry_s
        if idle and old and worker.prepared is not None and state.preparations.get(worker.session_id) is None:
            demote(state, host, worker)


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
        state.hosts.touch(preparation.host_id, worker)
    reason = f"The worker could not be prepared ({event.message or event.reason})."
    for waiter in preparation.waiters:
        _skip(state, waiter, reason)
    state.dirty = True
    _continue(state, preparation, now_s)


def host_lost(state: State, host: Host, now_s: float) -> None:
    """Preparations on a host whose daemon is gone come to nothing."""
    for preparation in state.preparations.on_host(host.host_id):
        state.preparations.take(preparation.request_id)
        waiters = [*preparation.waiters, *([preparation.successor.request_id] if preparation.successor else [])]
        for waiter in waiters:
            _skip(state, waiter, "The host of the worker was lost.")


def _continue(state: State, preparation: Preparation, now_s: float) -> None:
    if preparation.successor is not None:
        preparation_requested(state, preparation.successor, now_s)
