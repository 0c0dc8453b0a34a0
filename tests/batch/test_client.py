"""Batch runs with a real kernel against the fake daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat.v4 as nbf
import pytest

from looseleaf.batch.client import read_notebook
from looseleaf.batch.report import CellRecord
from looseleaf.batch.run import BatchResult, Pool, check_output, run_notebook, write_notebook, write_report
from looseleaf.errors import InvalidArgument


def test_run_prepares_the_next_gpu_cell_and_records_each_cell(daemon: Any, make_notebook: Any, tmp_path: Path) -> None:
    nb = make_notebook("x = 1", "", "%%gpu\nx += 1\nprint('gpu', x)", "x", "1 + 1", c4={"looseleaf": {"device": "gpu"}})
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
    assert [(body["cell_id"], body["priority"]) for body in submitted] == [("c2", "batch"), ("c4", "batch")]
    assert result.kernel_pid and result.records[1].worker == 4242


def test_run_failing_cell_ends_it_and_outputs_stay(daemon: Any, make_notebook: Any, tmp_path: Path) -> None:
    nb = make_notebook("print('before')", "%%gpu\nraise ValueError('mine')", "never = 1")
    result = run_notebook(nb, Pool(str(daemon.path)), folder=tmp_path)
    assert (result.failed_cell, result.failure) == ("c1", "ValueError: mine")
    assert [record.id for record in result.records] == ["c0", "c1"]
    assert result.records[1].error == {"ename": "ValueError", "evalue": "mine"}
    assert nb.cells[1].outputs[0]["ename"] == "ValueError" and nb.cells[2].outputs == []


def test_run_cell_over_its_time_limit_is_named(daemon: Any, make_notebook: Any, tmp_path: Path) -> None:
    nb = make_notebook("import threading\nthreading.Event().wait(60)")
    result = run_notebook(nb, Pool(str(daemon.path)), folder=tmp_path, timeout_s=1)
    assert result.failed_cell == "c0" and result.failure.startswith("CELL_TIMEOUT")


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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "NOTEBOOK_MISSING"), ("not json", "NOTEBOOK_UNREADABLE"), ("[1]", "NOTEBOOK_UNREADABLE"),
        ('{"cells": 5}', "NOTEBOOK_UNREADABLE"), ('{"nbformat": 4, "nbformat_minor": 5}', "NOTEBOOK_UNREADABLE"),
        ("\xff", "NOTEBOOK_UNREADABLE"),
    ],
)  # fmt: skip
def test_read_notebook_bad_file_is_refused_by_name(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "n.ipynb"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidArgument) as caught:
        read_notebook(path)
    assert caught.value.reason == reason and "n.ipynb" in caught.value.message


def test_check_output_refuses_what_cannot_be_written(tmp_path: Path) -> None:
    check_output(tmp_path / "new.ipynb")
    for path in (tmp_path, tmp_path / "absent" / "x.ipynb"):
        with pytest.raises(InvalidArgument, match="OUTPUT_UNWRITABLE"):
            check_output(path)


def test_written_files_can_be_read_again(make_notebook: Any, tmp_path: Path) -> None:
    nb = make_notebook("%%gpu\n6 * 7")
    nb.cells[0].outputs = [nbf.new_output("execute_result", {"text/plain": "42"}, execution_count=1)]
    result = BatchResult([CellRecord("c0", worker=4242)], kernel_pid=17)
    write_notebook(nb, tmp_path / "out.ipynb")
    write_report(tmp_path / "r.json", result, Pool("d.sock", "none", 1))
    assert read_notebook(tmp_path / "out.ipynb").cells[0].outputs[0]["data"]["text/plain"] == "42"
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["cells"][0]["worker"] == 4242 and report["machine"]["kernel_pid"] == 17
    assert sorted(path.name for path in tmp_path.glob(".*")) == []
