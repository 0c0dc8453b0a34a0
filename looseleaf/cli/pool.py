"""`looseleaf queue` and `hosts`: the scheduler's view; `workers` is beside it."""

from __future__ import annotations

import typer

from looseleaf.cli.options import DataOption, JsonOption, example, print_json, print_table
from looseleaf.cli.workers import scheduler_view, workers


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command(epilog=example("queue"))(queue)
    app.command(epilog=example("hosts --json"))(hosts)
    app.command(epilog=example("workers --tree"))(workers)


def queue(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Show how many runs wait and which hold a GPU."""
    pool = scheduler_view(data)
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
    pool = scheduler_view(data)
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


def _numbers(values: list[int]) -> str:
    return ",".join(map(str, values)) or "-"
