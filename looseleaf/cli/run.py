"""`looseleaf run`: notebooks from first to last cell, with what each cell took of the GPUs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from looseleaf.cli.options import complete_notebooks, example
from looseleaf.errors import InvalidArgument, LooseLeafError

if TYPE_CHECKING:
    from looseleaf.batch.files import Job
    from looseleaf.batch.pool import Pool
    from looseleaf.batch.report import NotebookReport
    from looseleaf.batch.several import RunsResult

EXIT_CELL_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_SYSTEM_FAILED: Final = 3
EXIT_INTERRUPTED: Final = 130
_EPILOG: Final = (
    "Exit codes: 0 all cells ran; 1 a cell failed; 2 wrong usage or input, nothing was run; 3 a part of the system "
    "failed, such as no cluster or a kernel that died; 130 interrupted. Of several, the largest. What was executed is "
    "written in every case.\n\n" + example("run NOTEBOOK.ipynb -o OUT.ipynb --report REPORT.json")
)
# Options of two values, as papermill has them; typer has lists of one value only.
_PAIRS: Final = frozenset({"-p", "--parameters", "-r", "--parameters-raw"})


class PairsCommand(TyperCommand):
    """Hands `-p NAME VALUE` on as `-p NAME=VALUE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click's, after the values of each pair were joined."""
        joined: list[str] = []
        rest = iter(args)
        for argument in rest:
            joined.append(argument)
            if argument == "--":
                joined.extend(rest)
            elif argument in _PAIRS:
                name, value = next(rest, None), next(rest, None)
                if name is None or value is None:
                    ctx.fail(f"Option '{argument}' requires 2 arguments: a name and a value.")
                joined.append(f"{name}\0{value}")
        parsed: list[str] = super().parse_args(ctx, joined)
        return parsed


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(cls=PairsCommand, epilog=_EPILOG)(run)


def run(
    notebooks: Annotated[list[Path], typer.Argument(
        help="The notebooks to run.", autocompletion=complete_notebooks)],
    output: Annotated[Path, typer.Option(
        "--output", "-o", help="The executed notebook; for several notebooks a folder for all of them.")],
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, max=64, help="Notebooks at once, one kernel each.")] = 1,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop all notebooks when one fails.")] = False,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Go on after the last cell whose state the running cluster has; see docs/batch.md.")] = False,
    parameters: Annotated[list[str] | None, typer.Option(
        "--parameters", "-p", metavar="NAME VALUE", help="A parameter: number, True, None, YAML in brackets, or text.",
    )] = None,
    parameters_raw: Annotated[list[str] | None, typer.Option(
        "--parameters-raw", "-r", metavar="NAME VALUE", help="A parameter that is text, whatever it looks like.",
    )] = None,
    parameters_file: Annotated[list[Path] | None, typer.Option(
        "--parameters-file", "-f", help="A YAML or JSON file of parameters.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the figures of all cells as JSON.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write what passed and failed as JUnit XML.")] = None,
    think: Annotated[float, typer.Option(min=0, help="Seconds a person would think before each cell.")] = 0.0,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="Limit of one cell in seconds.")] = None,
    endpoint: Annotated[str, typer.Option(help="A daemon's kernel socket; default: of the running cluster.")] = "",
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs, if a cluster is started for the run.")] = None,
    device: Annotated[str | None, typer.Option(
        help="auto, cuda, emulated or none, if a cluster is started for the run.")] = None,
    no_delays: Annotated[bool, typer.Option(
        "--no-delays", help="Virtual GPUs of a started cluster do not imitate the times of a real attach.")] = False,
) -> None:
    """Run notebooks; their GPU cells borrow a GPU each, the others run in their kernels.

    Without a running cluster one is started for the run, with virtual GPUs where there is no real one. If a cell fails,
    what was executed is written all the same and the other notebooks go on; cells tagged raises-exception may fail.
    """
    from looseleaf.batch.files import plan_jobs
    from looseleaf.batch.parameters import collect
    from looseleaf.batch.pool import open_pool
    from looseleaf.batch.resume import not_kept_line, went_on_line
    from looseleaf.batch.several import RunOptions

    with _exits(EXIT_USAGE):
        values = collect(parameters_file or [], _pairs(parameters), _pairs(parameters_raw))
        planned = _parametrized(plan_jobs(notebooks, output, (report, junit)), values)
    began = datetime.now(UTC)
    with _exits(EXIT_SYSTEM_FAILED), open_pool(endpoint, gpus, device, delays=not no_delays) as pool:
        done = _run_with_progress(planned, pool, RunOptions(jobs, think, timeout, fail_fast, resume))
    reports = _reports(planned, done)
    for job, result in zip(planned, done.results, strict=True):
        if resume and (line := went_on_line(str(job.source), job.nb, result.first_index)):
            print(line, file=sys.stderr)
        if result.resume_problem and result.failure:
            print(not_kept_line(str(job.source), result.resume_problem), file=sys.stderr)
    _write(planned, reports, pool, began, report, junit)
    _show(reports, pool, [path for path in (report, junit) if path is not None])
    raise typer.Exit(_exit_code(done))


@contextmanager
def _exits(code: int) -> Iterator[None]:
    """An error of ours ends the command with `code`; a wrong setting is wrong usage wherever it is found."""
    from looseleaf.cli.main import show_error

    try:
        yield
    except LooseLeafError as error:
        show_error(error)
        raise typer.Exit(EXIT_USAGE if isinstance(error, InvalidArgument) else code) from None


def _parametrized(jobs: list[Job], values: dict[str, Any]) -> list[Job]:
    from looseleaf.batch.parameters import has_place, inject

    for job in jobs:
        if values and not has_place(job.nb):
            print(f"looseleaf: {job.source} has no cell tagged parameters: they come first", file=sys.stderr)
    return [replace(job, nb=inject(job.nb, values)) for job in jobs]


def _pairs(joined: list[str] | None) -> list[tuple[str, str]]:
    pairs = []
    for text in joined or []:
        name, between, value = text.partition("\0")
        if not between:
            raise InvalidArgument("PARAMETER_MALFORMED", f"{text!r} has no value; write -p NAME VALUE, two words")
        pairs.append((name, value))
    return pairs


def _run_with_progress(jobs: list[Job], pool: Pool, options: Any) -> RunsResult:
    from looseleaf.batch.progress import ProgressShown
    from looseleaf.batch.several import run_all

    with ProgressShown(jobs) as shown:
        return run_all(jobs, pool, options, shown)


def _reports(jobs: list[Job], done: RunsResult) -> list[NotebookReport]:
    from looseleaf.batch.progress import report_of_job

    return [report_of_job(job, result) for job, result in zip(jobs, done.results, strict=True)]


def _write(
    jobs: list[Job], reports: list[NotebookReport], pool: Pool, began: datetime, report: Path | None, junit: Path | None
) -> None:
    import json
    import socket

    from looseleaf.batch.files import write_text
    from looseleaf.batch.junit import junit_of
    from looseleaf.batch.report import machine_of, report_of

    if report is not None:
        write_text(report, json.dumps(report_of(reports, machine_of(pool)), indent=1))
    if junit is not None:
        pairs = [(found, job.nb) for found, job in zip(reports, jobs, strict=True)]
        write_text(junit, junit_of(pairs, began, socket.gethostname()))


def _show(reports: list[NotebookReport], pool: Pool, written: list[Path]) -> None:
    from rich.console import Console

    from looseleaf.batch import tables
    from looseleaf.batch.report import totals_of

    console = Console()
    if not console.is_terminal:
        # Files and pipes have no width: a row must stay on its line.
        console = Console(width=240)

    def say(line: str) -> None:
        # A line of a file stays one; a terminal wraps at words.
        console.print(line, markup=False, highlight=False, soft_wrap=not console.is_terminal)

    for report in reports:
        if len(reports) > 1:
            say(tables.notebook_line(report))
        if report.cells:
            console.print(tables.cell_table(report.cells))
            for line in (*tables.unsaved_lines(report.cells), tables.process_line(report.cells, report.kernel_pid)):
                say(line)
        if len(reports) > 1:
            say("")
    if len(reports) > 1:
        say(f"{sum(report.outcome == 'ok' for report in reports)} of {len(reports)} notebooks ran to the end")
    cells = [cell for report in reports for cell in report.cells]
    totals = tables.total_lines(totals_of(cells))
    delays = tables.delays_line(pool.device, pool.delays) if any(cell.label == "gpu" for cell in cells) else ""
    for line in (*totals, tables.host_line(cells), delays):
        if line:
            say(line)
    outputs = [report.output for report in reports if report.outcome != "skipped"]
    if outputs or written:
        say("written: " + ", ".join([*outputs, *map(str, written)]))
    for report in reports:
        if report.failure:
            verb = "was interrupted" if report.outcome == "interrupted" else "failed"
            where = f"cell {report.failed_cell} {verb}: " if report.failed_cell else ""
            name = f"{report.notebook}: " if len(reports) > 1 else ""
            print(f"looseleaf: {name}{where}{report.failure}", file=sys.stderr)


def _exit_code(done: RunsResult) -> int:
    from looseleaf.batch.run import Outcome

    outcomes = {result.outcome for result in done.results}
    if done.interrupted:
        return EXIT_INTERRUPTED
    if Outcome.SYSTEM_FAILED in outcomes:
        return EXIT_SYSTEM_FAILED
    return EXIT_CELL_FAILED if Outcome.CELL_FAILED in outcomes else 0
