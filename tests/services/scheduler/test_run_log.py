"""The log of GPU cells: what is in it, that the simulator reads it, and that it stays bounded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from looseleaf.errors import Unavailable
from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId, Version
from looseleaf.services.scheduler import run_log
from looseleaf.services.scheduler.core.events import Event, ExecutionReported, PreparationRequested, RunRequested
from looseleaf.services.scheduler.core.facts import ExecutionState, Figures, RecipeFacts
from looseleaf.services.scheduler.run_log import LoggedRun, RunLog, RunRecorder
from looseleaf.sim.recorded import read_records

RECIPE = RecipeFacts("hash", Version(1), frozenset({"secret_name"}), gpu_count=2, device_bytes=1024)


def edit(session: str = "s1") -> Event:
    return PreparationRequested("p", SessionId(session), Epoch(1), RECIPE)


def run(execution: str = "x1", session: str = "s1") -> Event:
    return RunRequested("r", ExecutionId(execution), SessionId(session), Epoch(1), RECIPE)


def report(state: ExecutionState, execution: str = "x1", figures: Figures | None = None) -> Event:
    return ExecutionReported("e", ExecutionId(execution), LeaseId("l1"), state, "", state.ended, figures)


def lines_of(events: list[tuple[float, Event]]) -> list[LoggedRun]:
    recorder = RunRecorder()
    return [line for at_s, event in events if (line := recorder.take(event, at_s)) is not None]


def test_cell_is_logged_once_with_its_edit_run_and_sizes() -> None:
    (line,) = lines_of([
        (1.0, edit()), (3.0, edit()), (9.0, run()), (9.5, run()), (10.0, report(ExecutionState.STARTED)),
        (14.0, report(ExecutionState.FINISHED)),
        (15.0, report(ExecutionState.SAVED, figures=Figures(700.0, run_s=3.9))),
        (16.0, report(ExecutionState.SAVED)),
    ])
    assert line == LoggedRun("s1", 9.0, 1.0, 3.9, True, 1024, 2, 0.7)


def test_without_figures_the_reports_tell_the_duration_and_a_cell_without_edits_has_none() -> None:
    (line,) = lines_of([
        (9.0, run()), (10.0, report(ExecutionState.STARTED)), (14.0, report(ExecutionState.FINISHED)),
        (15.0, report(ExecutionState.FAILED))])
    assert (line.edit_s, line.duration_s, line.prepare_s) == (None, 4.0, None)


def test_cell_that_never_started_is_not_logged() -> None:
    assert lines_of([(9.0, run()), (15.0, report(ExecutionState.FAILED))]) == []


def test_recorder_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "OPEN_MAX", 3)
    recorder = RunRecorder()
    for number in range(10):
        recorder.take(edit(f"s{number}"), 1.0)
    for number in range(10):
        recorder.take(run(f"x{number}", "s"), 1.0)
        recorder.take(report(ExecutionState.STARTED, f"x{number}"), 1.0)
    assert (len(recorder._edits), len(recorder._open), len(recorder._began_s)) == (3, 3, 3)


def test_log_is_what_the_simulator_replays_and_holds_no_names(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    RunLog(path, 1 << 20).write([
        LoggedRun("s1", 9.0, 1.0, 3.9, True, 1024, 2, 0.7), LoggedRun("s1", 20.0, None, 1.0, True, 0, 1, None)])
    assert path.stat().st_mode & 0o777 == 0o600
    assert "secret" not in path.read_text()
    (records,) = read_records(path).values()
    assert [(record.run_s, record.edit_s, record.closure_bytes) for record in records] == [
        (9.0, 1.0, 1024), (20.0, None, 0)]


def test_log_that_grows_too_long_moves_aside(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    log = RunLog(path, 300)
    for number in range(9):
        log.write([LoggedRun("s1", float(number), None, 1.0, True, 0, 1, None)])
    assert path.stat().st_size <= 300
    assert (tmp_path / "runs.jsonl.1").stat().st_size <= 300
    assert json.loads(path.read_text().splitlines()[-1])["run_s"] == 8.0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["runs.jsonl", "runs.jsonl.1"]


def test_log_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="RUN_LOG_IO"):
        RunLog(tmp_path / "none" / "runs.jsonl", 300).write([LoggedRun("s1", 1.0, None, 1.0, True, 0, 1, None)])
