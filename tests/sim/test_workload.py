"""W1 is what the study says, and the same people for every policy."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace

import pytest

from looseleaf.sim.model import WORKLOADS, Model, load_model
from looseleaf.sim.workload import Cell, CellStream, DrawnCells, slowness
from looseleaf.units import GIB

SESSIONS, CELLS = 300, 60


def stream(model: Model, index: int, seed: int = 1) -> DrawnCells:
    return DrawnCells(model.workload, model.mechanism, seed, index)


def take(cells: CellStream, count: int, now_s: float = 0.0) -> list[Cell]:
    return [cells.next(now_s) for _ in range(count)]


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]


@pytest.fixture(scope="module")
def cells(w1: Model) -> list[Cell]:
    return [cell for index in range(SESSIONS) for cell in take(stream(w1, index), CELLS)]


def test_w1_has_the_medians_of_the_paper(cells: list[Cell]) -> None:
    assert quantile([cell.edit_s for cell in cells], 0.5) == pytest.approx(10.7, rel=0.05)
    assert quantile([cell.run_s for cell in cells if cell.gpu], 0.5) == pytest.approx(8.0, rel=0.1)
    assert quantile([cell.prepare_s for cell in cells], 0.5) == pytest.approx(0.71, rel=0.05)
    assert quantile([cell.prepare_s for cell in cells], 0.95) == pytest.approx(3.8, rel=0.1)
    assert max(cell.prepare_s for cell in cells) == 6.9
    assert min(cell.gap_s for cell in cells) >= 60.0


def test_w1_has_the_closures_of_the_attach_model(cells: list[Cell]) -> None:
    sizes = [cell.closure_bytes / GIB for cell in cells]
    assert quantile(sizes, 0.5) == pytest.approx(0.5, rel=0.1)
    assert quantile(sizes, 0.95) == pytest.approx(8.0, rel=0.15)


def test_w1_leaves_pinned_gpus_idle_over_81_percent_of_the_time(cells: list[Cell]) -> None:
    busy_s = sum(cell.run_s for cell in cells if cell.gpu)
    assert 1 - busy_s / sum(cell.gap_s + cell.run_s for cell in cells) == pytest.approx(0.818, abs=0.02)


def test_w1_has_a_median_gpu_share_of_23_percent_and_a_tenth_of_other_gaps_abandoned(
    w1: Model, cells: list[Cell]
) -> None:
    shares = [sum(cell.gpu for cell in take(stream(w1, index), CELLS)) / CELLS for index in range(SESSIONS)]
    assert statistics.median(shares) == pytest.approx(0.23, abs=0.03)
    others = [cell.abandoned for cell in cells if not cell.gpu]
    assert sum(others) / len(others) == pytest.approx(0.10, abs=0.01)
    assert not any(cell.abandoned for cell in cells if cell.gpu)


def test_cells_of_one_seed_are_the_same_and_of_another_are_not(w1: Model) -> None:
    assert take(stream(w1, 3), 50) == take(stream(w1, 3), 50)
    assert take(stream(w1, 3), 50) != take(stream(w1, 4), 50)
    assert take(stream(w1, 3), 50) != take(stream(w1, 3, seed=2), 50)


@pytest.mark.parametrize("name", ["long", "fast", "churn", "hetero"])
def test_variant_changes_what_it_is_about_and_leaves_the_other_draws(w1: Model, name: str) -> None:
    """Each cell takes the same draws: a variant is compared with W1 on the same cells."""
    ours, theirs = take(stream(w1, 5), 40), take(stream(load_model(name), 5), 40)
    assert [cell.prepare_s for cell in ours] == [cell.prepare_s for cell in theirs]
    assert [cell.gpu for cell in ours] == [cell.gpu for cell in theirs]


def test_variants_differ_from_w1_in_what_they_are_named_for() -> None:
    models = {name: load_model(name) for name in WORKLOADS}
    drawn = {name: [c for i in range(40) for c in take(stream(models[name], i), 50)] for name in WORKLOADS}
    gaps = {name: statistics.fmean(cell.gap_s for cell in cells) for name, cells in drawn.items()}
    assert gaps["long"] == pytest.approx(gaps["w1"] + 90.0, rel=0.1)
    assert statistics.fmean(c.gpu for c in drawn["dense"]) == pytest.approx(0.5, abs=0.06)
    assert quantile([c.edit_s for c in drawn["fast"]], 0.5) == pytest.approx(2.0, rel=0.1)
    assert statistics.fmean(c.abandoned for c in drawn["churn"] if not c.gpu) == pytest.approx(0.5, abs=0.05)
    bound = [take(stream(models["hetero"], i), 5) for i in range(200)]
    assert {c.gpu_count for cells in bound for c in cells} == {1, 2, 8}
    share = statistics.fmean(min(c.closure_bytes for c in cells) >= 32 * GIB for cells in bound)
    assert share == pytest.approx(0.33, abs=0.1)


def test_day_is_ten_times_slower_at_midnight_than_at_noon() -> None:
    day = load_model("day").workload
    assert slowness(day, 0.0) == pytest.approx(10.0)
    assert slowness(day, 12 * 3600.0) == pytest.approx(1.0)
    assert slowness(day, 24 * 3600.0) == pytest.approx(10.0)


def test_edit_window_never_exceeds_its_gap(w1: Model) -> None:
    wide = replace(w1, workload=replace(w1.workload, edit_median_s=500.0))
    for cell in itertools.chain.from_iterable(take(stream(wide, index), 20) for index in range(20)):
        assert cell.edit_s <= cell.gap_s
