"""`looseleaf queue`, `hosts` and `workers`: the scheduler's view."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import typer

from looseleaf.cli.options import DataOption, JsonOption, example, print_json, print_table, resolve_address, wait

KEPT_NAMES_SHOWN_MAX: Final = 3


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command(epilog=example("queue"))(queue)
    app.command(epilog=example("hosts --json"))(hosts)
    app.command(epilog=example("workers"))(workers)


def queue(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Show how many runs wait and which hold a GPU."""
    pool = _pool(data)
    leases = [{"host_id": host["host"]["host_id"], **lease} for host in pool["hosts"] for lease in host["leases"]]
    if as_json:
        print_json({"queued_runs": pool["queued_runs"], "gpu_held_s": pool["gpu_held_s"], "leases": leases})
        return
    print(f"{pool['queued_runs']} run(s) wait; {pool['gpu_held_s']:.1f} GPU-seconds were lent so far")
    rows = [
        [lease["execution_id"], lease["session_id"], lease["host_id"], _numbers(lease["gpu_indices"]),
         lease["path"].removeprefix("START_PATH_").lower()]
        for lease in leases
    ]
    print_table("runs with a GPU", ["execution", "session", "host", "GPUs", "path"], rows, "no run holds a GPU")


def hosts(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Show the pool's hosts."""
    pool = _pool(data)
    if as_json:
        print_json(pool["hosts"])
        return
    rows = [
        [host["host"]["host_id"], host["liveness"], f"{host['heartbeat_age_s']:.1f}", host["device_kind"],
         host["gpu_count"], sum(len(lease["gpu_indices"]) for lease in host["leases"]), len(host["workers"]),
         host["host"]["address"]]
        for host in pool["hosts"]
    ]
    columns = ["host", "liveness", "heartbeat s ago", "device", "GPUs", "leased", "workers", "address"]
    print_table("hosts", columns, rows, "the pool has no host")


def workers(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Show the workers of all hosts."""
    from looseleaf.units import format_bytes

    pool = _pool(data)
    found = [{"host_id": host["host"]["host_id"], **worker} for host in pool["hosts"] for worker in host["workers"]]
    if as_json:
        print_json(found)
        return
    rows = [
        [worker["worker_id"], worker["host_id"], worker["pid"], worker["stage"].removeprefix("WORKER_STAGE_").lower(),
         worker["session_id"] or "-", worker["version"], _numbers(worker["gpu_indices"]),
         format_bytes(int(worker["resident_bytes"])), _kept(worker.get("hold") or {})]
        for worker in found
    ]
    columns = ["worker", "host", "pid", "stage", "session", "version", "GPUs", "resident", "kept for"]
    print_table("workers", columns, rows, "there is no worker")


def _pool(data: Path | None) -> dict[str, Any]:
    from looseleaf.cli.options import message_to_dict
    from looseleaf.local.probe import get_pool

    pool: dict[str, Any] = message_to_dict(wait(get_pool(resolve_address("scheduler", data))))
    return pool


def _kept(hold: dict[str, Any]) -> str:
    """The variables that live in a worker only and how long it makes way for nobody, such as "it (42 s)"."""
    names, left_s = hold.get("names") or [], float(hold.get("left_s") or 0.0)
    shown = ", ".join(names[:KEPT_NAMES_SHOWN_MAX]) + (" ..." if len(names) > KEPT_NAMES_SHOWN_MAX else "")
    return f"{shown} ({left_s:.0f} s)" if names else "-"


def _numbers(values: list[int]) -> str:
    return ",".join(map(str, values)) or "-"
