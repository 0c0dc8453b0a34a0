"""`looseleaf up` and `looseleaf down`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from looseleaf.cli.options import DataOption, run_dir_of


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(up)
    app.command()(down)


def up(
    data: DataOption = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs per host; default: all real ones, or 1 emulated.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cuda, emulated or none.")] = None,
    hosts: Annotated[int | None, typer.Option(help="Worker daemons.")] = None,
    tcp: Annotated[bool, typer.Option("--tcp", help="gRPC on loopback TCP instead of Unix sockets.")] = False,
    timeout_s: Annotated[float | None, typer.Option("--timeout-s", help="Limit of the start.")] = None,
) -> None:
    """Start a cluster of this machine and return when it is ready.

    The sessions that an earlier cluster left in the data folder are there again.
    """
    from rich.console import Console

    from looseleaf.local.cluster import LocalCluster, cluster_config
    from looseleaf.local.record import read_record

    settings: dict[str, Any] = {
        "data": data, "gpus": gpus, "device": device, "hosts": hosts, "tcp": tcp or None, "start_timeout_s": timeout_s}
    config = cluster_config(settings)
    running = read_record(config.run_dir)
    if running is not None and running.alive:
        _say_running(running, settings)
        return
    with Console(stderr=True).status("starting store, scheduler, frontend and daemons ..."):
        cluster = LocalCluster.start(config, detached=True)
    _say_up(cluster.record)


def down(data: DataOption = None) -> None:
    """Stop the cluster; says what had to be removed by force. Sessions stay in the data folder."""
    from looseleaf.local.cluster import LocalCluster, clear_dead
    from looseleaf.local.record import cluster_processes, leftover_memory, leftover_sockets, read_record

    run_dir = run_dir_of(data)
    record = read_record(run_dir)
    if record is None:
        print(f"no cluster runs with sockets in {run_dir}")
        return
    if record.alive:
        for item in LocalCluster.attach(run_dir).stop():
            print(f"removed by force: {item}")
    else:
        clear_dead(run_dir)
        print(f"the supervisor {record.supervisor_pid} was gone already; removed what it left")
    left = [
        *(f"process {process.pid}" for process in cluster_processes(record.cluster_id)),
        *map(str, leftover_sockets(run_dir)), *map(str, leftover_memory(record.cluster_id)),
    ]
    if left:
        print(f"still there: {', '.join(left)}", file=sys.stderr)
        raise typer.Exit(1)
    print(f"stopped; no process, socket or shared memory is left. Sessions stay in {record.data}")


def _say_running(record: Any, settings: dict[str, Any]) -> None:
    from looseleaf.errors import PreconditionFailed

    has = {"gpus": record.gpus_per_host, "device": record.device, "hosts": len(record.hosts)}
    other = [
        f"{name} {has[name]}" for name in has
        if settings[name] not in (None, has[name]) and not (name == "device" and settings[name] == "auto")
    ]
    if other:
        raise PreconditionFailed(
            "CLUSTER_RUNNING",
            f"a cluster runs already, with {', '.join(other)}: `looseleaf down` first, or give another --data",
        )
    print(f"runs already (supervisor {record.supervisor_pid}), nothing was changed")
    _say_up(record)


def _say_up(record: Any) -> None:
    from looseleaf.config import default_run_dir

    hosts = f"{len(record.hosts)} host{'s' if len(record.hosts) > 1 else ''}"
    print(f"LooseLeaf is up: {hosts}, {record.gpus_per_host} GPU(s) each, device {record.device}")
    print(f"  data     {record.data}")
    print(f"  sockets  {record.run_dir}")
    if Path(record.run_dir) == default_run_dir():
        print("  stop it with `looseleaf down`")
        return
    print("  kernels and `looseleaf run` find it with")
    print(f"    export LOOSELEAF_DATA={record.data} LOOSELEAF_RUN_DIR={record.run_dir}")
    print(f"  stop it with `looseleaf down --data {record.data}`")
