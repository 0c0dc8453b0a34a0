"""What a person sees while notebooks run: a bar for each on a terminal, a line for each end anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from looseleaf.batch.cells import is_executed
from looseleaf.batch.files import Job
from looseleaf.batch.report import CellRecord, NotebookReport
from looseleaf.batch.run import BatchResult
from looseleaf.batch.tables import notebook_line

if TYPE_CHECKING:
    from rich.progress import TaskID


def report_of_job(job: Job, result: BatchResult) -> NotebookReport:
    """The notebook's part of the report."""
    return NotebookReport(
        str(job.source), str(job.output), str(result.outcome), result.failure, result.failed_cell, result.kernel_pid,
        result.start_s, result.wall_s, result.records,
    )  # fmt: skip


class ProgressShown:
    """A Listener of runs that shows them on stderr; see `several.Listener` for its methods."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._jobs = jobs
        self._ended = 0
        self._tasks: dict[int, TaskID] = {}
        self._bars = Progress(*columns, console=console, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def began(self, index: int) -> None:
        """A bar for the notebook."""
        if self._bars is not None:
            job = self._jobs[index]
            total = sum(map(is_executed, job.nb.cells))
            self._tasks[index] = self._bars.add_task(f"{job.source.name}: starting", total=total)

    def cell_began(self, index: int, cell_id: str) -> None:
        """The bar names the cell."""
        if self._bars is not None:
            name = self._jobs[index].source.name
            self._bars.update(self._tasks[index], description=f"{name}: cell {cell_id}")

    def cell_ended(self, index: int, record: CellRecord) -> None:
        """The bar grows."""
        if self._bars is not None:
            self._bars.advance(self._tasks[index])

    def ended(self, index: int, result: BatchResult) -> None:
        """The bar goes; of several notebooks each end is a line."""
        self._ended += 1
        if self._bars is not None and index in self._tasks:
            self._bars.remove_task(self._tasks.pop(index))
        if len(self._jobs) > 1:
            line = f"[{self._ended}/{len(self._jobs)}] {notebook_line(report_of_job(self._jobs[index], result))}"
            if self._bars is not None:
                self._bars.console.print(line, markup=False, highlight=False)
            else:
                print(line, file=sys.stderr, flush=True)
