"""`looseleaf store stats|verify|gc|backup|restore`: the checkpoint store, for its operator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from looseleaf.cli import exits
from looseleaf.cli.options import (
    DataOption,
    JsonOption,
    TimeoutOption,
    example,
    message_to_dict,
    print_json,
    print_table,
    resolve_address,
    wait,
)

FolderArgument = Annotated[Path, typer.Argument(help="A folder on the store's machine.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    store = typer.Typer(help="The checkpoint store: counts, checks, garbage, backups.", no_args_is_help=True)
    store.command("stats", epilog=example("store stats"))(stats)
    store.command("verify", epilog=example("store verify --index-only"))(verify)
    store.command("gc", epilog=example("store gc"))(collect_garbage)
    store.command("backup", epilog=example("store backup /backups/2026-11-30"))(backup)
    store.command("restore", epilog=example("store restore /backups/2026-11-30"))(restore)
    app.add_typer(store, name="store")


def stats(data: DataOption = None, as_json: JsonOption = False, timeout_s: TimeoutOption = 60.0) -> None:
    """Count what the store holds."""
    from looseleaf.units import format_bytes
    from looseleaf.v1 import checkpoint_store_admin_pb2 as pb

    request = pb.GetStoreStatsRequest()
    found = message_to_dict(_ask_admin(data, lambda admin: admin.GetStoreStats(request, timeout_s=timeout_s)))
    tenants: list[dict[str, Any]] = [
        {name: value if name == "tenant" else int(value) for name, value in tenant.items()}
        for tenant in found.pop("tenants")
    ]
    counts = {name: int(value) for name, value in found.items()}
    if as_json:
        print_json({**counts, "tenants": tenants})
        return
    on_disk = format_bytes(counts["region_bytes"])
    used, limit = format_bytes(counts["used_bytes"]), format_bytes(counts["bytes_max"])
    rows: list[list[Any]] = [
        ["sessions", counts["sessions"], f"{format_bytes(counts['logical_bytes'])} in their newest versions"],
        ["versions", counts["versions"], f"{counts['durable_versions']} durable"],
        ["units", counts["units"], format_bytes(counts["unit_bytes"])],
        ["regions", counts["regions"],
         f"{counts['regions_on_disk']} on the disk: {on_disk}; {counts['regions_zero']} of zeros take none"],
        ["staged", counts["regions_staged"], "regions in some host's memory only"],
        ["damaged", counts["regions_damaged"], "regions on the disk; taken again from a host that has them"],
        ["orphans", counts["orphans"], "units and regions that no version names; `looseleaf store gc` frees them"],
        ["used", f"{counts['used_bytes'] / max(1, counts['bytes_max']):.1%}", f"{used} of {limit}"],
    ]
    if len(tenants) > 1:
        rows += [
            [f"tenant {tenant['tenant']}", tenant["sessions"],
             f"sessions; {format_bytes(tenant['used_bytes'])} of {format_bytes(tenant['bytes_max'])}"]
            for tenant in tenants
        ]  # fmt: skip
    print_table("checkpoint store", ["what", "count", "about"], rows, "")


def verify(
    index_only: Annotated[bool, typer.Option("--index-only", help="Do not read the saved bytes.")] = False,
    data: DataOption = None, as_json: JsonOption = False, timeout_s: TimeoutOption = 3600.0,
) -> None:
    """Check the index against itself and every saved byte against its hash. Saves wait while the index is checked."""
    from looseleaf.v1 import checkpoint_store_admin_pb2 as pb

    problems: list[str] = []

    async def check(admin: Any) -> int:
        checked = 0
        request = pb.VerifyStoreRequest(bytes=not index_only)
        async with admin.VerifyStore(request, timeout_s=timeout_s) as stream:
            async for message in stream:
                checked = max(checked, message.checked)
                problems.extend(message.problems)
                for problem in [] if as_json else message.problems:
                    print(f"- {problem}", flush=True)
        return checked

    checked = _ask_admin(data, check)
    if as_json:
        print_json({"ok": not problems, "index_only": index_only, "checked": checked, "problems": problems})
    else:
        looked_at = "the index" if index_only else f"the index and {checked} units and regions"
        print(f"checked {looked_at}: {len(problems)} problem(s)")
    if problems:
        raise typer.Exit(exits.FAILED)


def collect_garbage(data: DataOption = None, timeout_s: TimeoutOption = 600.0) -> None:
    """Free now what no kept version names; the store does so by itself from time to time."""
    from looseleaf.cli.session import ask_store
    from looseleaf.ids import new_request_id
    from looseleaf.v1 import checkpoint_store_pb2 as pb

    request = pb.CollectGarbageRequest(request_id=new_request_id())
    freed = ask_store(data, lambda store: store.CollectGarbage(request, timeout_s=timeout_s))
    print(
        f"freed {freed.versions_dropped} version(s), {freed.units_deleted} unit(s), {freed.regions_deleted} region(s)"
    )


def backup(folder: FolderArgument, data: DataOption = None, timeout_s: TimeoutOption = 3600.0) -> None:
    """Copy every session's durable versions into a new folder, while the store works on."""
    from looseleaf.ids import new_request_id
    from looseleaf.v1 import checkpoint_store_admin_pb2 as pb

    request = pb.BackupStoreRequest(request_id=new_request_id(), folder=str(folder.absolute()))
    answer = _ask_admin(data, lambda admin: admin.BackupStore(request, timeout_s=timeout_s))
    _show_copied(answer.copied, f"to {folder}")


def restore(folder: FolderArgument, data: DataOption = None, timeout_s: TimeoutOption = 3600.0) -> None:
    """Copy a backup into the running store, which must be empty. A store can also be started on the folder itself."""
    from looseleaf.ids import new_request_id
    from looseleaf.v1 import checkpoint_store_admin_pb2 as pb

    request = pb.RestoreStoreRequest(request_id=new_request_id(), folder=str(folder.absolute()))
    answer = _ask_admin(data, lambda admin: admin.RestoreStore(request, timeout_s=timeout_s))
    _show_copied(answer.copied, f"from {folder}")


def _show_copied(copied: Any, way: str) -> None:
    print(
        f"copied {copied.sessions} session(s) with {copied.versions} version(s) {way}: {copied.units} unit(s), "
        f"{copied.regions} region(s)"
    )
    for entry in copied.behind:
        which = f"version {entry.copied_version}" if entry.copied_version else "nothing"
        print(f"- {entry.session_id}: {which}, as version {entry.version} is not durable yet")


def _ask_admin(data: Path | None, call: Callable[[Any], Awaitable[Any]]) -> Any:
    """What `call` gets from the running cluster's checkpoint store."""
    from looseleaf.rpc.client import open_channel
    from looseleaf.v1.checkpoint_store_admin_pb2_grpc import CheckpointStoreAdminServiceStub

    async def ask(address: str) -> Any:
        async with open_channel(address, peer="store") as channel:
            return await call(CheckpointStoreAdminServiceStub(channel))

    return wait(ask(resolve_address("checkpoint-store", data)))
