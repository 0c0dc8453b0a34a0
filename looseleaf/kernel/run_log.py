"""The kernel's log of executed cells, and how much of it the frontend has."""

from __future__ import annotations

import threading
from typing import Any, Final

from looseleaf.ids import CellId
from looseleaf.recipe.log import CellRun, ExecutionLog

# What one request to the frontend carries.
RUNS_PER_REQUEST_MAX: Final = 500
REQUEST_CHARS_MAX: Final = 4_000_000


class RunLog:
    """Safe for the main and the control thread. Sequences start at 1 and have no gaps.

    `executed` belongs to the main thread: recipes are derived from it there.
    """

    def __init__(self) -> None:
        self.executed = ExecutionLog()
        self._runs: list[CellRun] = []
        self._acknowledged = 0
        self._lock = threading.Lock()

    @property
    def length(self) -> int:
        """Runs so far."""
        return len(self._runs)

    def add(self, cell_id: CellId, source: str, ok: bool) -> None:
        """One more run has ended."""
        run = CellRun(sequence=len(self._runs) + 1, cell_id=cell_id, source=source, ok=ok)
        with self._lock:
            self._runs.append(run)
        self.executed.record(run)

    def unsent(self) -> list[dict[str, Any]]:
        """The next runs that the frontend lacks, as the protocol's maps; a bounded part of them."""
        with self._lock:
            part: list[dict[str, Any]] = []
            chars = 0
            for run in self._runs[self._acknowledged : self._acknowledged + RUNS_PER_REQUEST_MAX]:
                chars += len(run.source)
                if part and chars > REQUEST_CHARS_MAX:
                    break
                part.append({"sequence": run.sequence, "cell_id": run.cell_id, "source": run.source, "ok": run.ok})
            return part

    def acknowledged(self, next_sequence: int) -> None:
        """The frontend expects `next_sequence` next; a lower one than before means that it lost its memory."""
        with self._lock:
            self._acknowledged = max(0, min(next_sequence - 1, len(self._runs)))
