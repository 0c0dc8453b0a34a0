"""`--resume`: goes on after the last cell whose state is still in the store."""

from __future__ import annotations

import asyncio
import errno
import queue
from pathlib import Path
from typing import Any

import pytest
from batch_fixtures import notebook_of, write_notebook_of
from jupyter_client.session import Session

from looseleaf.batch import client, save_keeper, several
from looseleaf.batch.files import plan_jobs, read_notebook
from looseleaf.batch.pool import Pool
from looseleaf.batch.progress import ProgressShown
from looseleaf.batch.resume import CellDone, ResumeRecord, next_save_due, refuse_without_cluster, source_hash
from looseleaf.batch.run import BatchResult, Outcome
from looseleaf.batch.save_keeper import SaveKeeper, StateGone
from looseleaf.batch.several import RunOptions, RunsResult, run_all
from looseleaf.checkpoint.version_list import ListedVersion
from looseleaf.errors import PreconditionFailed, Timeout, Unavailable
from looseleaf.kernel.save_points import SavePoints, newest_whole


def done(nb: Any, index: int, version: int = 0) -> CellDone:
    shown = [{"output_type": "stream", "name": "stdout", "text": f"of {index}"}]
    return CellDone(index, source_hash(nb, index), index + 1, shown, version, f"x-{version}" if version else "")


def test_record_is_read_as_it_was_written_also_when_its_end_was_cut(tmp_path: Path) -> None:
    nb, output = notebook_of("a = 1", "b = 2", "c = 3"), tmp_path / "out.ipynb"
    record = ResumeRecord.read(output)
    assert not record.session_id and not record.cells
    record.cells.append(done(nb, 0))
    record.begin("s-1")
    record.add(done(nb, 1, version=4))
    record.add(done(nb, 2, version=5))
    record.path.write_text(record.path.read_text()[:-20])
    again = ResumeRecord.read(output)
    assert again.session_id == "s-1" and again.cells == [done(nb, 0), done(nb, 1, version=4)]
    fresh = notebook_of("a = 1", "b = 2", "changed = 3")
    assert again.save_points(fresh) == [done(nb, 1, version=4)]
    assert again.show_again(fresh, again.cells[1]) == 2
    assert [cell.execution_count for cell in fresh.cells] == [1, 2, None]
    assert fresh.cells[1].outputs[0].text == "of 1"
    again.forget()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text", ["", "no json", '{"v": 9, "session_id": "s"}', '{"v": 1}', "[]", '{"v": 1, "session_id": "s"}\n7']
)
def test_record_of_another_kind_is_none(tmp_path: Path, text: str) -> None:
    ResumeRecord.beside(tmp_path / "out.ipynb").path.write_text(text)
    record = ResumeRecord.read(tmp_path / "out.ipynb")
    assert not record.session_id and not record.cells


@pytest.mark.parametrize(
    ("now", "points"),
    [
        (("a = 1", "b = 2", "c = 3"), [2, 1]),
        (("a = 1", "b = 2", "c = 4", "d = 5"), [1]),
        (("a = 2", "b = 2", "c = 3"), []),
        (("a = 1", "new", "b = 2", "c = 3"), []),
        (("a = 1",), []),
    ],
)
def test_cells_behind_a_changed_one_run_again(now: tuple[str, ...], points: list[int]) -> None:
    nb = notebook_of("a = 1", "b = 2", "c = 3")
    record = ResumeRecord(Path("unused"), "s", [done(nb, 0), done(nb, 1, version=1), done(nb, 2, version=2)])
    assert [each.index for each in record.save_points(notebook_of(*now))] == points


def test_save_point_counts_only_while_the_store_has_it_whole() -> None:
    def listed(version: int, execution: str, lazy_bytes: int = 0) -> ListedVersion:
        return ListedVersion(version, version - 1, 0, True, 1, 1, execution, lazy_bytes)

    points = [(9, "x-9"), (7, "x-7"), (4, "x-4")]
    assert newest_whole(points, [listed(9, "x-9"), listed(7, "x-7")]) == 0
    # A lost host took version 9, and its number was given anew.
    assert newest_whole(points, [listed(9, "other"), listed(7, "x-7")]) == 1
    assert newest_whole(points, [listed(7, "x-7", lazy_bytes=5), listed(4, "x-4")]) == 2
    assert newest_whole(points, []) == -1


def test_saving_takes_a_small_share_of_the_time() -> None:
    assert next_save_due(0.0, 0.0)
    assert not next_save_due(1.0, 0.5)
    assert next_save_due(5.0, 0.5)


def test_resume_without_the_cluster_is_refused_only_if_there_is_something_to_go_on_from() -> None:
    refuse_without_cluster([ResumeRecord(Path("a"))], embedded=True)
    refuse_without_cluster([ResumeRecord(Path("a"), "s-1")], embedded=False)
    with pytest.raises(PreconditionFailed, match="RESUME_WITHOUT_CLUSTER"):
        refuse_without_cluster([ResumeRecord(Path("a")), ResumeRecord(Path("b"), "s-1")], embedded=True)


@pytest.mark.slow
def test_run_goes_on_after_a_kernel_died_and_again_after_the_store_lost_its_newest_versions(
    daemon: Any, tmp_path: Path
) -> None:
    times, fails = tmp_path / "times", tmp_path / "fails"
    fails.touch()
    source = write_notebook_of(
        tmp_path / "n.ipynb", f"open({str(times)!r}, 'a').write('0'); x = [1]; print('first')",
        f"%%gpu\nopen({str(times)!r}, 'a').write('1')\nx.append(2)\nx",
        f"open({str(times)!r}, 'a').write('2')\nimport os; os.path.exists({str(fails)!r}) and os._exit(9); x.append(3)",
        "x",
    )  # fmt: skip

    def run(**options: Any) -> tuple[RunsResult, Any]:
        jobs = plan_jobs([source], tmp_path / "out.ipynb")
        pool = Pool(str(daemon.path))
        with ProgressShown(jobs) as shown:
            result = run_all(jobs, pool, RunOptions(**options), shown)
        return result, read_notebook(tmp_path / "out.ipynb")

    first, _nb = run()
    assert first.results[0].outcome is Outcome.SYSTEM_FAILED and "KERNEL_DIED" in first.results[0].failure
    assert [record.error["ename"] for record in first.results[0].records if record.error] == ["KERNEL_DIED"]
    saved = sorted(daemon.store.manifests)
    second, nb = run(resume=True)
    # How far it was saved depends on how long cells and saves took.
    assert second.results[0].first_index >= 1 and "KERNEL_DIED" in second.results[0].failure
    assert nb.cells[0].outputs[0].text == "first\n" and nb.cells[0].execution_count == 1
    # A host that was lost took all but the session's first versions along.
    for version in [number for number in daemon.store.manifests if number > saved[0]]:
        del daemon.store.manifests[version]
    fails.unlink()
    third, nb = run(resume=True)
    assert third.results[0].outcome is Outcome.OK, third.results[0].failure
    assert nb.cells[3].outputs[0].data["text/plain"] == "[1, 2, 3]"
    assert [cell.execution_count for cell in nb.cells] == [1, 2, 3, 4]
    # What ended before the save that the run goes on from is not run again.
    assert times.read_text().count("0") == 1 and not list(tmp_path.glob(".*.resume"))


FAILED = {"status": "error", "ename": "STORE_DOWN", "evalue": "it is away"}
SAVED = {"status": "ok", "session_id": "s-2", "version": 3, "execution_id": "x-3"}


def told(*answers: dict[str, Any], asked: list[Any] | None = None) -> Any:
    """A kernel that answers so, one answer for each request."""
    left = list(answers)

    async def ask(kind: str, content: dict[str, Any]) -> dict[str, Any]:
        if asked is not None:
            asked.append((kind, content))
        return left.pop(0)

    return ask


@pytest.fixture
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_keeper, "next_save_due", lambda _since_s, _last_s: True)


def test_session_is_continued_only_if_a_save_point_may_be_there(tmp_path: Path) -> None:
    nb = notebook_of("a = 1", "b = 2", "c = 3")

    def keeper_of(now: Any) -> SaveKeeper:
        cells = [done(nb, 0), done(nb, 1, version=1), done(nb, 2, version=2)]
        return SaveKeeper(ResumeRecord(tmp_path / "r", "s-1", cells), now)

    assert keeper_of(notebook_of("a = 2", "b = 2", "c = 3")).session_id == ""
    keeper, asked = keeper_of(nb), list[Any]()
    assert keeper.session_id == "s-1"
    asyncio.run(keeper.begin(told({"status": "ok", "index": 1}, asked=asked), nb))
    # Each point has the count of the cell behind it: cells behind the point that is chosen run again.
    assert asked[0][1] == {"points": [[2, "x-2", 4], [1, "x-1", 3]]} and keeper.first_index == 2
    gone = keeper_of(nb)
    with pytest.raises(StateGone):
        asyncio.run(gone.begin(told({"status": "ok", "index": -1}), nb))
    assert gone.session_id == ""
    asyncio.run(gone.begin(told(), nb))
    assert gone.first_index == 0 and not (tmp_path / "r").exists()


def test_save_that_fails_is_tried_after_the_next_cell_and_told(tmp_path: Path, always_due: None) -> None:
    nb = notebook_of("a = 1", "b = 2", "c = 3")
    keeper = SaveKeeper(ResumeRecord.beside(tmp_path / "o.ipynb"), nb)
    asyncio.run(keeper.cell_ended(told(FAILED), nb, 0))
    assert "STORE_DOWN" in keeper.problem and not list(tmp_path.iterdir())
    asyncio.run(keeper.cell_ended(told(SAVED), nb, 1))
    assert keeper.problem == ""
    asyncio.run(keeper.cell_ended(told(FAILED), nb, 2))
    assert "STORE_DOWN" in keeper.problem
    kept = ResumeRecord.read(tmp_path / "o.ipynb")
    assert kept.session_id == "s-2" and [each.version for each in kept.cells] == [0, 3, 0]


@pytest.mark.parametrize("reason", ["NO_CLUSTER", "CONFIG_INVALID"])
def test_without_a_cluster_no_further_save_is_tried(tmp_path: Path, always_due: None, reason: str) -> None:
    nb = notebook_of("a = 1", "b = 2")
    keeper = SaveKeeper(ResumeRecord.beside(tmp_path / "o.ipynb"), nb)
    asyncio.run(keeper.cell_ended(told({**FAILED, "ename": reason}), nb, 0))
    asyncio.run(keeper.cell_ended(told(), nb, 1))
    assert reason in keeper.problem and not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["begin", "add", "forget"])
def test_record_that_cannot_be_written_costs_no_cell(
    tmp_path: Path, always_due: None, monkeypatch: pytest.MonkeyPatch, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ResumeRecord, method, refuse)
    nb = notebook_of("a = 1", "b = 2", "c = 3")
    keeper = SaveKeeper(ResumeRecord.beside(tmp_path / "o.ipynb"), nb)
    ask = told(SAVED, SAVED, SAVED)
    asyncio.run(keeper.begin(ask, nb))
    for index in range(3):
        asyncio.run(keeper.cell_ended(ask, nb, index))
    keeper.ended_well()
    assert "No space left" in keeper.problem
    assert sum("resume_record_ended" in record.message for record in caplog.records) == (2 if method == "forget" else 1)


def test_save_request_while_a_cell_runs_is_refused_and_an_interrupt_is_answered() -> None:
    async def answer_of(answer: Any, busy: bool) -> dict[str, Any]:
        points = SavePoints(None, None, None, lambda: busy)  # type: ignore[arg-type]
        return await points._on_main(asyncio.get_running_loop(), answer, {})

    def interrupted(_asked: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    assert asyncio.run(answer_of(interrupted, True))["ename"] == "STATE_IS_ELSEWHERE"
    assert asyncio.run(answer_of(interrupted, False))["ename"] == "INTERRUPTED"
    assert asyncio.run(answer_of(lambda _asked: {"version": 1}, False)) == {"status": "ok", "version": 1}


def test_run_whose_cluster_ends_with_it_forgets_what_an_earlier_one_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(_nb: Any, *_args: Any, record: Any, **_options: Any) -> BatchResult:
        assert record is None
        return BatchResult()

    monkeypatch.setattr(several, "run_notebook_async", run)
    jobs = plan_jobs([write_notebook_of(tmp_path / "n.ipynb", "x = 1")], tmp_path / "out.ipynb")
    ResumeRecord.beside(tmp_path / "out.ipynb").begin("s-1")
    with ProgressShown(jobs) as shown:
        run_all(jobs, Pool("unused", embedded=True), RunOptions(), shown)
    assert not list(tmp_path.glob(".*.resume"))


@pytest.mark.slow
def test_run_that_begins_anew_has_no_variable_of_the_one_before(daemon: Any, tmp_path: Path) -> None:
    first_cell = "assert 'x' not in globals()\nx = 1"
    output = tmp_path / "out.ipynb"

    def run(first: str, **options: Any) -> Any:
        jobs = plan_jobs([write_notebook_of(tmp_path / "n.ipynb", first, "1 / 0")], output)
        with ProgressShown(jobs) as shown:
            [result] = run_all(jobs, Pool(str(daemon.path)), RunOptions(**options), shown).results
        return result

    assert run(first_cell).failed_cell == "c1"
    kept = ResumeRecord.read(output)
    assert kept.session_id and kept.cells[0].version
    # Its first cell was edited.
    edited = run(f"{first_cell}; y = 2", resume=True)
    assert (edited.failed_cell, edited.first_index) == ("c1", 0)
    # Of no version of its session is there what was saved then.
    kept.cells[0].execution_id = "another"
    kept.begin(kept.session_id)
    again = run(first_cell, resume=True)
    assert (again.failed_cell, again.first_index) == ("c1", 0)
    assert ResumeRecord.read(output).session_id != kept.session_id


@pytest.mark.parametrize(("method", "reason"), [("_ask_to_save", "SAVE_TIMEOUT"), ("_ask_prepare", "REQUEST_TIMEOUT")])
def test_kernel_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch, method: str, reason: str) -> None:
    class Silent:
        def __init__(self) -> None:
            self.session, self.control_channel = Session(), self

        def send(self, _message: Any) -> None:
            pass

        async def get_msg(self, timeout: float) -> Any:
            raise queue.Empty

        async def is_alive(self) -> bool:
            return True

    monkeypatch.setattr(client, "SAVE_REPLY_TIMEOUT_S", -1.0)
    monkeypatch.setattr(client, "PREPARE_REPLY_TIMEOUT_S", -1.0)
    nb = notebook_of("1")
    asker = client.BatchClient(nb, endpoint="unused")
    asker.kc = Silent()  # type: ignore[assignment]
    asked = (nb.cells[0],) if method == "_ask_prepare" else ("looseleaf_save_point_request", {})
    with pytest.raises(Timeout, match=reason):
        asyncio.run(getattr(asker, method)(*asked))
    asker._folder.rmdir()


def test_state_that_cannot_be_fetched_in_time_runs_nothing(tmp_path: Path) -> None:
    async def ask(_kind: str, _content: Any) -> dict[str, Any]:
        raise Timeout("SAVE_TIMEOUT", "no answer")

    nb = notebook_of("a = 1")
    keeper = SaveKeeper(ResumeRecord(tmp_path / "r", "s-1", [done(nb, 0, version=1)]), nb)
    with pytest.raises(Unavailable, match="RESUME_FAILED"):
        asyncio.run(keeper.begin(ask, nb))
