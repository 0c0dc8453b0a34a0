"""What a person sees while notebooks run, on a terminal and in a log."""

from __future__ import annotations

from pathlib import Path

import pytest
from batch_fixtures import notebook_of

from looseleaf.batch.files import Job
from looseleaf.batch.progress import ProgressShown
from looseleaf.batch.report import CellRecord
from looseleaf.batch.run import BatchResult, Outcome

JOBS = [Job(Path(f"[a]{number}.ipynb"), Path(f"o{number}.ipynb"), notebook_of("1", "", "2")) for number in range(2)]


def run_through(jobs: list[Job]) -> None:
    with ProgressShown(jobs) as shown:
        for index in range(len(jobs) - 1):
            shown.began(index)
            for cell in ("c0", "c2"):
                shown.cell_began(index, cell)
                shown.cell_ended(index, CellRecord(cell))
            shown.ended(index, BatchResult([CellRecord("c0"), CellRecord("c2")], wall_s=1.0))
        shown.ended(len(jobs) - 1, BatchResult(outcome=Outcome.SKIPPED))


def test_log_gets_a_line_for_each_end(capsys: pytest.CaptureFixture[str]) -> None:
    run_through(JOBS)
    assert capsys.readouterr().err.splitlines() == [
        "[1/2] [a]0.ipynb: ran, 2 CPU and 0 GPU cells in 1.0 s", "[2/2] [a]1.ipynb: skipped"
    ]  # fmt: skip
    run_through(JOBS[:1])
    assert capsys.readouterr().err == ""


def test_terminal_gets_a_bar_for_each_running_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    run_through(JOBS)
    said = capsys.readouterr().err
    # Brackets in a name are no marks of rich's.
    assert "[a]0.ipynb: ran" in said and "[a]1.ipynb: skipped" in said
