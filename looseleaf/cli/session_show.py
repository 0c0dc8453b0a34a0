"""`looseleaf session show`: one saved session at a glance, from the store and the pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from looseleaf.cli.options import DataOption, JsonOption, SessionArgument, TimeoutOption, print_json, resolve_address

UNSAVED_SHOWN_MAX: Final = 5


def show(
    session_id: SessionArgument, data: DataOption = None, as_json: JsonOption = False, timeout_s: TimeoutOption = 10.0,
) -> None:
    """Show a session: its newest version, what is saved of it, and which workers hold it."""
    from looseleaf.ids import check_id

    check_id("session", session_id)
    found = gather(session_id, data, timeout_s)
    if as_json:
        print_json(found)
        return
    for key, text in _lines(found).items():
        print(f"{key:<11}{text}")


def gather(session_id: str, data: Path | None, timeout_s: float) -> dict[str, Any]:
    """What `--json` prints; raises NotFound `SESSION_UNKNOWN`."""
    from looseleaf.checkpoint.manifest import Manifest, decode_manifest
    from looseleaf.cli.options import message_to_dict, wait
    from looseleaf.cli.session import ask_store
    from looseleaf.ids import SessionId
    from looseleaf.local.probe import get_pool
    from looseleaf.v1 import checkpoint_store_pb2 as pb

    async def ask(store: Any) -> tuple[Any, Any]:
        got = await store.GetManifest(pb.GetManifestRequest(session_id=session_id), timeout_s=timeout_s)
        kept = await store.ListVersions(pb.ListVersionsRequest(session_id=session_id), timeout_s=timeout_s)
        return got, kept

    answer, kept = ask_store(data, ask)
    manifest = decode_manifest(answer.manifest) if answer.manifest else Manifest(SessionId(session_id))
    pool = message_to_dict(wait(get_pool(resolve_address("scheduler", data), timeout_s)))
    head = answer.head
    return {
        "session_id": session_id, "title": head.title, "tenant": head.tenant, "epoch": head.epoch,
        "version": head.version, "durable_version": head.durable_version, "versions_kept": len(kept.versions),
        "created_unix_ms": head.created_unix_ms, "updated_unix_ms": head.updated_unix_ms,
        "variables": len(manifest.roots), "logical_bytes": manifest.logical_bytes(),
        "unsaved": [entry.name for entry in manifest.unsaved],
        "workers": [
            {"worker_id": worker["worker_id"], "host_id": host["host"]["host_id"],
             "stage": worker["stage"].removeprefix("WORKER_STAGE_").lower(), "gpu_indices": worker["gpu_indices"]}
            for host in pool["hosts"] for worker in host["workers"] if worker["session_id"] == session_id
        ],
    }  # fmt: skip


def _lines(found: dict[str, Any]) -> dict[str, str]:
    from looseleaf.cli.session import when
    from looseleaf.units import format_bytes

    unsaved = found["unsaved"]
    more = f" and {len(unsaved) - UNSAVED_SHOWN_MAX} more" if len(unsaved) > UNSAVED_SHOWN_MAX else ""
    workers = [f"{worker['worker_id']} on {worker['host_id']}, {worker['stage']}" for worker in found["workers"]]
    return {
        "session": found["session_id"],
        "title": found["title"] or "-",
        "version": f"{found['version']}, durable {found['durable_version']}, {found['versions_kept']} kept",
        "changed": f"{when(str(found['updated_unix_ms']))}, made {when(str(found['created_unix_ms']))}",
        "variables": f"{found['variables']}, {format_bytes(found['logical_bytes'])}",
        "not saved": (", ".join(unsaved[:UNSAVED_SHOWN_MAX]) + more) or "-",
        "workers": "; ".join(workers) or "-",
        "tenant": f"{found['tenant']}, epoch {found['epoch']}",
    }
