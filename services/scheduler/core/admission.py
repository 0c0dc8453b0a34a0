"""Requests for a run: who may ask, who joins whom, who waits, who leaves."""

from __future__ import annotations

from looseleaf.services.scheduler.core.actions import NotifyLease
from looseleaf.services.scheduler.core.endings import give_up, revoke
from looseleaf.services.scheduler.core.events import RunCancelled, RunRequested
from looseleaf.services.scheduler.core.facts import ExecutionRecord, ExecutionState
from looseleaf.services.scheduler.core.fencing import see_epoch
from looseleaf.services.scheduler.core.fitting import Capacity, wanted_gpu_bytes
from looseleaf.services.scheduler.core.journal import reopenable
from looseleaf.services.scheduler.core.leases import LeaseStatus
from looseleaf.services.scheduler.core.queue import PRIORITIES, Run, rank_s
from looseleaf.services.scheduler.core.refusals import (
    ended_error,
    id_reused,
    lease_withdrawn,
    over_tenant_quota,
    priority_unknown,
    queue_full,
    session_queue_full,
    stale_epoch,
    too_many_waiters,
)
from looseleaf.services.scheduler.core.state import State


def run_requested(state: State, event: RunRequested, now_s: float) -> None:
    """Journals the run and queues it; one that is known already is joined: same lease, same outcome."""
    if event.priority not in PRIORITIES:
        state.refuse(event.request_id, priority_unknown(event.priority))
        return
    record = state.journal.get(event.execution_id)
    if record is not None and record.session_id != event.session_id:
        state.refuse(event.request_id, id_reused(event.execution_id))
        return
    if not see_epoch(state, event.session_id, event.epoch, now_s):
        state.refuse(event.request_id, stale_epoch(event.epoch, state.sessions.epoch(event.session_id)))
        return
    state.see_tenant(event.session_id, event.tenant)
    # Seeing a newer epoch may have ended the execution.
    record = state.journal.get(event.execution_id)
    if record is not None and record.state.ended and not reopenable(record):
        state.refuse(event.request_id, ended_error(record))
    elif record is not None and not record.state.ended and _join(state, event, record, now_s):
        return
    else:
        _admit(state, event, record, now_s)


def _join(state: State, event: RunRequested, record: ExecutionRecord, now_s: float) -> bool:
    """True if the request was answered or waits with an earlier one; False: PENDING, but nobody waits for it."""
    run = state.runs.get(event.execution_id)
    if run is not None:
        if len(run.waiters) >= state.limits.waiters_per_run_max:
            state.refuse(event.request_id, too_many_waiters(state.limits.waiters_per_run_max))
        else:
            run.waiters.append(event.request_id)
            state.dirty = True
        return True
    entry = state.leases.of_execution(event.session_id, event.execution_id)
    if entry is not None and entry.status is LeaseStatus.HELD:
        if len(entry.recipients) < state.limits.waiters_per_run_max:
            entry.recipients.add(event.request_id)
        state.act(NotifyLease(event.request_id, entry.lease))
        return True
    if entry is not None and entry.status is LeaseStatus.RESTORED:
        # Its daemon has not confirmed it yet; the answer comes with its heartbeat.
        state.runs.add(_run(state, event, now_s))
        return True
    if record.state is ExecutionState.PENDING:
        return False
    state.refuse(event.request_id, lease_withdrawn(record))
    return True


def _run(state: State, event: RunRequested, now_s: float) -> Run:
    # A cell that needs a certain worker runs there or nowhere: what it may need beyond its variables does not count.
    needy = bool(event.need.worker_id)
    patient_bytes = event.recipe.gpu_bytes if needy else wanted_gpu_bytes(state, event.recipe, now_s)
    return Run(
        event.execution_id, event.session_id, event.epoch, event.recipe, event.priority, state.number, now_s,
        rank_s(now_s, event.priority, state.limits.batch_penalty_s), event.need, [event.request_id],
        tenant=event.tenant, patient_gpu_bytes=patient_bytes,
    )


def _admit(state: State, event: RunRequested, record: ExecutionRecord | None, now_s: float) -> None:
    if len(state.runs) >= state.limits.run_queue_max:
        state.refuse(event.request_id, queue_full(state.limits.run_queue_max))
        return
    if len(state.runs.of_session(event.session_id)) >= state.limits.runs_per_session_max:
        state.refuse(event.request_id, session_queue_full(state.limits.runs_per_session_max))
        return
    if 0 < state.limits.tenant_gpus_max < event.recipe.gpu_count:
        state.refuse(event.request_id, over_tenant_quota(event.recipe.gpu_count, state.limits.tenant_gpus_max))
        return
    misfit = Capacity(state, now_s).never_fits(event.recipe) if state.ready else None
    if misfit is not None:
        state.refuse(event.request_id, misfit)
        return
    if record is None or record.state.ended:
        state.write(state.journal.open(event.execution_id, event.session_id, event.epoch))
    state.queue.put(state.runs.add(_run(state, event, now_s)))
    state.dirty = True


def run_cancelled(state: State, event: RunCancelled, now_s: float) -> None:
    """One caller left. If nobody waits any more the run leaves the queue, or its lease is taken back."""
    run = state.runs.get(event.execution_id)
    record = state.journal.get(event.execution_id)
    if record is None:
        return
    entry = state.leases.of_execution(record.session_id, event.execution_id)
    if run is None:
        if entry is not None and event.request_id in entry.recipients:
            entry.recipients.discard(event.request_id)
            if not entry.recipients and record.state is ExecutionState.DISPATCHED:
                revoke(state, entry, now_s, ExecutionState.FAILED, "CANCELLED")
        return
    if event.request_id not in run.waiters:
        return
    run.waiters.remove(event.request_id)
    run.told.pop(event.request_id, None)
    if run.waiters:
        return
    if entry is not None and entry.status is LeaseStatus.RESTORED:
        state.runs.pop(event.execution_id)
        return
    give_up(state, run, entry, now_s, "CANCELLED")
