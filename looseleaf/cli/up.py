"""`looseleaf up` and `looseleaf down`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from looseleaf.cli import exits
from looseleaf.cli.cluster_options import ClusterCommand, given_settings, refuse_other_cluster
from looseleaf.cli.options import DataOption, example, run_dir_of


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command(cls=ClusterCommand, epilog=example("up --gpus 2 --device emulated"))(up)
    app.command(epilog=example("down"))(down)


def up(context: typer.Context) -> None:
    """Start a cluster of this machine and return when it is ready.

    The sessions that an earlier cluster left in the data folder are there again.
    """
    from rich.console import Console

    from looseleaf.local.cluster import LocalCluster, cluster_config
    from looseleaf.local.record import read_record

    given = given_settings(context)
    config = cluster_config(given)
    running = read_record(config.run_dir)
    if running is not None and running.alive:
        refuse_other_cluster(running, config, given)
        print(f"runs already (supervisor {running.supervisor_pid}), nothing was changed")
        _say_up(running)
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
        raise typer.Exit(exits.FAILED)
    print(f"stopped; no process, socket or shared memory is left. Sessions stay in {record.data}")


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
