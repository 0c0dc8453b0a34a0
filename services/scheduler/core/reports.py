"""A daemon's word about a run: the journal moves on, the GPU comes back."""

from __future__ import annotations

from looseleaf.errors import InvalidArgument, NotFound, PreconditionFailed
from looseleaf.ids import ExecutionId
from looseleaf.services.scheduler.core.accounting import unseen_gpu_s
from looseleaf.services.scheduler.core.actions import AnswerReport
from looseleaf.services.scheduler.core.endings import end_lease, finish
from looseleaf.services.scheduler.core.events import ExecutionReported
from looseleaf.services.scheduler.core.facts import (
    ExecutionRecord,
    ExecutionState,
    Figures,
    WorkerReport,
    WorkerStage,
)
from looseleaf.services.scheduler.core.hosts import Worker
from looseleaf.services.scheduler.core.leases import LeaseEntry
from looseleaf.services.scheduler.core.state import State

_STAGES = {
    ExecutionState.STARTED: WorkerStage.RUNNING,
    ExecutionState.FINISHED: WorkerStage.SAVING,
    ExecutionState.SAVED: WorkerStage.COMPLETED,
    ExecutionState.FAILED: WorkerStage.COMPLETED,
    ExecutionState.INDETERMINATE: WorkerStage.COMPLETED,
}


def execution_reported(state: State, event: ExecutionReported, now_s: float) -> None:
    """Journals the report. Repeats and reports that come late change nothing; a superseded lease is only freed.

    Progress under a lease that was given up waits for the heartbeat that brings the lease back; an end counts at once.
    """
    record = state.journal.get(event.execution_id)
    entry = state.leases.get(event.lease_id)
    if event.state not in _STAGES or (event.release and not event.state.ended):
        state.refuse(event.request_id, InvalidArgument(
            "STATE_NOT_REPORTABLE", f"A daemon reports STARTED or later, and releases a lease with an end, not with"
            f" {event.state.name}.", state=event.state.name, release=event.release,
        ))
        return
    mine = record is not None and event.lease_id == (record.lease.lease_id if record.lease is not None else "")
    if record is None or not mine:
        if entry is not None and event.release and entry.lease.execution_id == event.execution_id:
            end_lease(state, entry, now_s)
        _refuse(state, event, record)
        return
    if event.state.ended or entry is not None:
        _advance(state, event, record)
    if entry is not None:
        # A lease that is given back unused did nothing to the worker that it names.
        if event.worker is not None or event.state is not ExecutionState.FAILED or record.state.began:
            _touch_worker(state, event, entry, now_s)
        if event.release:
            end_lease(state, entry, now_s)
    if event.figures is not None:
        _take_figures(state, event.execution_id, event.figures)
    state.act(AnswerReport(event.request_id))


def _take_figures(state: State, execution_id: ExecutionId, figures: Figures) -> None:
    record = state.journal.add_figures(execution_id, figures)
    unseen = unseen_gpu_s(record) if record is not None and state.released(execution_id) else 0.0
    if unseen:
        record = state.journal.add_held(execution_id, state.accounts.add(unseen))
        state.write_totals()
    state.write(record)


def _advance(state: State, event: ExecutionReported, record: ExecutionRecord) -> None:
    if event.state.ended:
        finish(state, record, event.state, event.reason)
    else:
        state.write(state.journal.advance(event.execution_id, event.state, event.reason))
    state.dirty = True


def _refuse(state: State, event: ExecutionReported, record: ExecutionRecord | None) -> None:
    if record is None:
        state.refuse(event.request_id, NotFound(
            "EXECUTION_UNKNOWN", "The journal does not hold this execution (any more); its lease, if any, is free.",
        ))
        return
    state.refuse(event.request_id, PreconditionFailed(
        "LEASE_SUPERSEDED", "Another lease stands for this execution: the report changes nothing but frees this one.",
        state=record.state.name,
    ))


def _touch_worker(state: State, event: ExecutionReported, entry: LeaseEntry, now_s: float) -> None:
    """Keeps the view of the worker up to date between heartbeats, so that a warm worker can be used at once."""
    host = state.hosts.get(entry.lease.host_id)
    if host is None or not host.alive:
        return
    told = event.worker
    worker_id = told.worker_id if told is not None else entry.lease.worker_id
    worker = host.workers.get(worker_id)
    if told is None and worker is None:
        worker = next((w for w in host.workers.values() if w.execution_id == event.execution_id), None)
    if worker is None and told is not None and told.stage is not WorkerStage.GONE:
        worker = host.workers[worker_id] = Worker(worker_id, entry.lease.session_id, told.stage)
    if worker is None:
        return
    if told is not None and told.stage is WorkerStage.GONE:
        state.lose_worker(host.workers.pop(worker_id), now_s)
        state.hosts.touch(host.host_id, worker)
        return
    _set_worker(worker, event, entry, told, now_s)
    state.hosts.touch(host.host_id, worker)
    state.greedy.touch(worker, state.sessions.touch(entry.lease.session_id).frequency)


def _set_worker(
    worker: Worker, event: ExecutionReported, entry: LeaseEntry, told: WorkerReport | None, now_s: float,
) -> None:
    if told is not None:
        worker.version, worker.resident_bytes, worker.pid = told.version, told.resident_bytes, told.pid
        worker.gpu_indices = told.gpu_indices
        worker.take_hold(told.hold, now_s)
    else:
        worker.gpu_indices = entry.lease.gpu_indices
    if event.figures is not None and event.figures.prepare_ms:
        worker.prepare_ms = event.figures.prepare_ms
    worker.execution_id = event.execution_id
    worker.stage = _STAGES[event.state] if told is None or event.state.ended else told.stage
    worker.has_run = True
    worker.unsettle()
