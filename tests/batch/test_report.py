"""Records and totals of a batch run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.batch.pool import Pool
from looseleaf.batch.report import CellRecord, NotebookReport, machine_of, report_of, totals_of

CELL_KEYS = {
    "id", "label", "reason", "path", "closure", "live_names", "packages", "prepare_ms", "start_ms", "run_s", "save_ms",
    "dirty_regions", "total_regions", "bytes_moved", "unsaved", "version", "worker", "gpu", "error",
}  # fmt: skip
TOTAL_KEYS = {
    "gpu_cells", "cpu_cells", "gpu_s_held", "gpu_s_resident", "gpu_s_pinned", "starts_within_1s", "prepared_share",
}  # fmt: skip


def gpu(**figures: Any) -> CellRecord:
    return CellRecord("g", label="gpu", **{"path": "cold", **figures})


def test_record_of_figures_leaves_unknown_and_absent_ones_out() -> None:
    record = CellRecord.of("c1", {"label": "gpu", "start_ms": 5.0, "save_ms": None, "novel": 1, "id": "other"})
    assert record == CellRecord("c1", label="gpu", start_ms=5.0)
    assert CellRecord.of("c2", {}) == CellRecord("c2")


def test_totals_without_gpu_cells_have_no_shares() -> None:
    totals = totals_of([CellRecord("a"), CellRecord("b")])
    assert (totals.gpu_cells, totals.cpu_cells, totals.gpu_s_held) == (0, 2, 0)
    assert totals.starts_within_1s is totals.prepared_share is totals.immediate_share is totals.start_ms_p50 is None


def test_totals_cell_that_never_started_counts_against_every_share() -> None:
    cells = [gpu(start_ms=20.0, path="prepared", gpu_held_s=1.5), gpu(start_ms=0.0, path="prepared"), gpu(path="")]
    totals = totals_of(cells)
    shares = (totals.starts_within_1s, totals.immediate_share, totals.prepared_share)
    assert shares == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert totals.gpu_s_held == 1.5 and totals.start_ms_p50 == 20.0


@given(st.lists(st.floats(0.1, 5000.0), min_size=1, max_size=60))
def test_totals_shares_and_quantiles_are_those_of_the_starts(starts: list[float]) -> None:
    totals = totals_of([gpu(start_ms=start, gpu_pinned_s=0.5) for start in starts])
    assert totals.starts_within_1s == sum(start <= 1000 for start in starts) / len(starts)
    assert totals.start_ms_p95 is not None and totals.start_ms_p50 is not None
    assert sum(start <= totals.start_ms_p95 for start in starts) >= 0.95 * len(starts)
    assert min(starts) <= totals.start_ms_p50 <= max(starts)
    assert totals.gpu_s_pinned == pytest.approx(0.5 * len(starts))


def test_totals_quantiles_are_of_the_gpu_cells_that_started() -> None:
    cells = [
        gpu(start_ms=float(n), prepare_ms=10.0 * n, save_ms=None if n == 1 else 2.0 * n, run_s=n) for n in (1, 2, 3)
    ]
    totals = totals_of([*cells, gpu(start_ms=0.0, prepare_ms=9e9), CellRecord("c", run_s=9e9, error={"ename": "E"})])
    assert (totals.prepare_ms_p50, totals.prepare_ms_p95) == (20.0, 30.0)
    assert (totals.save_ms_p50, totals.save_ms_p95) == (5.0, 6.0)
    assert (totals.run_s_p50, totals.run_s_p95) == (2.0, 3.0)
    assert totals.failed_cells == 1 and totals.cpu_cells == 1


def test_report_has_the_promised_keys_and_is_json() -> None:
    cells = [CellRecord("a"), gpu(start_ms=3.0, bytes_moved=7)]
    first = NotebookReport("a.ipynb", "o/a.ipynb", "ok", "", "", 5, 0.5, 2.0, cells)
    second = NotebookReport("b.ipynb", "o/b.ipynb", "cell_failed", "E: x", "g", 6, 0.5, 2.0, [gpu(start_ms=5.0)])
    report = report_of([first, second], machine_of(Pool("d.sock", "emulated", 1, delays=True)))
    assert all(set(cell) >= CELL_KEYS for cell in report["cells"]) and set(report["totals"]) >= TOTAL_KEYS
    assert [(cell["notebook"], cell["id"]) for cell in report["cells"]] == [
        ("a.ipynb", "a"), ("a.ipynb", "g"), ("b.ipynb", "g")
    ]  # fmt: skip
    assert report["totals"]["gpu_cells"] == 2 and report["totals"]["bytes_moved"] == 7
    assert [nb["totals"]["gpu_cells"] for nb in report["notebooks"]] == [1, 1]
    assert report["notebooks"][1]["failure"] == "E: x" and "cells" not in report["notebooks"][1]
    assert report["machine"]["delays"] is True and report["machine"]["hosts"] == 1
    assert json.loads(json.dumps(report)) == report
