"""`looseleaf status` and `looseleaf health`."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from looseleaf.cli import exits
from looseleaf.cli.options import (
    DataOption,
    JsonOption,
    TimeoutOption,
    example,
    print_json,
    print_json_line,
    resolve_address,
    run_dir_of,
    stdout_console,
    wait,
)

WATCH_INTERVAL_S: Final = 1.0
# States of a service that is as it should be.
_WELL: Final = ("serving", "standby")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command(epilog=example("status --watch"))(status)
    app.command(epilog=example("health scheduler"))(health)


def status(
    data: DataOption = None,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option(
        "--watch", help="Show it again every second until interrupted; with --json a line each time.")] = False,
) -> None:
    """Show the cluster's services, hosts and queue. Exit code 3 if none runs, 4 if a part of it does not serve."""
    run_dir = run_dir_of(data)
    if watch:
        show_again = _watch_lines if as_json else _watch
        show_again(run_dir)
    found = gather(run_dir)
    if as_json:
        print_json(found)
    else:
        stdout_console().print(render(found))
    if not found["healthy"]:
        raise typer.Exit(exits.UNREACHABLE)


def health(
    address: Annotated[str, typer.Argument(help="unix:/path, host:port, or a service's name such as scheduler.")],
    service: Annotated[str, typer.Option(help="Full name of one service of the server.")] = "",
    data: DataOption = None,
    as_json: JsonOption = False,
    timeout_s: TimeoutOption = 2.0,
) -> None:
    """Ask a server for its health; exit code 0 if it is SERVING, else 4."""
    from looseleaf.local.probe import health_state

    dialled = resolve_address(address, data)
    state = wait(health_state(dialled, service, timeout_s))
    if as_json:
        print_json({"address": dialled, "service": service, "state": state})
    else:
        print(state)
    if state != "SERVING":
        raise typer.Exit(exits.UNREACHABLE)


def gather(run_dir: Path) -> dict[str, Any]:
    """Everything that `status` shows, as plain values; raises NotFound CLUSTER_NOT_RUNNING."""
    from looseleaf.cli.options import message_to_dict
    from looseleaf.errors import LooseLeafError
    from looseleaf.local.cluster import LocalCluster
    from looseleaf.local.probe import get_pool

    cluster = LocalCluster.attach(run_dir)
    record = cluster.record
    pool: dict[str, Any] | None = None
    problem = ""
    try:
        pool = message_to_dict(wait(get_pool(cluster.address("scheduler"))))
    except LooseLeafError as error:
        problem = str(error)
    serving = all(service.state in _WELL for service in record.services.values())
    return {
        **asdict(record), "pool": pool, "pool_problem": problem,
        "healthy": serving and pool is not None and bool(pool["ready"]) and record.state == "ready",
        "age_s": round(time.time() - record.started_unix_ms / 1000, 1),
    }


def render(found: dict[str, Any]) -> Any:
    """The text for people."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    services = Table("service", "state", "pid", "restarts", "address", box=None, pad_edge=False, header_style="bold")
    for name, service in found["services"].items():
        color = "green" if service["state"] in _WELL else "red"
        services.add_row(
            name, f"[{color}]{service['state']}[/{color}]", str(service["pid"] or "-"), str(service["restarts"]),
            escape(service["address"]),
        )
    age_s = found["age_s"]
    head = escape(f"cluster {found['cluster_id']}: {found['state']} for {age_s:.0f} s, data in {found['data']}")
    if found["pool"] is None:
        return Group(head, services, f"[red]pool unknown: {escape(found['pool_problem'])}[/red]")
    columns = ("host", "liveness", "device", "GPUs", "leased", "workers")
    hosts = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for host in found["pool"]["hosts"]:
        leased = sum(len(lease["gpu_indices"]) for lease in host["leases"])
        hosts.add_row(
            host["host"]["host_id"], host["liveness"], host["device_kind"], str(host["gpu_count"]), str(leased),
            str(len(host["workers"])),
        )
    return Group(head, services, "", hosts, *map(escape, _pool_lines(found["pool"])))


def _pool_lines(pool: dict[str, Any]) -> list[str]:
    """What waits, what is being started, and where the time of the GPUs went."""
    lines = [f"queued runs: {pool['queued_runs']}"]
    if pool["booting_hosts"]:
        lines.append(f"hosts being started: {pool['booting_hosts']}")
    spent = [f"{time['state']} {time['gpu_s']:.0f}" for time in pool["provisioned"] if time["gpu_s"] >= 0.5]
    if spent:
        lines.append(f"GPU-seconds since the scheduler's start: {', '.join(spent)}")
    # A message, so absent where the scheduler does not tell it.
    if done := pool.get("speculation"):
        lines.append(f"preparations: {done['ordered']} ordered, {done['used']} used, {done['wasted']} for nothing")
        if done["contexts"]:
            lines.append(
                f"contexts opened before Run: {done['contexts']}, {done['contexts_used']} used,"
                f" {done['contexts_wasted']} for nothing")
        if done["on_device"]:
            lines.append(
                f"data laid on GPUs before Run: {done['on_device']}, {done['on_device_used']} used;"
                f" {done['wasted_gpu_s']:.0f} GPU-seconds for nothing")
    return lines


def _watch_lines(run_dir: Path) -> NoReturn:
    while True:
        print_json_line(gather(run_dir))
        time.sleep(WATCH_INTERVAL_S)


def _watch(run_dir: Path) -> NoReturn:
    from rich.live import Live

    with Live(render(gather(run_dir)), refresh_per_second=4) as live:
        while True:
            time.sleep(WATCH_INTERVAL_S)
            live.update(render(gather(run_dir)))
