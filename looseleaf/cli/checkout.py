"""`looseleaf session checkout`: a saved session back at an older version, or a new session from it; by RPC only.

A session belongs to its kernel. While one is connected, or a cell of it runs, this refuses; a kernel that comes back
meanwhile raises the session's epoch, and then the commit here is refused and nothing has changed.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from looseleaf.cli.options import (
    DataOption,
    JsonOption,
    SessionArgument,
    TimeoutOption,
    print_json,
    resolve_address,
    wait,
)

if TYPE_CHECKING:
    from looseleaf.checkpoint.manifest import Manifest
    from looseleaf.rpc.store_client import StoreClient


def check_out(
    session_id: SessionArgument,
    version: Annotated[int, typer.Argument(help="Which version, as `session log` shows it; -1: before the newest.")],
    new: Annotated[bool, typer.Option("--new", help="Make a new session of it and leave this one alone.")] = False,
    data: DataOption = None, as_json: JsonOption = False, timeout_s: TimeoutOption = 30.0,
) -> None:
    """Make an older version of a session, whose notebook is closed, its newest one; or a new session from it.

    Nothing is lost: what was the newest version stays, and can be checked out again. Put `--` before a version below 0.
    """
    from looseleaf.errors import InvalidArgument
    from looseleaf.ids import check_id

    check_id("session", session_id)
    if version == 0:
        raise InvalidArgument("VERSION_MALFORMED", "versions count from 1, and -1 is the one before the newest")
    done = wait(_check_out(session_id, version, new, data, timeout_s))
    if as_json:
        print_json(done)
        return
    print(f"{done['session_id']}: version {done['version']} is version {done['source']} of {session_id}")
    print(f"a kernel that is started with LOOSELEAF_SESSION={done['session_id']} continues it")


async def _refuse_in_use(session_id: str, data: Path | None, timeout_s: float) -> None:
    """Raises PreconditionFailed `SESSION_IN_USE`, or a host's error: then nobody knows."""
    from looseleaf.errors import PreconditionFailed
    from looseleaf.local.probe import get_pool
    from looseleaf.rpc.client import open_channel
    from looseleaf.v1 import worker_daemon_pb2 as pb
    from looseleaf.v1.worker_daemon_pb2_grpc import WorkerDaemonServiceStub

    pool = await get_pool(resolve_address("scheduler", data), timeout_s)
    for host in pool.hosts:
        users = "a cell of it runs" if any(lease.session_id == session_id for lease in host.leases) else ""
        if not users and host.liveness != "dead":
            async with open_channel(host.host.address, peer="daemon") as channel:
                told = await WorkerDaemonServiceStub(channel).GetHost(pb.GetHostRequest(), timeout_s=timeout_s)
            users = "its notebook is open" if session_id in told.kernel_sessions else ""
        if users:
            text = (
                f"{users} on host {host.host.host_id}: there, use `%looseleaf checkout`; or shut the notebook's kernel "
                "down first, or make a new session with --new. Nothing was changed"
            )
            raise PreconditionFailed("SESSION_IN_USE", text, session_id=session_id, host_id=host.host.host_id)


async def _check_out(session_id: str, wanted: int, new: bool, data: Path | None, timeout_s: float) -> dict[str, Any]:
    from looseleaf.checkpoint.manifest import Manifest, decode_manifest
    from looseleaf.checkpoint.version_list import ListedVersion, find_version
    from looseleaf.errors import PreconditionFailed
    from looseleaf.ids import SessionId, new_session_id
    from looseleaf.rpc.client import open_channel
    from looseleaf.rpc.store_client import StoreClient

    async with open_channel(resolve_address("checkpoint-store", data), peer="store") as channel:
        store = StoreClient(channel)
        # Before anybody is asked: a kernel that comes after this raises the epoch, and the commit below is refused.
        newest = await store.manifest(session_id)
        if not new:
            await _refuse_in_use(session_id, data, timeout_s)
        source = find_version([ListedVersion.of(entry) for entry in await store.list_versions(session_id)], wanted)
        old = decode_manifest((await store.manifest(session_id, version=source)).manifest)
        durable, _missing = await store.mark_durable(session_id, source)
        if not durable:
            text = f"version {source} is not on the store's disk yet; nothing was changed, try again in some seconds"
            raise PreconditionFailed("VERSION_NOT_DURABLE", text, version=int(source))
        if new:
            target = new_session_id()
            # Of the same tenant: another one has none of its bytes.
            owner = StoreClient(channel, tenant=newest.head.tenant)
            head = await owner.open_session(target, create=True, title=f"{session_id} at version {source}")
            try:
                version = await _commit(store, old, Manifest(SessionId(target)), head.epoch)
            except BaseException:
                await store.delete_session(target)
                raise
            return {"session_id": target, "version": version, "source": int(source)}
        version = int(source)
        if source != newest.version:
            version = await _commit(store, old, decode_manifest(newest.manifest), newest.head.epoch)
        return {"session_id": session_id, "version": version, "source": int(source)}


async def _commit(store: StoreClient, old: Manifest, head: Manifest, epoch: int) -> int:
    """Commits the content of `old` on top of `head`. Raises as the store: who was there first keeps the session."""
    from looseleaf.checkpoint.history import made_newest
    from looseleaf.checkpoint.manifest import encode_manifest
    from looseleaf.ids import Epoch, new_execution_id

    made = made_newest(
        old, head, session_id=head.session_id, epoch=Epoch(epoch), execution_id=new_execution_id(),
        now_unix_ms=time.time_ns() // 1_000_000,
    )  # fmt: skip
    version, _durable = await store.commit(
        made.session_id, epoch=epoch, parent=made.parent, execution_id=made.execution_id,
        manifest=encode_manifest(made), host_id="",
    )  # fmt: skip
    await store.mark_durable(made.session_id, version)
    return version
