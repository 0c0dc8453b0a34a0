"""Times that a real run measured, in place of the paper's: from the report of `looseleaf run --report`.

Preparations and saves become lognormal with the measured median, 95th percentile and maximum. Preparations are those of
cells that found no worker ("cold"): on others only what was left to do was measured. What warm cells had left to
prepare becomes the refresh time; what prepared cells had left to do once they had a GPU, less the messages, the attach
time: before that they waited for one, and a simulation has waits of its own. What was not measured often enough stays.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from looseleaf.errors import InvalidArgument
from looseleaf.sim.model import Z95, Mechanism, Model
from looseleaf.sim.results import quantile

# Of fewer values a 95th percentile says nothing.
VALUES_MIN: Final = 20


def calibrated(model: Model, report: Path) -> Model:
    """The model with what the report's GPU cells took. Raises InvalidArgument `REPORT_UNUSABLE`."""
    cells = _gpu_cells(report)
    prepares = _seconds(_of_path(cells, "cold"), "prepare_ms")
    refreshes = _seconds(_of_path(cells, "warm"), "prepare_ms")
    saves = _seconds(cells, "save_ms")
    attaches = _attaches_s(_of_path(cells, "prepared"))
    if max(map(len, (prepares, refreshes, saves, attaches))) < VALUES_MIN:
        raise _unusable(report, f"it has fewer than {VALUES_MIN} GPU cells that tell a preparation, a save or a start")
    mechanism = model.mechanism
    if len(prepares) >= VALUES_MIN:
        mechanism = replace(
            mechanism, prepare_median_s=median(prepares), prepare_p95_s=_p95(prepares), prepare_max_s=max(prepares))
    if len(refreshes) >= VALUES_MIN:
        mechanism = replace(mechanism, refresh_s=median(refreshes))
    if len(saves) >= VALUES_MIN:
        sigma = math.log(_p95(saves) / median(saves)) / Z95
        mechanism = replace(mechanism, save_median_s=median(saves), save_sigma=sigma, save_max_s=max(saves))
    if len(attaches) >= VALUES_MIN:
        mechanism = replace(mechanism, attach_s=max(0.0, median(attaches) - mechanism.messages_s))
    return replace(model, mechanism=mechanism)


def fitted(mechanism: Mechanism) -> str:
    """One line on the times that a model has."""
    attach = f"{mechanism.attach_s:.3f} s" if mechanism.attach_s is not None else "context and copy"
    return (
        f"prepare {mechanism.prepare_median_s:.3f} s, 95 % within {mechanism.prepare_p95_s:.3f} s; "
        f"refresh {mechanism.refresh_s:.3f} s; attach {attach}; save {mechanism.save_median_s:.3f} s"
    )


def _gpu_cells(report: Path) -> list[dict[str, Any]]:
    try:
        cells = json.loads(report.read_text(encoding="utf-8"))["cells"]
        return [cell for cell in cells if cell["label"] == "gpu"]
    except (ValueError, KeyError, TypeError) as error:
        raise _unusable(report, "it is no report of `looseleaf run`") from error


def _of_path(cells: Sequence[dict[str, Any]], path: str) -> list[dict[str, Any]]:
    return [cell for cell in cells if cell.get("path") == path]


def _seconds(cells: Sequence[dict[str, Any]], key: str) -> list[float]:
    """Positive values only: 0 ms stands for nothing done."""
    return [float(cell[key]) / 1000 for cell in cells if isinstance(cell.get(key), int | float) and cell[key] > 0]


def _attaches_s(cells: Sequence[dict[str, Any]]) -> list[float]:
    """From the lease to the first statement: what a lease was held for, but for the run and its save."""
    found = []
    for cell in cells:
        held_s, run_s, save_ms = (cell.get(key) for key in ("gpu_held_s", "run_s", "save_ms"))
        if held_s and run_s is not None and save_ms is not None and held_s > run_s + save_ms / 1000:
            found.append(held_s - run_s - save_ms / 1000)
    return found


def _p95(values: Sequence[float]) -> float:
    # Equal to the median it would leave no spread to draw from; a lognormal of sigma 0 is a constant.
    return max(quantile(sorted(values), 0.95), median(values))


def _unusable(report: Path, why: str) -> InvalidArgument:
    return InvalidArgument("REPORT_UNUSABLE", f"{report.name} cannot be used: {why}.")
