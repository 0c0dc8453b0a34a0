"""`--resume`: goes on after the last cell whose state is still in the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from batch_fixtures import notebook_of, write_notebook_of

from looseleaf.batch.files import plan_jobs, read_notebook
from looseleaf.batch.pool import Pool
from looseleaf.batch.progress import ProgressShown
from looseleaf.batch.resume import CellDone, ResumeRecord, next_save_due, refuse_without_cluster, source_hash
from looseleaf.batch.run import Outcome
from looseleaf.batch.several import RunOptions, RunsResult, run_all
from looseleaf.checkpoint.version_list import ListedVersion
from looseleaf.errors import PreconditionFailed
from looseleaf.kernel.save_points import newest_whole


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
