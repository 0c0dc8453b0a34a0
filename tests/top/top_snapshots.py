"""Snapshots as the services give them, small."""

from __future__ import annotations

from typing import Any

NOW_MS = 1_800_000_000_000


def lease(execution: str, session: str, *gpus: int, path: str = "WARM") -> dict[str, Any]:
    return {"execution_id": execution, "session_id": session, "gpu_indices": list(gpus), "path": f"START_PATH_{path}"}


def worker(worker_id: str, session: str, stage: str, *gpus: int, execution: str = "", size: int = 0) -> dict[str, Any]:
    return {
        "worker_id": worker_id, "session_id": session, "stage": f"WORKER_STAGE_{stage}", "gpu_indices": list(gpus),
        "execution_id": execution, "resident_bytes": str(size),
    }  # fmt: skip


def host(host_id: str, gpus: int, *, liveness: str = "alive", **parts: Any) -> dict[str, Any]:
    return {
        "host": {"host_id": host_id, "address": f"unix:/{host_id}"}, "gpu_count": gpus, "device_kind": "emulated",
        "liveness": liveness, "workers": [], "leases": [], "gpu_memory_bytes": str(16 << 30), **parts,
    }  # fmt: skip


def ended(execution: str, state: str = "SAVED", **figures: float) -> dict[str, Any]:
    run = {"execution_id": execution, "session_id": "s-1", "state": f"EXECUTION_STATE_{state}", "reason": "",
           "lease": lease(execution, "s-1", 0, path="PREPARED")}  # fmt: skip
    return {**run, "figures": {"start_ms": 0.0, "prepare_ms": 0.0, "run_s": 0.0, "save_ms": 0.0, **figures}}


def snapshot(**parts: Any) -> dict[str, Any]:
    """One host with two GPUs, on which nothing happens, and an empty store, but for `parts`."""
    pool = {"hosts": [host("h0", 2)], "queued_runs": 0, "gpu_held_s": 0.0, "ready": True, "queue": [], "ended": []}
    told = {
        "zygote_pids": [11], "zygote_imports": ["torch", "torch.nn.functional", "numpy"], "kernels": 1,
        "arena_used_bytes": str(4 << 20), "arena_limit_bytes": str(8 << 20),
    }  # fmt: skip
    store = {"used_bytes": "1024", "bytes_max": str(1 << 30), "sessions": "0", "regions_damaged": "0"}
    whole = {
        "taken_unix_ms": NOW_MS, "pool": pool, "hosts": {"h0": told}, "sessions": [], "store": store, "problems": [],
    }  # fmt: skip
    pool.update(parts.pop("pool", {}))
    return {**whole, **parts}


NOTHING: dict[str, Any] = {
    "taken_unix_ms": NOW_MS, "pool": None, "hosts": {}, "sessions": None, "store": None,
    "problems": ["SCHEDULER_DOWN: the scheduler does not answer"],
}  # fmt: skip
