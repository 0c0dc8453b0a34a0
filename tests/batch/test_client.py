"""Batch runs with a real kernel against the fake daemon."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from looseleaf.batch.cells import device_wish, wishes_of
from looseleaf.batch.client import BatchClient
from looseleaf.batch.pool import Pool
from looseleaf.batch.run import run_notebook


def test_run_prepares_the_next_gpu_cell_and_records_each_cell(daemon: Any, make_notebook: Any, tmp_path: Path) -> None:
    wishes = {"device": "gpu", "keep": "60s", "priority": "interactive"}
    nb = make_notebook("x = 1", "", "%%gpu\nx += 1\nprint('gpu', x)", "x", "1 + 1", c4={"looseleaf": wishes})
    started: list[str] = []

    def on_start(cell: Any, _index: int) -> None:
        started.append(cell["id"])
        if len(started) == 1:
            return
        # The pause is over; what it was for must have been asked by now, on a machine however slow.
        daemon.wait_for("prepare")

    result = run_notebook(nb, Pool(str(daemon.path)), folder=tmp_path, think_s=0.5, on_start=on_start)
    assert result.failure == "" and started == ["c0", "c2", "c3", "c4"]
    assert [(record.id, record.label, record.path) for record in result.records] == [
        ("c0", "cpu", "cpu"), ("c2", "gpu", "cold"), ("c3", "cpu", "cpu"), ("c4", "gpu", "cold")
    ]  # fmt: skip
    assert nb.cells[2].outputs[0]["text"] == "gpu 2\n" and nb.cells[3].outputs[0]["data"]["text/plain"] == "2"
    # While c0 had just ended, c2 was prepared; it is a GPU cell, so nothing beyond it was.
    asked = [body["cell_id"] for kind, body in daemon.requests if kind == "prepare"]
    assert asked[0] == "c2"
    submitted = [body for kind, body in daemon.requests if kind == "submit"]
    told = [(body["cell_id"], body["priority"], body["context"]["keep_s"]) for body in submitted]
    assert told == [("c2", "batch", 0), ("c4", "batch", 60)]
    assert result.kernel_pid and result.records[1].worker == 4242


def test_heartbeat_ends_before_its_kernel(make_notebook: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it does to their common context while that is ended would stop the event loop of all notebooks."""
    threads: list[bool] = []

    class Watched(BatchClient):
        async def async_start_new_kernel_client(self) -> Any:
            found = await super().async_start_new_kernel_client()
            heartbeat, shutdown = found.hb_channel, self.km.shutdown_kernel  # type: ignore[union-attr]

            async def shutdown_kernel(**how: Any) -> None:
                threads.append(heartbeat.is_alive())
                await shutdown(**how)

            monkeypatch.setattr(self.km, "shutdown_kernel", shutdown_kernel)
            threads.append(heartbeat.is_alive())
            return found

    where = {"metadata": {"path": str(tmp_path)}}
    Watched(make_notebook("1"), endpoint=str(tmp_path / "nobody.sock"), resources=where).execute()
    assert threads == [True, False]


@pytest.mark.parametrize(("metadata", "wishes", "device"), [
    ({"device": "cpu", "keep": 90}, {"device": "cpu", "keep": 90}, "cpu"), ({"keep": "1h"}, {"keep": "1h"}, ""),
    ({"device": ["gpu"], "priority": "interactive"}, {"device": ["gpu"]}, ""), ("gpu", {}, ""), (None, {}, ""),
])  # fmt: skip
def test_wishes_of_a_cell_are_those_of_its_metadata(
    make_notebook: Any, metadata: Any, wishes: Any, device: str
) -> None:
    [cell] = make_notebook("1", c0={"looseleaf": metadata}).cells
    assert wishes_of(cell) == wishes and device_wish(cell) == device


def test_run_failing_cell_ends_it_and_outputs_stay(daemon: Any, make_notebook: Any, tmp_path: Path) -> None:
    nb = make_notebook("print('before')", "%%gpu\nraise ValueError('mine')", "never = 1")
    result = run_notebook(nb, Pool(str(daemon.path)), folder=tmp_path)
    assert (result.failed_cell, result.failure) == ("c1", "ValueError: mine")
    assert [record.id for record in result.records] == ["c0", "c1"]
    assert result.records[1].error == {"ename": "ValueError", "evalue": "mine"}
    assert nb.cells[1].outputs[0]["ename"] == "ValueError" and nb.cells[2].outputs == []


def test_run_with_a_long_name_of_the_temporary_folder_keeps_its_sockets_elsewhere(
    daemon: Any, make_notebook: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    folder = tmp_path / ("t" * 80)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    nb = make_notebook("1 + 1")
    assert run_notebook(nb, Pool(str(daemon.path)), folder=tmp_path).failure == ""
    assert nb.cells[0].outputs[0]["data"]["text/plain"] == "2"


def test_run_cell_over_its_time_limit_is_named(daemon: Any, make_notebook: Any, tmp_path: Path) -> None:
    nb = make_notebook("import threading\nthreading.Event().wait(60)")
    result = run_notebook(nb, Pool(str(daemon.path)), folder=tmp_path, timeout_s=1)
    assert result.failed_cell == "c0" and result.failure.startswith("CELL_TIMEOUT")
    [record] = result.records
    assert (record.id, record.path, record.error and record.error["ename"]) == ("c0", "", "CELL_TIMEOUT")
    assert record.run_s >= 1


def test_run_without_a_cluster_leaves_no_word_of_ours_in_the_notebook(make_notebook: Any, tmp_path: Path) -> None:
    nb = make_notebook(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)", "from IPython.display import display\ndisplay(1)",
        "%%time\npass", "raise RuntimeError('r')", "[i for i in range(3)]", c3={"tags": ["raises-exception"]},
    )  # fmt: skip
    result = run_notebook(nb, Pool(str(tmp_path / "nobody.sock")), folder=tmp_path)
    # A cell that may fail ends nothing.
    assert result.failure == "" and [record.error is not None for record in result.records] == [0, 0, 0, 1, 0]
    outputs = json.dumps([cell.outputs for cell in nb.cells]).lower()
    assert "looseleaf" not in outputs
    assert [len(cell.outputs) for cell in nb.cells] == [2, 1, 1, 1, 1]


def test_next_gpu_cell_is_prepared_beside_a_cell_that_takes_its_time(
    daemon: Any, make_notebook: Any, tmp_path: Path
) -> None:
    # The first cell ends when it is told that the preparation of the third was asked for.
    asked = tmp_path / "asked"
    wait = f"import os, time\nwhile not os.path.exists({str(asked)!r}): time.sleep(0.01)"
    nb = make_notebook(wait, "x = 1", "%%gpu\nx")
    watcher = threading.Thread(target=lambda: (daemon.wait_for("prepare"), asked.touch()))
    watcher.start()
    result = run_notebook(nb, Pool(str(daemon.path)), folder=tmp_path)
    watcher.join()
    assert result.failure == "" and nb.cells[2].outputs[0]["data"]["text/plain"] == "1"
    kinds = [kind for kind, _body in daemon.requests if kind in ("prepare", "submit")]
    assert kinds[0] == "prepare" and kinds[-1] == "submit"
