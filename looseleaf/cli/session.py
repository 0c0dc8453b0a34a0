"""`looseleaf session list|log|diff|rm`: saved sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from looseleaf.cli.options import DataOption, JsonOption, TimeoutOption, print_json, print_table, resolve_address, wait

SessionArgument = Annotated[str, typer.Argument(help="The session's id, as `session list` shows it.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    from looseleaf.cli.state import show_changes

    session = typer.Typer(help="Saved sessions: list them, their versions, delete one.", no_args_is_help=True)
    session.command("list")(list_sessions)
    session.command("log")(list_versions)
    session.command("diff")(show_changes)
    session.command("rm")(remove)
    app.add_typer(session, name="session")


def list_sessions(
    data: DataOption = None, as_json: JsonOption = False, timeout_s: TimeoutOption = 10.0,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, newest first.")] = 100,
) -> None:
    """Show the saved sessions, newest first."""
    from looseleaf.v1 import checkpoint_store_pb2 as pb

    answer = _ask(data, lambda store: store.ListSessions(pb.ListSessionsRequest(limit=limit), timeout_s=timeout_s))
    if as_json:
        print_json(answer.get("sessions", []))
        return
    rows = [
        [head["session_id"], head["title"] or "-", head["version"], head["durable_version"],
         _when(head["updated_unix_ms"])]
        for head in answer["sessions"]
    ]
    print_table("sessions", ["session", "title", "version", "durable", "changed"], rows, "no session was saved yet")


def list_versions(
    session_id: SessionArgument, data: DataOption = None, as_json: JsonOption = False, timeout_s: TimeoutOption = 10.0,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, newest first.")] = 100,
) -> None:
    """Show a session's kept versions, newest first."""
    from looseleaf.v1 import checkpoint_store_pb2 as pb

    request = pb.ListVersionsRequest(session_id=session_id, limit=limit)
    answer = _ask(data, lambda store: store.ListVersions(request, timeout_s=timeout_s))
    if as_json:
        print_json(answer.get("versions", []))
        return
    rows = [
        [version["version"], version["parent"], "yes" if version["durable"] else "no", version["roots"],
         _size(version), _when(version["created_unix_ms"]), version["execution_id"]]
        for version in answer["versions"]
    ]
    columns = ["version", "parent", "durable", "variables", "size", "made", "execution"]
    print_table(f"versions of {session_id}", columns, rows, "the session has no saved version yet")


def remove(
    session_id: SessionArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data: DataOption = None, timeout_s: TimeoutOption = 30.0,
) -> None:
    """Delete a session with all its versions. This cannot be undone."""
    from looseleaf.ids import check_id, new_request_id
    from looseleaf.v1 import checkpoint_store_pb2 as pb

    check_id("session", session_id)
    if not yes:
        typer.confirm(f"delete session {session_id} with all its versions?", abort=True)
    request = pb.DeleteSessionRequest(request_id=new_request_id(), session_id=session_id)
    _ask(data, lambda store: store.DeleteSession(request, timeout_s=timeout_s))
    print(f"deleted {session_id}")


def _ask(data: Path | None, call: Callable[[Any], Awaitable[Any]]) -> dict[str, Any]:
    from looseleaf.cli.options import message_to_dict

    plain: dict[str, Any] = message_to_dict(ask_store(data, call))
    return plain


def ask_store(data: Path | None, call: Callable[[Any], Awaitable[Any]]) -> Any:
    """What `call` gets from the running cluster's checkpoint store."""
    from looseleaf.rpc.client import open_channel
    from looseleaf.v1.checkpoint_store_pb2_grpc import CheckpointStoreServiceStub

    async def ask(address: str) -> Any:
        async with open_channel(address, peer="store") as channel:
            return await call(CheckpointStoreServiceStub(channel))

    return wait(ask(resolve_address("checkpoint-store", data)))


def _size(version: dict[str, Any]) -> str:
    """What the store has; and what the kernel kept to itself when the version was made."""
    from looseleaf.units import format_bytes

    lazy = int(version.get("lazy_bytes", 0))
    return format_bytes(int(version["logical_bytes"])) + (f", {format_bytes(lazy)} lazy" if lazy else "")


def _when(unix_ms: str) -> str:
    if not int(unix_ms):
        return "-"
    return datetime.fromtimestamp(int(unix_ms) / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
