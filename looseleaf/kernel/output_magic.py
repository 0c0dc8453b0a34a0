"""`%looseleaf outputs`: what cells have shown, shown again from the session's journal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from IPython.display import publish_display_data

from looseleaf.kernel.journal_reader import (
    JournalEntry,
    executions_of,
    find_execution,
    outputs_of,
    sessions_in,
    traceback_of,
)
from looseleaf.kernel.session import KernelSession
from looseleaf.kernel.text_table import text_table, when
from looseleaf.recipe.history_line import HISTORY_MAGIC, HistoryLine

# Other sessions of the notebook that are named.
SESSIONS_SHOWN_MAX = 5


class ShownAgain:
    """Shows journals of `root` in the running cell, as its own outputs."""

    def __init__(self, root: Path, session: KernelSession) -> None:
        self._root = root
        self._session = session

    def show(self, asked: HistoryLine) -> None:
        """Raises NotFound `OUTPUTS_UNKNOWN`."""
        session_id = asked.session or str(self._session.session_id)
        entries = executions_of(self._root, session_id)
        if asked.execution:
            entry = find_execution(entries, asked.execution)
            for output in outputs_of(self._root, session_id, entry.sequence):
                show_output(output)
            return
        print(entries_text(entries[: asked.limit]))
        others = [each for each in sessions_in(self._root) if each.session_id != session_id]
        title = self._session.title
        for other in [each for each in others if title and each.title == title][:SESSIONS_SHOWN_MAX]:
            print(
                f"an earlier session of this notebook, last written {when(other.newest_unix_ms)}: "
                f"%{HISTORY_MAGIC} outputs --session {other.session_id}"
            )


def show_output(output: dict[str, Any]) -> None:
    """One output in the running cell. An error is shown as text: this cell has not failed."""
    content = output["content"]
    if output["t"] == "stream":
        (sys.stderr if content.get("name") == "stderr" else sys.stdout).write(str(content.get("text", "")))
    elif output["t"] == "error":
        print(traceback_of(content), file=sys.stderr)
    else:
        sys.stdout.flush()
        sys.stderr.flush()
        publish: Any = publish_display_data
        publish(content.get("data", {}), content.get("metadata", {}))


def entries_text(entries: list[JournalEntry]) -> str:
    """One line for each execution, the newest first."""
    if not entries:
        return "no outputs of this session are kept"
    rows = [["cell", "began", "ended", "first line", "id"]]
    for entry in entries:
        ended = entry.status or "not yet, or with its kernel"
        rows.append([f"[{entry.count}]", when(entry.began_unix_ms), ended, entry.line, entry.cell_id])
    return text_table(rows)
