"""Between the wire's messages and the core's facts; ids are checked here, once."""

from __future__ import annotations

from dataclasses import asdict

from looseleaf.devices.description import GpuDescription, of_message
from looseleaf.errors import InvalidArgument
from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, Version, WorkerId, check_id
from looseleaf.services.scheduler.core.facts import (
    EndedHolder,
    ExecutionRecord,
    ExecutionState,
    Figures,
    Hold,
    HostReport,
    Lease,
    Need,
    RecipeFacts,
    StartPath,
    WorkerReport,
    WorkerStage,
)
from looseleaf.services.scheduler.core.views import HostView, PoolView, QueuedView
from looseleaf.v1 import recipe_pb2, scheduler_pb2, types_pb2

# The largest gang that a request may name; far above any host.
GPUS_PER_CELL_MAX = 1024


def recipe_facts(recipe: recipe_pb2.ExecutionRecipe) -> RecipeFacts:
    """What placement needs; raises InvalidArgument RECIPE_MALFORMED."""
    if recipe.gpu_count > GPUS_PER_CELL_MAX:
        raise InvalidArgument("RECIPE_MALFORMED", f"A cell cannot ask for {recipe.gpu_count} GPUs.")
    return RecipeFacts(
        recipe.source_hash, Version(recipe.version), frozenset(recipe.names), frozenset(recipe.imports),
        max(1, recipe.gpu_count), recipe.device_bytes, environment_id=recipe.environment_id,
        peak_bytes=recipe.peak_bytes,
    )


def check_session(session_id: str) -> SessionId:
    """Raises InvalidArgument ID_MALFORMED."""
    return SessionId(check_id("session", session_id))


def check_execution(execution_id: str) -> ExecutionId:
    """Raises InvalidArgument ID_MALFORMED."""
    return ExecutionId(check_id("execution", execution_id))


def lease_message(lease: Lease) -> types_pb2.Lease:
    """The lease as it travels."""
    return types_pb2.Lease(
        lease_id=lease.lease_id, session_id=lease.session_id, epoch=lease.epoch, execution_id=lease.execution_id,
        host=types_pb2.HostAddress(host_id=lease.host_id, address=lease.address), gpu_indices=lease.gpu_indices,
        worker_id=lease.worker_id, path=types_pb2.StartPath.Name(lease.path), ttl_ms=lease.ttl_ms,
        worker_required=lease.worker_required,
    )


def lease_facts(lease: types_pb2.Lease) -> Lease:
    """The inverse; raises InvalidArgument ID_MALFORMED, HEARTBEAT_MALFORMED."""
    if len(set(lease.gpu_indices)) != len(lease.gpu_indices):
        raise InvalidArgument("HEARTBEAT_MALFORMED", f"Lease {lease.lease_id} names a GPU twice.")
    return Lease(
        LeaseId(check_id("lease", lease.lease_id)), SessionId(lease.session_id), Epoch(lease.epoch),
        ExecutionId(lease.execution_id), HostId(lease.host.host_id), lease.host.address, tuple(lease.gpu_indices),
        WorkerId(lease.worker_id), _path(lease.path), lease.ttl_ms, lease.worker_required,
    )


def _path(number: int) -> StartPath:
    return StartPath(number) if number in StartPath._value2member_map_ else StartPath.UNSPECIFIED


def worker_facts(worker: scheduler_pb2.WorkerState) -> WorkerReport:
    """One worker of a heartbeat or of a report."""
    return WorkerReport(
        WorkerId(check_id("worker", worker.worker_id)), SessionId(worker.session_id), _stage(worker.stage),
        Version(worker.version), worker.prepared_source_hash, tuple(worker.gpu_indices),
        ExecutionId(worker.execution_id), worker.resident_bytes, worker.pid,
        _hold(worker.hold) if worker.HasField("hold") else None, tuple(worker.context_gpu_indices),
    )


def _hold(hold: scheduler_pb2.UnsavedHold) -> Hold:
    return Hold(tuple(hold.names), hold.left_s, Epoch(hold.epoch))


def _stage(number: int) -> WorkerStage:
    # A newer daemon may know more stages: what we cannot name is neither evicted nor given a cell.
    return WorkerStage(number) if number in WorkerStage._value2member_map_ else WorkerStage.RUNNING


def worker_message(worker: WorkerReport) -> scheduler_pb2.WorkerState:
    """The inverse."""
    return scheduler_pb2.WorkerState(
        worker_id=worker.worker_id, session_id=worker.session_id, stage=scheduler_pb2.WorkerStage.Name(worker.stage),
        version=worker.version, prepared_source_hash=worker.prepared_source_hash, gpu_indices=worker.gpu_indices,
        execution_id=worker.execution_id, resident_bytes=worker.resident_bytes, pid=worker.pid,
        hold=_hold_message(worker.hold) if worker.hold is not None else None,
        context_gpu_indices=worker.context_gpus,
    )


def _hold_message(hold: Hold) -> scheduler_pb2.UnsavedHold:
    return scheduler_pb2.UnsavedHold(names=hold.names, left_s=hold.left_s, epoch=hold.epoch)


def need_facts(request: scheduler_pb2.RequestRunRequest) -> Need:
    """The worker that the run needs and why."""
    return Need(WorkerId(request.needed_worker_id), tuple(request.needed_names))


def host_report(request: scheduler_pb2.HeartbeatRequest) -> HostReport:
    """A heartbeat; raises InvalidArgument ID_MALFORMED, HEARTBEAT_MALFORMED."""
    if not request.incarnation or not request.host.address:
        raise InvalidArgument("HEARTBEAT_MALFORMED", "A heartbeat needs the host's address and incarnation.")
    return HostReport(
        HostId(check_id("host", request.host.host_id)), request.host.address, request.incarnation, request.gpu_count,
        request.device_kind, tuple(worker_facts(worker) for worker in request.workers),
        tuple(lease_facts(lease) for lease in request.leases), request.draining, request.gpu_memory_bytes,
        tuple(EndedHolder(WorkerId(ended.worker_id), ended.why, ended.ended_s_ago) for ended in request.ended_holders),
        gpu_facts(request.gpu) if request.HasField("gpu") else None, request.staged_sessions,
        tuple(request.gpu_used_bytes),
    )


def gpu_facts(gpu: scheduler_pb2.GpuDescription) -> GpuDescription:
    """What a host says its GPUs are."""
    return of_message({field.name: getattr(gpu, field.name) for field in gpu.DESCRIPTOR.fields})


def figures_facts(figures: scheduler_pb2.ExecutionFigures) -> Figures:
    """Figures as the daemon measured them."""
    return Figures(
        figures.prepare_ms, figures.start_ms, figures.run_s, figures.save_ms, figures.dirty_regions,
        figures.total_regions, figures.bytes_moved, figures.gpu_held_s, figures.gpu_pinned_s, figures.gpu_resident_s,
    )


def figures_message(figures: Figures) -> scheduler_pb2.ExecutionFigures:
    """The inverse."""
    return scheduler_pb2.ExecutionFigures(
        prepare_ms=figures.prepare_ms, start_ms=figures.start_ms, run_s=figures.run_s, save_ms=figures.save_ms,
        dirty_regions=figures.dirty_regions, total_regions=figures.total_regions, bytes_moved=figures.bytes_moved,
        gpu_held_s=figures.gpu_held_s, gpu_pinned_s=figures.gpu_pinned_s, gpu_resident_s=figures.gpu_resident_s,
    )


def execution_message(record: ExecutionRecord) -> scheduler_pb2.GetExecutionResponse:
    """What people are told of an execution."""
    return scheduler_pb2.GetExecutionResponse(
        execution_id=record.execution_id, session_id=record.session_id,
        state=scheduler_pb2.ExecutionState.Name(record.state), reason=record.reason,
        lease=lease_message(record.lease) if record.lease is not None else None,
        figures=figures_message(record.figures) if record.figures is not None else None,
    )


def reported_state(state: int) -> ExecutionState:
    """Raises InvalidArgument STATE_UNKNOWN for a number that this version does not know."""
    try:
        return ExecutionState(state)
    except ValueError as error:
        raise InvalidArgument("STATE_UNKNOWN", f"{state} is no execution state of this version.") from error


def pool_message(pool: PoolView) -> scheduler_pb2.GetPoolResponse:
    """The pool for people."""
    return scheduler_pb2.GetPoolResponse(
        hosts=[_host_message(host) for host in pool.hosts], queued_runs=pool.queued_runs, gpu_held_s=pool.held_gpu_s,
        ready=pool.ready, queue=[_queued_message(run) for run in pool.queue],
        ended=[execution_message(record) for record in pool.ended], booting_hosts=pool.booting_hosts,
        provisioned=[scheduler_pb2.GpuTime(state=state, gpu_s=gpu_s) for state, gpu_s in pool.provisioned_gpu_s],
        speculation=scheduler_pb2.SpeculationTotals(**asdict(pool.speculation)),
    )


def _queued_message(run: QueuedView) -> scheduler_pb2.QueuedRun:
    return scheduler_pb2.QueuedRun(
        execution_id=run.execution_id, session_id=run.session_id, position=run.position, reason=run.reason,
        priority=run.priority, waited_s=run.waited_s,
    )


def _host_message(host: HostView) -> scheduler_pb2.HostState:
    return scheduler_pb2.HostState(
        host=types_pb2.HostAddress(host_id=host.host_id, address=host.address), gpu_count=host.gpu_count,
        device_kind=host.device_kind, heartbeat_age_s=host.heartbeat_age_s, liveness=host.liveness,
        workers=[worker_message(worker) for worker in host.workers],
        leases=[lease_message(lease) for lease in host.leases],
        gpu=scheduler_pb2.GpuDescription(**host.gpu.message()) if host.gpu is not None else None,
        gpu_memory_bytes=host.gpu_memory_bytes,
    )
