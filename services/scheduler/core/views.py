"""The pool as people see it; a copy, so that it can be read while the state goes on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice

from looseleaf.devices.description import GpuDescription
from looseleaf.ids import ExecutionId, HostId, SessionId
from looseleaf.services.scheduler.core.facts import ExecutionRecord, Lease, WorkerReport
from looseleaf.services.scheduler.core.fairness import in_turn
from looseleaf.services.scheduler.core.hosts import Worker
from looseleaf.services.scheduler.core.queue import Run
from looseleaf.services.scheduler.core.speculation import SpeculationTotals
from looseleaf.services.scheduler.core.stages import reached
from looseleaf.services.scheduler.core.state import State


@dataclass(frozen=True, slots=True)
class HostView:
    """One host. `liveness` is "alive", "suspect", "dead" or "draining"."""

    host_id: HostId
    address: str
    gpu_count: int
    device_kind: str
    heartbeat_age_s: float
    liveness: str
    workers: tuple[WorkerReport, ...]
    leases: tuple[Lease, ...]
    gpu: GpuDescription | None = None
    gpu_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class QueuedView:
    """A run that waits. `reason`: as its callers were told last, empty before that."""

    execution_id: ExecutionId
    session_id: SessionId
    position: int
    reason: str
    priority: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class PoolView:
    """The pool. `held_gpu_s` counts GPU-seconds of leases since the first start, running ones included."""

    hosts: tuple[HostView, ...]
    queued_runs: int
    held_gpu_s: float
    ready: bool
    queue: tuple[QueuedView, ...] = ()
    ended: tuple[ExecutionRecord, ...] = ()
    booting_hosts: int = 0
    # GPU-seconds by state, and preparations, of this process.
    provisioned_gpu_s: tuple[tuple[str, float], ...] = ()
    speculation: SpeculationTotals = field(default_factory=SpeculationTotals)


def pool_view(state: State, now_s: float, queue_max: int = 0, ended_max: int = 0) -> PoolView:
    """A snapshot at `now_s`, hosts ordered by id, with as many waiting and ended runs as are asked for."""
    hosts = tuple(
        HostView(
            host.host_id, host.address, host.gpu_count, host.device_kind, max(0.0, now_s - host.last_seen_s),
            host.liveness(now_s, state.limits).value,
            tuple(_worker_view(worker, now_s) for worker in sorted(host.workers.values(), key=lambda w: w.worker_id)),
            tuple(entry.lease for entry in state.leases.on_host(host.host_id)), host.gpu, host.gpu_memory_bytes,
        )
        for host in state.hosts
    )
    waiting = islice(in_turn(state.queue, state.shares, state.limits, now_s, state.leases.session_runs), queue_max)
    queue = tuple(_queued_view(run, place, now_s) for place, run in enumerate(waiting, start=1))
    return PoolView(
        hosts, len(state.queue), state.accounts.held_gpu_s(state.leases, now_s), state.ready, queue,
        tuple(state.journal.newest_ended(ended_max)), state.boots.count, tuple(state.provisioned.gpu_s.items()),
        replace(state.speculation.totals),
    )


def _queued_view(run: Run, position: int, now_s: float) -> QueuedView:
    reasons = [reason for _position, reason in run.told.values()]
    return QueuedView(
        run.execution_id, run.session_id, position, reasons[-1] if reasons else "", run.priority,
        max(0.0, now_s - run.arrived_at_s),
    )


def _worker_view(worker: Worker, now_s: float) -> WorkerReport:
    prepared = worker.prepared.source_hash if worker.prepared is not None else ""
    # Of an idle worker it is what placing does not tell apart.
    idle = worker.speculative and worker.stage.ready and not worker.preparing
    stage = reached(worker) if idle else worker.stage
    return WorkerReport(
        worker.worker_id, worker.session_id, stage, worker.version, prepared, worker.gpu_indices,
        worker.execution_id, worker.resident_bytes, worker.pid,
        replace(worker.hold, left_s=max(0.0, worker.held_until_s - now_s)) if worker.hold is not None else None,
        worker.context_gpus if not worker.preparing else (),
    )
