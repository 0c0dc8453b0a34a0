"""Several notebooks at once with real kernels against the fake daemon."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batch_fixtures import write_notebook_of

from looseleaf.batch.files import plan_jobs, read_notebook
from looseleaf.batch.pool import Pool
from looseleaf.batch.report import CellRecord
from looseleaf.batch.run import BatchResult, Outcome
from looseleaf.batch.several import RunOptions, RunsResult, run_all
from tests.kernel_processes import kernels

WAIT = "import threading\nprint('waits', flush=True)\nthreading.Event().wait(100)"


class Heard:
    """A Listener that keeps everything; `on_cell` is called when a cell begins."""

    def __init__(self, on_cell: Callable[[int, str], None] = lambda _index, _cell: None) -> None:
        self.events: list[tuple[str, int]] = []
        self.under_way = self.at_once = 0
        self._on_cell = on_cell

    def began(self, index: int) -> None:
        self.events.append(("began", index))
        self.under_way += 1
        self.at_once = max(self.at_once, self.under_way)

    def cell_began(self, index: int, cell_id: str) -> None:
        self._on_cell(index, cell_id)

    def cell_ended(self, index: int, record: CellRecord) -> None:
        self.events.append((record.id, index))

    def ended(self, index: int, result: BatchResult) -> None:
        self.events.append((str(result.outcome), index))
        self.under_way -= result.outcome is not Outcome.SKIPPED


@pytest.fixture
def run(daemon: Any, tmp_path: Path) -> Callable[..., tuple[RunsResult, list[Any]]]:
    """Runs notebooks given as lists of cells; the result and the written notebooks, None for one that is not there."""

    def run_them(
        *notebooks: list[str], heard: Heard | None = None, **options: Any
    ) -> tuple[RunsResult, list[Any]]:
        sources = [
            write_notebook_of(tmp_path / f"n{number}.ipynb", *cells) for number, cells in enumerate(notebooks)
        ]
        jobs = plan_jobs(sources, tmp_path / "out" if len(sources) > 1 else tmp_path / "out.ipynb")
        # Only the first notebook has the daemon, which keeps one session.
        pool = Pool(str(daemon.path), more_endpoints=tuple(str(tmp_path / f"no{n}.sock") for n in range(9)))
        # Other tests of this process may keep kernels.
        others = kernels()
        done = run_all(jobs, pool, RunOptions(**options), heard or Heard())
        written = [read_notebook(job.output) if job.output.exists() else None for job in jobs]
        assert kernels() <= others
        return done, written

    return run_them


def test_notebooks_run_side_by_side_within_the_bound_and_are_all_written(run: Any) -> None:
    heard = Heard()
    done, written = run(["x = 1", "%%gpu\nx + 1"], ["'b'"], ["'c'"], heard=heard, at_once=2)
    assert [result.outcome for result in done.results] == ["ok", "ok", "ok"] and not done.interrupted
    assert heard.at_once == 2
    texts = [nb.cells[-1].outputs[0]["data"]["text/plain"] for nb in written]
    assert texts == ["2", "'b'", "'c'"]
    assert done.results[0].records[1].worker == 4242
    assert all(0 < result.start_s <= result.wall_s for result in done.results)


@pytest.mark.slow
def test_one_failing_notebook_stops_no_other(run: Any) -> None:
    done, written = run(["1/0", "'never'"], ["'b'"])
    assert [result.outcome for result in done.results] == [Outcome.CELL_FAILED, Outcome.OK]
    assert written[0].cells[0].outputs[0]["ename"] == "ZeroDivisionError" and written[0].cells[1].outputs == []
    assert written[1].cells[0].outputs[0]["data"]["text/plain"] == "'b'"


@pytest.mark.slow
def test_fail_fast_interrupts_what_runs_and_begins_nothing_more(run: Any) -> None:
    # The failing one waits until the other has said that it waits, so that there is something to interrupt.
    sentinel = "import pathlib, time\nwhile not pathlib.Path('waits').exists(): time.sleep(0.01)\n"
    waiting = WAIT.replace("threading.Event", "open('waits', 'w').close()\nthreading.Event")
    done, written = run([waiting], [sentinel + "1/0"], ["'never'"], at_once=2, fail_fast=True)
    assert [str(result.outcome) for result in done.results] == ["interrupted", "cell_failed", "skipped"]
    assert not done.interrupted
    assert [output.output_type for output in written[0].cells[0].outputs] == ["stream", "error"]
    assert written[2] is None


@pytest.mark.slow
def test_gpu_cell_without_a_cluster_is_a_failure_of_the_system(run: Any) -> None:
    done, _written = run(["1"], ["%%gpu\n1"])
    assert [result.outcome for result in done.results] == [Outcome.OK, Outcome.SYSTEM_FAILED]
    assert done.results[1].failure.startswith("NO_CLUSTER")


def test_kernel_that_dies_is_a_failure_of_the_system_and_its_outputs_stay(run: Any) -> None:
    done, written = run(["print('kept')", "import os; os._exit(3)"])
    assert done.results[0].outcome is Outcome.SYSTEM_FAILED and done.results[0].failure.startswith("KERNEL_DIED")
    assert done.results[0].failed_cell == "c1" and written[0].cells[0].outputs[0]["text"] == "kept\n"


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_signal_interrupts_the_cell_and_writes_what_was_executed(run: Any, number: int) -> None:
    def stop(_index: int, cell: str) -> None:
        if cell == "c1":
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    done, written = run(["print('kept')", WAIT, "'never'"], ["'queued'"], heard=Heard(stop), at_once=1)
    assert done.interrupted and [str(result.outcome) for result in done.results] == ["interrupted", "skipped"]
    assert written[0].cells[0].outputs[0]["text"] == "kept\n"
    assert written[0].cells[1].outputs[-1]["ename"] == "KeyboardInterrupt" and written[0].cells[2].outputs == []
    assert signal.getsignal(number) is before


@pytest.mark.slow
def test_second_signal_ends_a_cell_that_takes_no_interrupt(run: Any) -> None:
    stubborn = "import time\nprint('waits', flush=True)\nwhile True:\n    try:\n        time.sleep(100)\n    except KeyboardInterrupt:\n        pass"  # noqa: E501

    def stop(_index: int, cell: str) -> None:
        if cell == "c1":
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)

    done, written = run(["print('kept')", stubborn], heard=Heard(stop))
    assert done.interrupted and done.results[0].outcome is Outcome.INTERRUPTED
    assert written[0].cells[0].outputs[0]["text"] == "kept\n"


def test_signal_while_a_kernel_starts_leaves_no_process(run: Any) -> None:
    class StopsAtOnce(Heard):
        def began(self, index: int) -> None:
            super().began(index)
            os.kill(os.getpid(), signal.SIGINT)

    done, written = run(["'never'"], heard=StopsAtOnce())
    assert done.results[0].outcome is Outcome.INTERRUPTED and written[0].cells[0].outputs == []


@pytest.mark.slow
def test_output_that_cannot_be_written_fails_its_notebook_only(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(index: int, _cell: str) -> None:
        if index == 0:
            (tmp_path / "out" / ".n0.ipynb.new").mkdir()

    done, written = run(["'a'"], ["'b'"], heard=Heard(vanish))
    assert done.results[0].outcome is Outcome.SYSTEM_FAILED
    assert done.results[0].failure.startswith("OUTPUT_UNWRITABLE")
    assert done.results[1].outcome is Outcome.OK and written[0] is None and written[1] is not None


def test_hosts_of_a_cluster_take_turns() -> None:
    pool = Pool("h0.sock", more_endpoints=("h1.sock",))
    assert [pool.endpoint_of(index) for index in range(3)] == ["h0.sock", "h1.sock", "h0.sock"]
