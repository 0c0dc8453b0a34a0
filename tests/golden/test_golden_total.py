"""What holds for the comparison as a whole."""

from __future__ import annotations

import pytest
from golden_compare import CellComparison
from golden_report import KNOWN, Report, Result
from golden_total import CORPUS_MIN, EXAMPLES, GPU_CELLS_MIN, HERE, NOTEBOOKS, OWN_MIN, lacking, shortfalls

ENOUGH = [f"n{number}" for number in range(CORPUS_MIN)]


def test_golden_enough_was_compared() -> None:
    assert lacking(OWN_MIN, GPU_CELLS_MIN, ENOUGH, [*ENOUGH, "more"]) == []
    assert lacking(OWN_MIN, GPU_CELLS_MIN, None, []) == []


@pytest.mark.parametrize(
    ("own", "gpu_cells", "corpus", "compared", "why"),
    [
        (OWN_MIN - 1, GPU_CELLS_MIN, None, [], "notebooks of our own"),
        (OWN_MIN, GPU_CELLS_MIN - 1, None, [], "cells on a GPU"),
        (OWN_MIN, GPU_CELLS_MIN, ENOUGH[1:], ENOUGH, "listed notebooks of the corpus are fewer"),
        (OWN_MIN, GPU_CELLS_MIN, ENOUGH, ENOUGH[1:], "not compared: n0"),
    ],
)
def test_golden_too_little_was_compared(
    own: int, gpu_cells: int, corpus: list[str] | None, compared: list[str], why: str
) -> None:
    (found,) = lacking(own, gpu_cells, corpus, compared)
    assert why in found


def test_golden_whole_run_without_gpu_cells_falls_short_and_a_part_of_it_does_not() -> None:
    cells = [CellComparison("a", "cpu", (), ())]
    results = [Result("own", path.stem, "reference", cells) for path in (*EXAMPLES, *NOTEBOOKS)]
    assert any("on a GPU" in why for why in shortfalls(Report(results)))
    assert shortfalls(Report(results[1:])) == []


def test_golden_known_differences_are_told_to_people() -> None:
    told = (HERE.parents[1] / "docs" / "not-preserved.md").read_text()
    for place, known in KNOWN.items():
        assert known.reason, place
        assert f"\n| {known.row}" in told, place
