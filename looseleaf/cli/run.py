"""`looseleaf run`: a notebook from first to last cell, with what each cell took of the GPUs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from looseleaf.batch.run import BatchResult, Pool


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(run)


def run(
    notebook: Annotated[Path, typer.Argument(help="The notebook to run.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the executed notebook goes.")],
    report: Annotated[Path | None, typer.Option(help="Write the figures of all cells as JSON.")] = None,
    think: Annotated[float, typer.Option(min=0, help="Seconds a person would think before each cell.")] = 0.0,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="Limit of one cell in seconds.")] = None,
    endpoint: Annotated[str, typer.Option(help="A daemon's kernel socket; default: of the running cluster.")] = "",
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs, if a cluster is started for the run.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cuda, emulated or none, as for --gpus.")] = None,
) -> None:
    """Run a notebook; its GPU cells borrow a GPU each, the others run in the kernel.

    Without a running cluster one is started for the run, with virtual GPUs where there is no real one. If a cell fails,
    what was executed is written all the same and the exit code is 1; cells tagged raises-exception may fail.
    """
    from looseleaf.batch.client import read_notebook
    from looseleaf.batch.run import check_output, open_pool, write_notebook, write_report

    for path in (output, report):
        if path is not None:
            check_output(path)
    nb = read_notebook(notebook)
    with open_pool(endpoint, gpus, device) as pool:
        result = _run_with_progress(nb, pool, notebook.resolve().parent, think, timeout)
    write_notebook(nb, output)
    if report is not None:
        write_report(report, result, pool)
    _show(result, output, report)
    if result.failure:
        print(f"looseleaf: cell {result.failed_cell} failed: {result.failure}", file=sys.stderr)
        raise typer.Exit(1)


def _run_with_progress(nb: Any, pool: Pool, folder: Path, think_s: float, timeout_s: float | None) -> BatchResult:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from looseleaf.batch.client import is_executed
    from looseleaf.batch.run import run_notebook

    total = sum(map(is_executed, nb.cells))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=total)

        def started(cell: Any, index: int) -> None:
            progress.update(task, description=f"cell {cell.get('id') or index}")

        return run_notebook(
            nb, pool, folder=folder, think_s=think_s, timeout_s=timeout_s, on_start=started,
            on_record=lambda _record: progress.advance(task),
        )  # fmt: skip


def _show(result: BatchResult, output: Path, report: Path | None) -> None:
    from rich.console import Console

    from looseleaf.batch.report import totals_of
    from looseleaf.batch.tables import cell_table, process_line, total_lines, unsaved_lines

    console = Console()
    if not console.is_terminal:
        # Files and pipes have no width: a row must stay on its line.
        console = Console(width=240)
    console.print(cell_table(result.records))
    for line in (*unsaved_lines(result.records), *total_lines(totals_of(result.records))):
        console.print(line, markup=False, highlight=False)
    console.print(process_line(result.records, result.kernel_pid), markup=False, highlight=False)
    console.print(f"written: {output}" + (f", {report}" if report else ""), markup=False, highlight=False)
