"""`looseleaf outputs`: what cells have shown, out of the kernels' journals; needs no cluster and no kernel."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from looseleaf.cli.options import (
    DataOption,
    JsonOption,
    complete_sessions,
    example,
    print_json,
    print_table,
    run_dir_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from looseleaf.kernel.journal_reader import JournalEntry


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=example("outputs 7"))(outputs)


def outputs(
    cell: Annotated[str, typer.Argument(
        help="A cell's number, as 7 of Out[7], or its id; default: list what there is.")] = "",
    session_id: Annotated[str, typer.Option(
        "--session", autocompletion=complete_sessions, help="The session; default: the one that was written last.",
    )] = "",
    limit: Annotated[int, typer.Option("-n", min=1, help="List at most this many, newest first.")] = 20,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show again what a cell has shown, also while it runs and after its kernel has ended.

    Without a cell: the sessions of which outputs are kept, or a session's cells. Read on the machine of the kernel.
    """
    from looseleaf.kernel.journal_files import journal_root
    from looseleaf.kernel.journal_reader import executions_of, find_execution, outputs_of, sessions_in, text_of

    root = journal_root(run_dir_of(data))
    if not cell and not session_id:
        _list_sessions([asdict(session) for session in sessions_in(root)[:limit]], as_json)
        return
    chosen = session_id or _newest(root)
    entries = executions_of(root, chosen)
    if not cell:
        _list_cells(chosen, entries[:limit], as_json)
        return
    entry = find_execution(entries, cell)
    shown = outputs_of(root, chosen, entry.sequence)
    if as_json:
        print_json({"session_id": chosen, **asdict(entry), "outputs": shown})
    else:
        print(text_of(shown), end="")


def _newest(root: Path) -> str:
    """The session that was written last; empty if there is none, which then has no cells."""
    from looseleaf.kernel.journal_reader import sessions_in

    return next((session.session_id for session in sessions_in(root)), "")


def _list_sessions(found: list[dict[str, Any]], as_json: bool) -> None:
    from looseleaf.cli.session import when

    if as_json:
        print_json(found)
        return
    rows = [
        [entry["session_id"], entry["title"] or "-", entry["executions"], when(str(entry["newest_unix_ms"]))]
        for entry in found
    ]
    print_table("sessions", ["session", "title", "cells", "written"], rows, "no outputs are kept here")


def _list_cells(session_id: str, entries: list[JournalEntry], as_json: bool) -> None:
    from looseleaf.cli.session import when

    if as_json:
        print_json([asdict(entry) for entry in entries])
        return
    rows = [
        [f"[{entry.count}]", when(str(entry.began_unix_ms)), entry.status or "not yet, or with its kernel", entry.line,
         entry.cell_id]
        for entry in entries
    ]  # fmt: skip
    columns = ["cell", "began", "ended", "first line", "id"]
    print_table(f"cells of {session_id}", columns, rows, "no outputs of this session are kept")
