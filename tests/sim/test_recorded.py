"""A recorded log is replayed as it was, in a closed loop, and anything that is no log is refused by its line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from looseleaf.cli.simulate import _workload
from looseleaf.errors import InvalidArgument
from looseleaf.sim.model import Model
from looseleaf.sim.recorded import read_records, replayed_streams

RUN: dict[str, Any] = {"session": "a", "run_s": 10.0, "duration_s": 2.0, "gpu": True}


def write(path: Path, *runs: object) -> Path:
    path.write_text("".join(f"{json.dumps(run)}\n" for run in runs))
    return path


def test_gaps_edits_and_runs_are_those_of_the_log(tmp_path: Path, w1: Model) -> None:
    log = write(
        tmp_path / "log.jsonl", RUN | {"run_s": 112.0, "edit_s": 100.0, "gpu": False, "abandoned": True}, RUN,
        RUN | {"run_s": 120.0, "edit_s": 50.0, "closure_bytes": 7, "gpu_count": 2, "prepare_s": 0.5})
    stream = replayed_streams(read_records(log), w1.workload, w1.mechanism, 1, 1)[0]
    first, second, third, again = (stream.next(0.0) for _ in range(4))
    assert (first.gpu, first.run_s, again.run_s, again.gap_s) == (True, 2.0, 2.0, first.gap_s)
    assert (second.gap_s, second.edit_s, second.gpu, second.abandoned) == (100.0, 12.0, False, True)
    # It began to edit while the cell before ran: the window is the whole gap.
    assert (third.gap_s, third.edit_s) == (6.0, 6.0)
    assert (third.closure_bytes, third.gpu_count, third.prepare_s, stream.gpus) == (7, 2, 0.5, 2)


def test_what_a_cell_waited_before_its_start_is_no_thinking(tmp_path: Path, w1: Model) -> None:
    log = write(
        tmp_path / "log.jsonl", RUN | {"began_s": 40.0, "duration_s": 5.0}, RUN | {"run_s": 50.0, "edit_s": 50.0})
    stream = replayed_streams(read_records(log), w1.workload, w1.mechanism, 1, 1)[0]
    _first, second = stream.next(0.0), stream.next(0.0)
    assert (second.gap_s, second.edit_s) == (5.0, 0.0)


@pytest.mark.parametrize(
    ("path", "whole"), [("cold", True), ("warm", False), ("prepared", False), ("retargeted", False)])
def test_preparation_of_a_worker_that_was_there_is_drawn(tmp_path: Path, w1: Model, path: str, whole: bool) -> None:
    log = write(tmp_path / "log.jsonl", RUN | {"path": path, "prepare_s": 0.001})
    stream = replayed_streams(read_records(log), w1.workload, w1.mechanism, 1, 1)[0]
    assert (stream.next(0.0).prepare_s == 0.001) == whole


def test_more_sessions_than_recorded_replay_the_same_from_other_cells_on(tmp_path: Path, w1: Model) -> None:
    log = write(tmp_path / "log.jsonl", *(RUN | {"run_s": 100.0 * i, "duration_s": float(i)} for i in range(1, 60)))
    streams = replayed_streams(read_records(log), w1.workload, w1.mechanism, 4, 1)
    begins = [stream.next(0.0).run_s for stream in streams]
    assert begins[0] == 1.0 and len(set(begins)) > 1
    repeated = replayed_streams(read_records(log), w1.workload, w1.mechanism, 4, 1)
    assert [stream.next(0.0).run_s for stream in repeated] == begins


def test_what_a_log_does_not_tell_is_drawn_from_the_calibrated_model(tmp_path: Path) -> None:
    model, streams, sessions = _workload(str(write(tmp_path / "log.jsonl", RUN)))
    assert streams is not None and sessions == 1
    slow = replace(model, mechanism=replace(model.mechanism, prepare_median_s=20.0, prepare_max_s=20.0))
    assert streams(slow, 1, 1)[0].next(0.0).prepare_s > 10.0 > streams(model, 1, 1)[0].next(0.0).prepare_s


@pytest.mark.parametrize("run", [
    3, {}, RUN | {"source": "print(1)"}, RUN | {"run_s": "now"}, RUN | {"run_s": True}, RUN | {"duration_s": -1.0},
    RUN | {"gpu": 1}, RUN | {"session": 4}, RUN | {"path": 1}, RUN | {"began_s": "soon"},
    RUN | {"gpu_count": 0}, RUN | {"edit_s": float("inf")},
])  # fmt: skip
def test_line_that_is_no_run_is_refused_by_its_number(tmp_path: Path, run: object) -> None:
    with pytest.raises(InvalidArgument, match="line 2") as refused:
        read_records(write(tmp_path / "log.jsonl", RUN, run))
    assert refused.value.reason == "WORKLOAD_MALFORMED"


@pytest.mark.parametrize("text", ["", "\n\n", "no json\n"])
def test_file_without_runs_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidArgument):
        read_records(path)
