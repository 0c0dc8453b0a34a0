"""Protobuf messages as the worker protocol's maps, and the daemon's facts as protobuf messages."""

from __future__ import annotations

from typing import Any

from looseleaf.errors import InvalidArgument
from looseleaf.ids import SessionId
from looseleaf.protocol import fields
from looseleaf.recipe import Recipe
from looseleaf.rpc.recipes import recipe_from_proto
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.core.worker_life import WorkerFacts
from looseleaf.v1 import frontend_pb2, recipe_pb2, scheduler_pb2, types_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb

Body = dict[str, Any]

PATHS = {
    types_pb2.START_PATH_PREPARED: "prepared",
    types_pb2.START_PATH_WARM: "warm",
    types_pb2.START_PATH_COLD: "cold",
}


LEFT_STATES = {
    pb.LEFT_STATE_HELD: "held",
    pb.LEFT_STATE_ENDED: "ended",
    pb.LEFT_STATE_LIMIT: "limit",
    pb.LEFT_STATE_RELEASED: "released",
}


def recipe_body(recipe: recipe_pb2.ExecutionRecipe) -> Body:
    """The recipe as the kernel reads it; an empty label where there is none, as of a preparation that was skipped."""
    if recipe.label == types_pb2.DEVICE_LABEL_UNSPECIFIED:
        return {**Recipe().to_map(), "label": ""}
    return recipe_from_proto(recipe).to_map()


def left_body(news: pb.LeftNews) -> Body:
    """News of what a cell left running as the kernel reads it; whatever it does not know is the worker's loss."""
    return {
        "state": LEFT_STATES.get(news.state, "lost"),
        "items": [{"kind": item.kind, "name": item.name} for item in news.items],
        "limit_s": news.limit_s,
    }


def saved_body(saved: pb.CellSaved) -> Body:
    """The save's outcome as the kernel reads it."""
    figures = saved.figures
    return {
        "version": saved.version,
        "error_reason": saved.error_reason,
        "error_message": saved.error_message,
        "figures": {
            "prepare_ms": figures.prepare_ms,
            "start_ms": figures.start_ms,
            "run_s": figures.run_s,
            "save_ms": figures.save_ms,
            "dirty_regions": figures.dirty_regions,
            "total_regions": figures.total_regions,
            "bytes_moved": figures.bytes_moved,
            "gpu_held_s": figures.gpu_held_s,
            "gpu_pinned_s": figures.gpu_pinned_s,
            "gpu_resident_s": figures.gpu_resident_s,
        },
        "unsaved": [
            {"name": item.name, "reason": item.reason, "path": item.path, "here": item.here} for item in saved.unsaved
        ],
        "unsaved_kept_s": saved.unsaved_kept_s,
        "path": PATHS.get(saved.path, ""),
        "gpu_index": saved.gpu_index,
        "host_id": saved.host_id,
        "worker_id": saved.worker_id,
        "pid": saved.pid,
        "left_running": saved.left_running,
        "peak_device_bytes": saved.peak_device_bytes,
    }


def worker_state(facts: WorkerFacts, now_s: float) -> scheduler_pb2.WorkerState:
    """One worker in a heartbeat."""
    left_s = max(0.0, facts.held_until_s - now_s)
    hold = scheduler_pb2.UnsavedHold(names=sorted(facts.kept), left_s=left_s, epoch=facts.epoch)
    return scheduler_pb2.WorkerState(
        worker_id=facts.worker_id,
        session_id=facts.session_id,
        stage=scheduler_pb2.WorkerStage.Name(int(facts.stage)),
        version=facts.version,
        prepared_source_hash=facts.prepared_source_hash,
        gpu_indices=facts.gpus,
        execution_id=facts.execution_id,
        resident_bytes=facts.resident_bytes,
        pid=facts.pid,
        hold=hold if facts.kept else None,
        context_gpu_indices=facts.context_gpus,
    )


def lease_message(lease: HeldLease, host: types_pb2.HostAddress) -> types_pb2.Lease:
    """One lease in a heartbeat."""
    return types_pb2.Lease(
        lease_id=lease.lease_id,
        session_id=lease.session_id,
        epoch=lease.epoch,
        execution_id=lease.execution_id,
        host=host,
        gpu_indices=lease.gpus,
        worker_id=lease.worker_id or "",
        path=types_pb2.StartPath.Name(lease.path),
        ttl_ms=int(lease.ttl_s * 1000),
        worker_required=lease.worker_required,
    )


def cell_text(session_id: SessionId, body: Body) -> frontend_pb2.CellText:
    """The message's cell. Raises InvalidArgument `FIELD_MALFORMED`."""
    local_modules = fields.mapping(body, "local_modules", {})
    if not all(isinstance(path, str) for path in local_modules.values()):
        raise InvalidArgument("FIELD_MALFORMED", "a cell's local_modules must hold texts")
    return frontend_pb2.CellText(
        session_id=session_id,
        cell_id=fields.text(body, "cell_id", ""),
        source=fields.text(body, "source"),
        log_length=fields.integer(body, "log_length", 0),
        device_override=fields.text(body, "device_override", ""),
        environment_id=fields.text(body, "environment_id", ""),
        local_modules=local_modules,
    )
