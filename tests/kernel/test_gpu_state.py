"""What a page shows of the GPU, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from looseleaf.kernel.gpu_state import LOST_REASONS, GpuState
from looseleaf.kernel.pages import PAGES_MAX, Pages
from looseleaf.v1.scheduler_pb2 import WorkerStage

READY = {"worker_id": "w", "prepare_ms": 12.5, "recipe": {"label": "gpu"}}
CPU = {"worker_id": "", "recipe": {"label": "cpu"}}


def stage(name: str) -> dict[str, Any]:
    return {"kind": "stage", "stage": WorkerStage.Value(f"WORKER_STAGE_{name}")}


def test_state_of_a_cell_from_its_edit_to_its_release() -> None:
    state, shown = GpuState(), []

    def step(change: Any, *args: Any) -> None:
        change(state, *args)
        shown.append(state.shown)

    assert state.shown == {"state": "released"}
    step(GpuState.edit_began, "c")
    step(GpuState.edit_ended, "c", READY)
    step(GpuState.run_began, "c")
    step(GpuState.event, {"kind": "queue", "position": 3, "reason": "no free GPU"})
    step(GpuState.event, {"kind": "lease", "gpu": 1, "host_id": "h0"})
    step(GpuState.event, stage("DEVICE_READY"))
    step(GpuState.event, stage("RUNNING"))
    step(GpuState.event, stage("SAVING"))
    step(GpuState.run_ended, {"status": "ok"})
    assert [entry["state"] for entry in shown] == [
        "preparing", "ready", "preparing", "queued", "preparing", "preparing", "running", "saving", "released",
    ]  # fmt: skip
    assert shown[1] == {"state": "ready", "cell_id": "c", "prepare_ms": 12.5}
    assert shown[3] == {"state": "queued", "cell_id": "c", "position": 3, "reason": "no free GPU"}
    assert shown[6] == {"state": "running", "cell_id": "c", "gpu": 1, "host": "h0"}


def test_typing_in_a_cpu_cell_shows_no_preparation_once_that_is_known() -> None:
    state = GpuState()
    state.edit_began("c")
    assert state.shown["state"] == "preparing"
    state.edit_ended("c", CPU)
    state.edit_began("c")
    assert state.shown == {"state": "released"}
    # Another cell, or this one once it needs a GPU, is shown.
    state.edit_ended("c", READY)
    state.edit_began("c")
    assert state.shown["state"] == "preparing"


@pytest.mark.parametrize("passed", [("run_began", "c"), ("run_began", "d"), ("edit_left", "c"), ("edit_left", "")])
def test_preparation_that_was_on_its_way_makes_nothing_ready(passed: tuple[str, str]) -> None:
    name, cell_id = passed
    for prepared_before in (False, True):
        state = GpuState()
        state.edit_began("c")
        if prepared_before:
            state.edit_ended("c", READY)
            assert state.shown["state"] == "ready"
        getattr(state, name)(cell_id)
        if not prepared_before:
            state.edit_ended("c", READY)
        state.run_ended({"status": "ok"})
        assert state.shown == {"state": "released"}
        # What is edited from now on counts.
        state.edit_began("c")
        state.edit_ended("c", READY)
        assert state.shown["state"] == "ready"


def test_leaving_a_cell_leaves_what_another_has_ready() -> None:
    state = GpuState()
    state.edit_began("c")
    state.edit_left("b")
    state.edit_ended("c", READY)
    state.edit_left("b")
    assert state.shown["state"] == "ready"


def test_text_that_is_edited_while_a_cell_runs_is_ready_after_it() -> None:
    state = GpuState()
    state.run_began("c")
    state.edit_began("d")
    state.edit_ended("d", READY)
    state.run_ended({"status": "ok"})
    assert state.shown["cell_id"] == "d" and state.shown["state"] == "ready"


@pytest.mark.parametrize("reason", sorted(LOST_REASONS))
def test_lost_worker_is_told_until_the_next_one(reason: str) -> None:
    state = GpuState()
    state.run_began("c")
    state.run_ended({"status": "error", "ename": reason, "evalue": "why"})
    assert state.shown == {"state": "lost", "reason": "why"}
    state.edit_began("c")
    state.edit_ended("c", CPU)
    assert state.shown["state"] == "lost"
    state.run_began("c")
    state.run_ended({"status": "error", "ename": "ValueError", "evalue": "its own"})
    assert state.shown == {"state": "released"}


def test_no_cluster_is_offline_until_one_answers() -> None:
    state = GpuState()
    state.edit_began("c")
    state.edit_failed("NO_CLUSTER", "nobody answers")
    assert state.shown == {"state": "offline", "reason": "nobody answers"}
    state.edit_ended("c", CPU)
    assert state.shown == {"state": "released"}
    state.run_began("c")
    state.run_ended({"status": "error", "ename": "NO_CLUSTER", "evalue": "gone"})
    assert state.shown == {"state": "offline", "reason": "gone"}


def test_left_thread_holds_the_gpu_until_its_end() -> None:
    state = GpuState()
    left = {"kind": "left", "items": [{"kind": "thread", "name": "T"}]}
    state.event({**left, "state": "held"})
    assert state.shown == {"state": "held", "reason": "background thread 'T'"}
    state.event({**left, "state": "ended"})
    assert state.shown == {"state": "released"}


def test_end_of_a_run_is_told_once() -> None:
    state = GpuState()
    state.run_began("c")
    state.run_ended({"ename": "WORKER_LOST"})
    state.run_ended({})
    assert state.shown["state"] == "lost"
    # Late events belong to nobody.
    state.event(stage("SAVING"))
    assert state.shown["state"] == "lost"


def test_pages_get_each_change_once_and_only_the_newest_pages_do() -> None:
    pushed: list[tuple[str, str, int]] = []
    pages = Pages(lambda page, state: pushed.append((page, state["state"], state["change"])))
    pages.met("")
    for number in range(PAGES_MAX + 1):
        pages.met(f"p{number}")
    pages.note(GpuState.run_began, "c")
    pages.note(GpuState.run_began, "c")
    pages.take_event({"kind": "output"})
    assert pushed == [(f"p{number}", "preparing", 1) for number in range(1, PAGES_MAX + 1)]
    assert pages.shown() == {"state": "preparing", "cell_id": "c", "change": 1}


@pytest.mark.parametrize("error", [TypeError, ValueError, AttributeError, KeyError, RuntimeError])
def test_event_that_cannot_be_shown_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    def fail(_state: GpuState, _message: Any) -> None:
        raise error("a fault of ours")

    monkeypatch.setattr(GpuState, "event", fail)
    pages = Pages(lambda _page, _state: None)
    pages.take_event({"kind": "left", "state": "held"})
    assert f"event_not_shown error={error.__name__}" in caplog.text
    # It holds no lock.
    pages.note(GpuState.run_began, "c")
    assert pages.shown()["state"] == "preparing"


def test_page_that_cannot_be_told_stops_nothing() -> None:
    told: list[str] = []

    def push(page: str, state: dict[str, Any]) -> None:
        if page == "gone":
            raise OSError("its socket is closed")
        told.append(state["state"])

    pages = Pages(push)
    pages.met("gone")
    pages.met("here")
    pages.note(GpuState.run_began, "c")
    pages.note(GpuState.run_ended, {})
    assert told == ["preparing", "released"]
