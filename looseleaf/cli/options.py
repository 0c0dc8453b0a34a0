"""Options and output that commands share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

# What a completion may wait for the store: a person has just pressed Tab.
COMPLETION_TIMEOUT_S: Final = 1.0
COMPLETED_SESSIONS_MAX: Final = 100

PIPE_COLUMNS: Final = 400

DataOption = Annotated[
    Path | None, typer.Option("--data", help="The cluster's data folder; default LOOSELEAF_DATA or the user's own.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
TimeoutOption = Annotated[float, typer.Option("--timeout-s", min=0.01, help="Limit of the call in seconds.")]


def complete_sessions(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Sessions of the running cluster that begin so, with their titles; none if it does not answer at once."""
    from looseleaf.cli.session import ask_store
    from looseleaf.errors import LooseLeafError
    from looseleaf.v1 import checkpoint_store_pb2 as pb

    request = pb.ListSessionsRequest(limit=COMPLETED_SESSIONS_MAX)
    data = context.params.get("data")
    try:
        answer = ask_store(data, lambda store: store.ListSessions(request, timeout_s=COMPLETION_TIMEOUT_S))
    except LooseLeafError:
        return []
    return [(head.session_id, head.title) for head in answer.sessions if head.session_id.startswith(incomplete)]


def complete_notebooks(incomplete: str) -> list[str]:
    """Notebooks and folders that begin so; hidden ones where the dot was typed."""
    folder, _, begin = incomplete.rpartition("/")
    parent = Path(f"{folder}/" if incomplete.startswith("/") else folder or ".").expanduser()
    try:
        entries = sorted(parent.iterdir())
    except OSError:
        return []
    found = []
    for entry in entries:
        wanted = entry.is_dir() or entry.suffix == ".ipynb"
        if wanted and entry.name.startswith(begin) and entry.name.startswith(".") <= begin.startswith("."):
            found.append(f"{folder}/" * ("/" in incomplete) + entry.name + "/" * entry.is_dir())
    return found


SessionArgument = Annotated[str, typer.Argument(
    help="The session's id, as `session list` shows it.", autocompletion=complete_sessions)]


def example(words: str) -> str:
    """The last lines of a command's help; a test parses what they show."""
    return f"Example: looseleaf {words}"


def run_dir_of(data: Path | None) -> Path:
    """The run folder that belongs to `--data` or to the configured cluster."""
    from looseleaf.local.cluster import cluster_config

    return cluster_config({"data": data}).run_dir


def resolve_address(address: str, data: Path | None) -> str:
    """A gRPC address as given, or that of a service by its name.

    The running cluster's service; where none runs, as in a container, the one that this host's daemon is told to dial.
    """
    from looseleaf.errors import NotFound
    from looseleaf.local.cluster import LocalCluster

    if ":" in address:
        return address
    if address.startswith("/"):
        return f"unix:{address}"
    try:
        return LocalCluster.attach(run_dir_of(data)).address(address)
    except NotFound:
        configured = "" if data is not None else _dialled_by_daemon(address)
        if not configured:
            raise
        return configured


def _dialled_by_daemon(service: str) -> str:
    """The TCP address in this host's daemon's settings, empty if they name none."""
    from looseleaf.config import DaemonConfig
    from looseleaf.config_load import load

    config = load(DaemonConfig)
    addresses = {"checkpoint-store": config.store, "scheduler": config.scheduler, "frontend": config.frontend}
    address = addresses.get(service, "")
    # Not by `socket_path`: that a socket's folder is too long matters to who opens one, and here none runs.
    return "" if address.startswith("unix:") else address


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end."""
    return asyncio.run(coroutine)


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    print(json.dumps(value, indent=2, sort_keys=True, default=str))


def print_json_line(value: Any) -> None:
    """One JSON value on a line of its own, out at once."""
    print(json.dumps(value, sort_keys=True, default=str), flush=True)


def print_table(title: str, columns: list[str], rows: list[list[Any]], empty: str) -> None:
    """A table on stdout, or the sentence `empty`. Cells are shown as they are: brackets in a name are no markup."""
    from rich.table import Table
    from rich.text import Text

    if not rows:
        print(empty)
        return
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console = stdout_console()
    if title:
        # On a line of its own: a table's own title is wrapped to the table's width.
        console.print(Text(title, style="italic"))
    console.print(table)


def stdout_console() -> Console:
    """Where tables go; files and pipes have no width, so a row stays on its line there."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=PIPE_COLUMNS)


def message_to_dict(message: Any) -> Any:
    """A protobuf message as plain values, zeros included."""
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
