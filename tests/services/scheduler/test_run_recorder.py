"""What a line of the run log says of a cell: its edit, its start, its end, and what of it was a whole preparation."""

from __future__ import annotations

import pytest

from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, Version, WorkerId
from looseleaf.services.scheduler import run_recorder
from looseleaf.services.scheduler.core.events import Event, ExecutionReported, PreparationRequested, RunRequested
from looseleaf.services.scheduler.core.facts import (
    ExecutionRecord,
    ExecutionState,
    Figures,
    Lease,
    RecipeFacts,
    StartPath,
    WorkerReport,
    WorkerStage,
)
from looseleaf.services.scheduler.run_recorder import LoggedRun, RunRecorder

RECIPE = RecipeFacts("hash", Version(1), frozenset({"secret_name"}), gpu_count=2, device_bytes=1024)
EDIT_PAUSE_S = 20.0


def edit(session: str = "s1", *, predicted: bool = False) -> Event:
    return PreparationRequested("p", SessionId(session), Epoch(1), RECIPE, predicted=predicted)


def run(execution: str = "x1", session: str = "s1") -> Event:
    return RunRequested("r", ExecutionId(execution), SessionId(session), Epoch(1), RECIPE)


def report(
    state: ExecutionState, execution: str = "x1", figures: Figures | None = None, worker: str = "",
) -> Event:
    told = WorkerReport(WorkerId(worker), SessionId("s1"), WorkerStage.RUNNING) if worker else None
    return ExecutionReported(
        "e", ExecutionId(execution), LeaseId("l1"), state, "", state.ended, figures, worker=told)


def leased(path: StartPath, worker: str) -> ExecutionRecord:
    execution = ExecutionId("x1")
    lease = Lease(
        LeaseId("l1"), SessionId("s1"), Epoch(1), execution, HostId("h1"), "h1", (0,), WorkerId(worker), path, 1000)
    return ExecutionRecord(1, execution, SessionId("s1"), Epoch(1), ExecutionState.DISPATCHED, lease=lease)


def lines_of(events: list[tuple[float, Event]], record: ExecutionRecord | None = None) -> list[LoggedRun]:
    recorder = RunRecorder(lambda _execution: record, EDIT_PAUSE_S)
    return [line for at_s, event in events if (line := recorder.take(event, at_s)) is not None]


def test_cell_is_logged_once_with_its_edit_start_and_sizes() -> None:
    (line,) = lines_of([
        (1.0, edit()), (3.0, edit()), (9.0, run()), (9.5, run()), (10.0, report(ExecutionState.STARTED)),
        (11.0, report(ExecutionState.STARTED)), (14.0, report(ExecutionState.FINISHED)),
        (15.0, report(ExecutionState.SAVED, figures=Figures(700.0, run_s=3.9))),
        (16.0, report(ExecutionState.SAVED)),
    ])
    assert line == LoggedRun("s1", 9.0, 1.0, 10.0, 3.9, True, 1024, 2)


def test_without_figures_the_reports_tell_the_duration() -> None:
    (line,) = lines_of([
        (9.0, run()), (10.0, report(ExecutionState.STARTED)), (14.0, report(ExecutionState.FINISHED)),
        (15.0, report(ExecutionState.FAILED))])
    assert (line.began_s, line.duration_s, line.prepare_s) == (10.0, 4.0, None)


@pytest.mark.parametrize(
    ("edits_s", "edit_s"),
    [
        ([], 100.0),
        ([85.0], 85.0),
        # Each edit comes soon after the one before, and the run after the last.
        ([45.0, 65.0, 85.0], 45.0),
        # An hour of thinking lies between: the first one was abandoned.
        ([1.0, 95.0], 95.0),
        # So was this one: Run came without an edit.
        ([79.0], 100.0),
    ],
)  # fmt: skip
def test_edits_that_belong_to_a_run_follow_each_other(edits_s: list[float], edit_s: float) -> None:
    (line,) = lines_of([
        *((at_s, edit()) for at_s in edits_s), (100.0, run()), (101.0, report(ExecutionState.STARTED)),
        (102.0, report(ExecutionState.FAILED))])
    assert line.edit_s == edit_s


def test_guess_is_no_edit() -> None:
    (line,) = lines_of([
        (95.0, edit(predicted=True)), (100.0, run()), (101.0, report(ExecutionState.STARTED)),
        (102.0, report(ExecutionState.FAILED))])
    assert line.edit_s == 100.0


def test_edit_is_of_one_run_only() -> None:
    first, second = lines_of([
        (95.0, edit()), (100.0, run()), (101.0, report(ExecutionState.STARTED)), (102.0, report(ExecutionState.SAVED)),
        (103.0, run("x2")), (104.0, report(ExecutionState.STARTED, "x2")), (105.0, report(ExecutionState.SAVED, "x2")),
    ])  # fmt: skip
    assert (first.edit_s, second.edit_s) == (95.0, 103.0)


@pytest.mark.parametrize(
    ("path", "leased_worker", "ran_on", "logged"),
    [
        (StartPath.PREPARED, "w1", "w1", ("prepared", None)),
        (StartPath.WARM, "w1", "w1", ("warm", None)),
        # It had been prepared for another cell: what was left to do is no whole preparation.
        (StartPath.COLD, "w1", "w1", ("retargeted", None)),
        (StartPath.COLD, "", "w2", ("cold", 0.7)),
        # The leased worker was gone, so that the daemon made a new one.
        (StartPath.WARM, "w1", "w2", ("cold", 0.7)),
    ],
)  # fmt: skip
def test_only_the_preparation_of_a_new_worker_is_a_whole_one(
    path: StartPath, leased_worker: str, ran_on: str, logged: tuple[str, float | None],
) -> None:
    (line,) = lines_of([
        (9.0, run()), (10.0, report(ExecutionState.STARTED, worker=ran_on)),
        (15.0, report(ExecutionState.SAVED, figures=Figures(700.0, run_s=3.9), worker=ran_on)),
    ], leased(path, leased_worker))  # fmt: skip
    assert (line.path, line.prepare_s) == logged


def test_cell_that_never_started_is_not_logged() -> None:
    assert lines_of([(9.0, run()), (15.0, report(ExecutionState.FAILED))]) == []


def test_recorder_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_recorder, "OPEN_MAX", 3)
    recorder = RunRecorder(lambda _execution: None, EDIT_PAUSE_S)
    for number in range(10):
        recorder.take(edit(f"s{number}"), 1.0)
    for number in range(10):
        recorder.take(run(f"x{number}", "s"), 1.0)
        recorder.take(report(ExecutionState.STARTED, f"x{number}"), 1.0)
    assert (len(recorder._edits), len(recorder._open), len(recorder._started)) == (3, 3, 3)
