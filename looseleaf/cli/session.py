"""`looseleaf session list|show|log|diff|checkout|rm`: saved sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from looseleaf.cli.options import (
    DataOption,
    JsonOption,
    SessionArgument,
    TimeoutOption,
    example,
    print_json,
    print_table,
    resolve_address,
    run_dir_of,
    wait,
)

if TYPE_CHECKING:
    from looseleaf.checkpoint.version_list import ListedVersion

EXAMPLE_SESSION: Final = "s-58ad5a8724de1f91676876379dd54769"


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    from looseleaf.cli.checkout import check_out
    from looseleaf.cli.session_show import show
    from looseleaf.cli.state import show_changes

    session = typer.Typer(
        help="Saved sessions: list, look into, go back to a version, delete.", no_args_is_help=True
    )
    session.command("list", epilog=example("session list"))(list_sessions)
    session.command("show", epilog=example(f"session show {EXAMPLE_SESSION}"))(show)
    session.command("log", epilog=example(f"session log {EXAMPLE_SESSION}"))(list_versions)
    session.command("diff", epilog=example(f"session diff {EXAMPLE_SESSION} 3 5"))(show_changes)
    session.command("checkout", epilog=example(f"session checkout {EXAMPLE_SESSION} 3"))(check_out)
    session.command("rm", epilog=example(f"session rm {EXAMPLE_SESSION} --yes"))(remove)
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
         when(head["updated_unix_ms"])]
        for head in answer["sessions"]
    ]
    print_table("sessions", ["session", "title", "version", "durable", "changed"], rows, "no session was saved yet")


def list_versions(
    session_id: SessionArgument, data: DataOption = None, as_json: JsonOption = False, timeout_s: TimeoutOption = 10.0,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, newest first.")] = 100,
) -> None:
    """Show a session's kept versions, newest first."""
    from looseleaf.checkpoint.version_list import ListedVersion
    from looseleaf.cli.options import message_to_dict
    from looseleaf.v1 import checkpoint_store_pb2 as pb

    request = pb.ListVersionsRequest(session_id=session_id, limit=limit)
    answer = ask_store(data, lambda store: store.ListVersions(request, timeout_s=timeout_s))
    if as_json:
        print_json(message_to_dict(answer).get("versions", []))
        return
    kept = [ListedVersion.of(entry) for entry in answer.versions]
    rows = version_rows(kept, whole=len(kept) < limit)
    columns = ["version", "parent", "durable", "variables", "size", "made", "execution"]
    print_table(f"versions of {session_id}", columns, rows, "the session has no saved version yet")


def version_rows(kept: Sequence[ListedVersion], *, whole: bool) -> list[list[Any]]:
    """A row for each version, newest first, and one for each range of versions that are no longer kept.

    `whole`: the list goes down to the oldest one.
    """
    from looseleaf.checkpoint.version_list import pruned_ranges

    gone = {last: first for first, last in pruned_ranges(kept, whole=whole)}
    rows: list[list[Any]] = []
    for entry in kept:
        rows.append([
            entry.version, entry.parent, "yes" if entry.durable else "no", entry.roots, entry.size,
            when(str(entry.created_unix_ms)), entry.execution_id,
        ])  # fmt: skip
        if entry.parent in gone:
            first = gone[entry.parent]
            span = str(first) if first == entry.parent else f"{first}-{entry.parent}"
            rows.append([span, "-", "-", "-", "-", "no longer kept", "-"])
    return rows


def remove(
    session_id: SessionArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data: DataOption = None, timeout_s: TimeoutOption = 30.0,
) -> None:
    """Delete a session with all its versions, and what its cells have shown. This cannot be undone.

    Outputs are kept on the machine of the kernel: run it there to delete them too.
    """
    from looseleaf.errors import NotFound
    from looseleaf.ids import check_id, new_request_id
    from looseleaf.kernel.journal_files import journal_root, remove_journal
    from looseleaf.v1 import checkpoint_store_pb2 as pb

    check_id("session", session_id)
    if not yes:
        typer.confirm(f"delete session {session_id} with all its versions and outputs?", abort=True)
    request = pb.DeleteSessionRequest(request_id=new_request_id(), session_id=session_id)
    root = journal_root(run_dir_of(data))
    try:
        _ask(data, lambda store: store.DeleteSession(request, timeout_s=timeout_s))
    except NotFound as error:
        # Of a session that was never saved, or whose deletion was cut off here, only outputs may be left. Only the
        # store can say so: without a cluster all its versions may be there.
        if error.reason != "SESSION_UNKNOWN" or not remove_journal(root, session_id):
            raise
    else:
        remove_journal(root, session_id)
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


def when(unix_ms: str) -> str:
    """A time for people, in the machine's zone; "-" for none."""
    from looseleaf.kernel.text_table import when as time_of

    return time_of(int(unix_ms)) if int(unix_ms) else "-"
