"""Preparations: which worker is made ready for a cell before Run, without a GPU and without executing anything.

One prepare at a time and at most one speculative worker per session; while one is under way only the newest edit
waits. When there is no good place (`preparing_places`) the answer says why, and Run takes the cold path. How prepares
end is in `prepared`.
"""

from __future__ import annotations

import math

from looseleaf.ids import WorkerId
from looseleaf.services.scheduler.core.actions import AnswerPreparation, PrepareWorker
from looseleaf.services.scheduler.core.contexts import to_leave
from looseleaf.services.scheduler.core.demoting import demote
from looseleaf.services.scheduler.core.events import PreparationRequested
from looseleaf.services.scheduler.core.facts import WorkerStage
from looseleaf.services.scheduler.core.fencing import see_epoch
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.preparations import Preparation
from looseleaf.services.scheduler.core.preparing_places import place_for_new, usable_workers
from looseleaf.services.scheduler.core.refusals import stale_epoch
from looseleaf.services.scheduler.core.speculation import count_fork, fork_wait_s
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
            skip(state, event.request_id, "Too many callers wait for this preparation.")
    else:
        _supersede(state, current, event)


def _supersede(state: State, current: Preparation, newest: PreparationRequested | None) -> None:
    if current.successor is not None:
        skip(state, current.successor.request_id, "A newer edit took its place.")
    current.successor = newest


def skip(state: State, request_id: str, reason: str) -> None:
    """Answers that nothing is prepared, and why."""
    state.act(AnswerPreparation(request_id, skipped_reason=reason))


def _start(state: State, event: PreparationRequested, now_s: float) -> None:
    if not state.ready:
        skip(state, event.request_id, "The scheduler has just started and waits for its hosts.")
        return
    if state.leases.session_runs(event.session_id):
        skip(state, event.request_id, "This notebook's GPU cell is running; its worker can be prepared afterwards.")
        return
    workers = state.hosts.workers_of(event.session_id)
    end_stuck(state, event, workers, now_s)
    own = usable_workers(state, event, workers, now_s)
    for host, worker in own:
        if worker.prepared is not None and worker.prepared.covers(event.recipe):
            worker.prepared_at_s = now_s
            _note_edit(worker, event, now_s)
            state.speculation.contexts.type_in(worker.worker_id, now_s)
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
        skip(state, event.request_id, f"This notebook has needed new workers too often; the next in {wait_s:.0f} s.")
        return
    new_host, reason = place_for_new(state, event, now_s)
    if new_host is None:
        skip(state, event.request_id, reason)
    else:
        count_fork(session, now_s, state.limits)
        _order(state, event, new_host, None, now_s)


def _note_edit(worker: Worker, event: PreparationRequested, now_s: float) -> None:
    worker.edited_at_s = -math.inf if event.predicted else now_s


def _order(state: State, event: PreparationRequested, host: Host, worker: Worker | None, now_s: float) -> None:
    worker_id = worker.worker_id if worker is not None else WorkerId("")
    stage, gpus = choose_stage(state, event, host, worker, now_s)
    state.speculation.totals.ordered += 1
    if stage is WorkerStage.DEVICE_READY:
        clear_gpus(state, host, gpus, worker)
    elif worker is None or worker.context_gpus != gpus:
        for other in to_leave(state, host, gpus, event.session_id, now_s):
            # Two of one session may wait there, of which only one can be made ready at a time.
            if state.preparations.get(other.session_id) is None:
                demote(state, host, other, now_s)
    if worker is not None:
        worker.preparing = True
        _note_edit(worker, event, now_s)
        state.speculation.contexts.type_in(worker.worker_id, now_s)
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
