"""A report of a real run gives its own times, and only those that it tells often enough."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from looseleaf.batch.report import CellRecord
from looseleaf.errors import InvalidArgument
from looseleaf.sim.calibration import calibrated, fitted
from looseleaf.sim.model import Model


def report(path: Path, cells: list[CellRecord]) -> Path:
    path.write_text(json.dumps({"notebooks": [], "cells": [asdict(cell) for cell in cells], "totals": {}}))
    return path


def gpu_cell(number: int, path: str, prepare_ms: float) -> CellRecord:
    return CellRecord(
        str(number), "gpu", path=path, prepare_ms=prepare_ms, start_ms=9_000.0, save_ms=10.0, run_s=1.0,
        gpu_held_s=1.215)


def cells_of(path: str, count: int, prepare_ms: float) -> list[CellRecord]:
    return [gpu_cell(number, path, prepare_ms + number) for number in range(1, count + 1)]


def test_measured_times_replace_the_models_each_from_the_cells_that_tell_it(tmp_path: Path, w1: Model) -> None:
    # What a warm or prepared cell had left to prepare, or prepared last, is no whole preparation.
    cells = [CellRecord("0"), *cells_of("cold", 40, 100.0), *cells_of("warm", 99, 0.0), *cells_of("prepared", 99, 1.0)]
    mechanism = calibrated(w1, report(tmp_path / "report.json", cells)).mechanism
    assert mechanism.prepare_median_s == pytest.approx(0.1205)
    assert (mechanism.prepare_p95_s, mechanism.prepare_max_s) == pytest.approx((0.138, 0.140))
    assert mechanism.refresh_s == pytest.approx(0.050)
    assert (mechanism.save_median_s, mechanism.save_sigma) == pytest.approx((0.010, 0.0))
    assert mechanism.attach_s == pytest.approx(0.2)
    assert "attach 0.200 s" in fitted(mechanism) and "context and copy" in fitted(w1.mechanism)
    # An attach time that is asked for goes before the measured one.
    assert calibrated(w1, tmp_path / "report.json").changed(attach_s=0.7).mechanism.attach_s == 0.7


@pytest.mark.parametrize("told", ["cold", "warm", "prepared"])
def test_what_few_cells_tell_stays_as_it_was(tmp_path: Path, w1: Model, told: str) -> None:
    cells = [cell for path in ("cold", "warm", "prepared") for cell in cells_of(path, 20 if path == told else 19, 9.0)]
    ours, theirs = calibrated(w1, report(tmp_path / "report.json", cells)).mechanism, w1.mechanism
    assert (ours.prepare_median_s != theirs.prepare_median_s) == (told == "cold")
    assert (ours.refresh_s != theirs.refresh_s) == (told == "warm")
    assert (ours.attach_s is not None) == (told == "prepared")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": [{}]}', '{"cells": [{"label": "gpu", "save_ms": 1}]}'])
def test_file_that_tells_no_times_is_refused(tmp_path: Path, w1: Model, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as refused:
        calibrated(w1, path)
    assert refused.value.reason == "REPORT_UNUSABLE"
