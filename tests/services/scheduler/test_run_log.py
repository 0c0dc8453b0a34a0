"""The log of GPU cells: that the simulator reads it, that it stays bounded, and that nobody waits for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from looseleaf.errors import Unavailable
from looseleaf.ids import Epoch, ExecutionId, SessionId, Version
from looseleaf.services.scheduler import run_log
from looseleaf.services.scheduler.core.events import RunRequested, Tick
from looseleaf.services.scheduler.core.facts import RecipeFacts
from looseleaf.services.scheduler.run_log import RunLog, append_runs
from looseleaf.services.scheduler.run_recorder import LoggedRun, RunRecorder
from looseleaf.sim.recorded import read_records


def line(run_s: float, path: str = "warm", prepare_s: float | None = None) -> LoggedRun:
    return LoggedRun("s1", run_s, run_s - 1.0, run_s + 0.5, 2.0, True, 1024, 2, path, prepare_s)


class Lines(RunRecorder):
    """A line for each event."""

    def __init__(self) -> None:
        super().__init__(lambda _execution: None, 20.0)

    def take(self, event: object, now_s: float) -> LoggedRun | None:
        return None if isinstance(event, Tick) else line(now_s)


RUN = RunRequested("r", ExecutionId("x"), SessionId("s"), Epoch(1), RecipeFacts("hash", Version(1)))


async def at_once(function: Callable[..., Any], *args: Any) -> None:
    function(*args)


def test_log_is_what_the_simulator_replays_and_nobody_else_reads(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    append_runs(path, 1 << 20, [line(9.0, "cold", 0.7), line(20.0)])
    assert path.stat().st_mode & 0o777 == 0o600
    (records,) = read_records(path).values()
    assert [(record.run_s, record.edit_s, record.began_s, record.path, record.prepare_s) for record in records] == [
        (9.0, 8.0, 9.5, "cold", 0.7), (20.0, 19.0, 20.5, "warm", None)]


def test_log_that_grows_too_long_moves_aside(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    for number in range(9):
        append_runs(path, 500, [line(float(number))])
    assert path.stat().st_size <= 500
    assert (tmp_path / "runs.jsonl.1").stat().st_size <= 500
    assert json.loads(path.read_text().splitlines()[-1])["run_s"] == 8.0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["runs.jsonl", "runs.jsonl.1"]


def test_log_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="RUN_LOG_IO"):
        append_runs(tmp_path / "none" / "runs.jsonl", 300, [line(1.0)])


async def test_events_are_taken_while_the_disk_is_slow_and_what_does_not_fit_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_log, "WAITING_MAX", 3)
    path, released = tmp_path / "runs.jsonl", asyncio.Event()
    steps: asyncio.Queue[str] = asyncio.Queue()

    async def slow(function: Callable[..., Any], *args: Any) -> None:
        steps.put_nowait("begins")
        await released.wait()
        function(*args)
        steps.put_nowait("written")

    written = RunLog(path, 1 << 20, Lines(), slow)
    task = asyncio.create_task(written.write_forever())
    written.take(RUN, 1.0)
    assert await steps.get() == "begins"
    for number in range(2, 8):
        written.take(RUN, float(number))
        written.take(Tick(), float(number))
    assert not path.exists()
    released.set()
    assert [await steps.get() for _ in range(3)] == ["written", "begins", "written"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [json.loads(text)["run_s"] for text in path.read_text().splitlines()] == [1.0, 2.0, 3.0, 4.0]


async def test_log_goes_on_after_a_write_that_failed(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    written = RunLog(folder / "runs.jsonl", 1 << 20, Lines(), at_once)
    written.take(RUN, 1.0)
    await written.flush()
    folder.mkdir()
    written.take(RUN, 2.0)
    await written.flush()
    assert [json.loads(text)["run_s"] for text in (folder / "runs.jsonl").read_text().splitlines()] == [2.0]
