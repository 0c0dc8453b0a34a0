"""`looseleaf workers`: the workers of all hosts, and the zygotes that they were forked from."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from looseleaf.cli.options import DataOption, JsonOption, print_json, print_table, resolve_address, wait

KEPT_NAMES_SHOWN_MAX: Final = 3
HOST_TIMEOUT_S: Final = 5.0


def workers(
    data: DataOption = None,
    tree: Annotated[bool, typer.Option("--tree", help="Show each host's zygotes and their workers instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the workers of all hosts; with --tree the zygotes that they were forked from, as their hosts tell."""
    pool = scheduler_view(data)
    if tree:
        _show_trees(wait(_ask_hosts(pool)), as_json)
        return
    found = [{"host_id": host["host"]["host_id"], **worker} for host in pool["hosts"] for worker in host["workers"]]
    if as_json:
        print_json(found)
        return
    from looseleaf.units import format_bytes

    rows = [
        [worker["worker_id"], worker["host_id"], worker["pid"], _stage(worker), worker["session_id"] or "-",
         worker["version"], _gpus(worker),
         format_bytes(int(worker["resident_bytes"])), _kept(worker.get("hold") or {})]
        for worker in found
    ]  # fmt: skip
    columns = ["worker", "host", "pid", "stage", "session", "version", "GPUs", "resident", "kept for"]
    print_table("workers", columns, rows, "there is no worker")


def scheduler_view(data: Path | None) -> dict[str, Any]:
    """GetPool's answer, as plain values. Raises LooseLeafError."""
    from looseleaf.cli.options import message_to_dict
    from looseleaf.local.probe import get_pool

    pool: dict[str, Any] = message_to_dict(wait(get_pool(resolve_address("scheduler", data))))
    return pool


async def _ask_hosts(pool: dict[str, Any]) -> list[dict[str, Any]]:
    """Each live host's import cache; `problem` is why one does not tell."""
    live = [host["host"] for host in pool["hosts"] if host["liveness"] != "dead"]
    return list(await asyncio.gather(*(_ask(host["host_id"], host["address"]) for host in live)))


async def _ask(host_id: str, address: str) -> dict[str, Any]:
    from looseleaf.cli.options import message_to_dict
    from looseleaf.errors import LooseLeafError
    from looseleaf.rpc.client import open_channel
    from looseleaf.v1 import worker_daemon_pb2
    from looseleaf.v1.worker_daemon_pb2_grpc import WorkerDaemonServiceStub

    try:
        async with open_channel(address, peer="daemon") as channel:
            stub = WorkerDaemonServiceStub(channel)
            told = message_to_dict(
                await stub.GetHost(worker_daemon_pb2.GetHostRequest(), timeout_s=HOST_TIMEOUT_S)
            )  # fmt: skip
    except LooseLeafError as error:
        return {"host_id": host_id, "problem": str(error), "zygotes": [], "workers": []}
    return {"host_id": host_id, "problem": "", "zygotes": told["zygotes"], "workers": told["state"]["workers"]}


def _show_trees(hosts: list[dict[str, Any]], as_json: bool) -> None:
    from rich.text import Text
    from rich.tree import Tree

    from looseleaf.cli.options import stdout_console

    if as_json:
        print_json(hosts)
        return
    if not hosts:
        print("the pool has no host")
    for host in hosts:
        top = Tree(Text(f"{host['host_id']}: {host['problem'] or _totals(host['zygotes'])}"))
        grow(top, host)
        stdout_console().print(top)


def grow(top: Any, host: dict[str, Any]) -> None:
    """Adds a host's zygotes below `top`, each with its workers and then its children."""
    from rich.text import Text

    stages = {worker["worker_id"]: f"{_stage(worker)}, session {worker['session_id'] or '-'}"
              for worker in host["workers"]}  # fmt: skip
    branches = {0: top}
    for zygote in host["zygotes"]:
        branch = branches.get(int(zygote["parent_id"]), top).add(Text(line_of(zygote)))
        branches[int(zygote["node_id"])] = branch
        for worker in zygote["workers"]:
            what = stages.get(worker["worker_id"], "starting")
            branch.add(Text(f"worker {worker['worker_id']} (pid {worker['pid']}): {what}"))


def line_of(zygote: dict[str, Any]) -> str:
    """One zygote: what it imported, what it costs, how much it is used."""
    from looseleaf.units import format_bytes

    imports = ", ".join(zygote["imports"]) or "nothing yet"
    name = f"base {imports}" if not int(zygote["parent_id"]) else f"+ {imports}"
    pss_bytes = int(zygote["pss_bytes"]) or int(zygote["private_bytes"])
    return (
        f"{name}: {zygote['state']}, {zygote['import_s']:.2f} s of imports, {format_bytes(pss_bytes)}, "
        f"{zygote['forks']} forks, used {zygote['used_s_ago']:.0f} s ago"
        + (f" (pid {zygote['pid']})" if zygote["pid"] else "")
    )


def _totals(zygotes: list[dict[str, Any]]) -> str:
    from looseleaf.units import format_bytes

    pss_bytes = sum(int(zygote["pss_bytes"]) for zygote in zygotes)
    return f"{sum(1 for zygote in zygotes if zygote['pid'])} zygotes, {format_bytes(pss_bytes)}"


def _stage(worker: dict[str, Any]) -> str:
    return str(worker["stage"]).removeprefix("WORKER_STAGE_").lower().replace("_", " ")


def _gpus(worker: dict[str, Any]) -> str:
    """Those whose memory it holds, such as "0,1"; in parentheses those that only have a context of its."""
    context = ",".join(map(str, worker.get("context_gpu_indices") or []))
    return ",".join(map(str, worker["gpu_indices"])) or (f"({context})" if context else "-")


def _kept(hold: dict[str, Any]) -> str:
    """The variables that live in a worker only and how long it makes way for nobody, such as "it (42 s)"."""
    names, left_s = hold.get("names") or [], float(hold.get("left_s") or 0.0)
    shown = ", ".join(names[:KEPT_NAMES_SHOWN_MAX]) + (" ..." if len(names) > KEPT_NAMES_SHOWN_MAX else "")
    return f"{shown} ({left_s:.0f} s)" if names else "-"
