"""Heartbeats merged with what the scheduler was told in between.

A heartbeat may have been composed before the last order reached the daemon. So a worker that was touched since
(`settled` False) keeps its state over one heartbeat, and a missing one counts as gone only after
`missed_heartbeats_max` in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field

from looseleaf.ids import ExecutionId
from looseleaf.services.scheduler.core.facts import HostReport, RecipeFacts, WorkerReport, WorkerStage
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.limits import Limits


def supersede(host: Host, report: HostReport, limits: Limits) -> None:
    """The daemon was started anew: its workers are gone, its old incarnation is remembered as old."""
    host.past_incarnations.append(host.incarnation)
    while len(host.past_incarnations) > limits.incarnations_max:
        host.past_incarnations.popleft()
    host.incarnation = report.incarnation
    # The count of heartbeats goes on, since others remember numbers of it.
    host.alive = False
    host.unresponsive_until = 0
    host.workers.clear()


@dataclass(slots=True)
class Merge:
    """What a snapshot changed: workers that completed a cell or are gone; whether a run that waits may fit now."""

    completed: list[Worker] = field(default_factory=list)
    gone: list[Worker] = field(default_factory=list)
    # Found with data on GPUs that the daemon holds no lease for.
    parked: list[Worker] = field(default_factory=list)
    # Found with a context that it only waits with.
    opened: list[Worker] = field(default_factory=list)
    changed: bool = False
    # Something else that an index of the host's room knows changed.
    touched: bool = False


def merge_report(
    host: Host, report: HostReport, now_s: float, event_number: int, limits: Limits,
    released: Callable[[ExecutionId], bool], taken: Set[int] = frozenset(),
) -> Merge:
    """Takes a snapshot in. `taken`: GPUs that leases hold or preparations are to lie on.

    `released(execution_id)` is True if that execution ended and gave its GPU back: a worker that the snapshot
    shows running it has completed since.
    """
    host.address, host.gpu_count, host.device_kind = report.address, report.gpu_count, report.device_kind
    host.gpu_memory_bytes, host.draining, host.gpu = report.gpu_memory_bytes, report.draining, report.gpu
    host.last_seen_s, host.alive, host.awaited, host.staged_sessions = now_s, True, False, report.staged_sessions
    host.heartbeats += 1
    host.clean_heartbeats = 0 if report.leases or report.staged_sessions else host.clean_heartbeats + 1
    merge = Merge()
    if report.gpu_used_bytes:
        bound = {index for worker in host.workers.values() for index in (*worker.gpu_indices, *worker.context_gpus)}
        told_of = {index for told in report.workers for index in (*told.gpu_indices, *told.context_gpus)}
        ours = bound | told_of | taken
        merge.changed = host.foreign.measured(report.gpu_used_bytes, ours, now_s, limits.gpu_settle_s)
    leased = {index for lease in report.leases for index in lease.gpu_indices}
    seen = set()
    for told in report.workers:
        if told.stage is WorkerStage.GONE:
            continue
        seen.add(told.worker_id)
        worker = host.workers.get(told.worker_id)
        if worker is None:
            # What it was prepared for may be under way: to be expired it must be seen for that long.
            worker = host.workers[told.worker_id] = Worker(
                told.worker_id, told.session_id, WorkerStage.UNSPECIFIED, prepared_at_s=now_s)
            merge.changed = True
        worker.missing = 0
        if not worker.settled:
            worker.settled = True
            continue
        same = worker.merged is told or worker.merged == told
        if same and told.hold is None and not told.stage.busy:
            continue
        _update(worker, told, leased, now_s, event_number, released, merge)
    if len(seen) < len(host.workers):
        for worker in list(host.workers.values()):
            if worker.worker_id not in seen:
                worker.missing += 1
                if worker.missing >= limits.missed_heartbeats_max:
                    merge.gone.append(host.workers.pop(worker.worker_id))
                    merge.changed = True
    return merge


def _update(
    worker: Worker, told: WorkerReport, leased: set[int], now_s: float, event_number: int,
    released: Callable[[ExecutionId], bool], merge: Merge,
) -> None:
    worker.merged = told
    stage = told.stage
    if worker.parked or stage is WorkerStage.DEVICE_READY:
        was_parked, worker.parked = worker.parked, stage is WorkerStage.DEVICE_READY and leased.isdisjoint(
            told.gpu_indices)
        if worker.parked:
            stage = WorkerStage.CONTEXT_READY
            if not was_parked:
                merge.parked.append(worker)
    if stage.busy and told.execution_id and released(told.execution_id):
        stage = WorkerStage.COMPLETED
    if stage is WorkerStage.COMPLETED and worker.stage is not WorkerStage.COMPLETED:
        merge.completed.append(worker)
    before = (worker.session_id, worker.stage, worker.gpu_indices, now_s < worker.held_until_s)
    worker.session_id, worker.stage, worker.version = told.session_id, stage, told.version
    worker.gpu_indices, worker.execution_id = told.gpu_indices, told.execution_id
    # One that was told once is there as long as the process.
    worker.context_gpus = () if told.gpu_indices else told.context_gpus or worker.context_gpus
    if worker.context_gpus and told.context_gpus and not worker.preparing:
        merge.opened.append(worker)
    worker.resident_bytes, worker.pid = told.resident_bytes, told.pid
    held = worker.hold is not None
    worker.take_hold(told.hold, now_s)
    if before != (worker.session_id, worker.stage, worker.gpu_indices, now_s < worker.held_until_s):
        merge.changed = True
    speculative = (worker.has_run, worker.prepared_at_s)
    # The execution id outlives the cell: a completed worker that is prepared again is host_ready.
    worker.has_run = worker.has_run or stage.busy or stage is WorkerStage.COMPLETED or bool(told.execution_id)
    if not told.prepared_source_hash:
        worker.prepared = None
    elif stage.ready and (worker.prepared is None or worker.prepared.source_hash != told.prepared_source_hash):
        worker.prepared = RecipeFacts(told.prepared_source_hash, told.version, exact=False)
        worker.prepared_at, worker.prepared_at_s = event_number, now_s
    merge.touched = merge.touched or held != (worker.hold is not None) or speculative != (
        worker.has_run, worker.prepared_at_s)
