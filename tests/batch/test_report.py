"""Records and totals of a batch run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.batch.report import CellRecord, report_of, totals_of

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


def test_report_has_the_promised_keys_and_is_json() -> None:
    report = report_of([CellRecord("a"), gpu(start_ms=3.0)], {"gpus": 1})
    assert all(set(cell) >= CELL_KEYS for cell in report["cells"]) and set(report["totals"]) >= TOTAL_KEYS
    assert json.loads(json.dumps(report)) == report
