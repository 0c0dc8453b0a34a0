"""What holds for the comparison as a whole."""

from __future__ import annotations

from pathlib import Path

import golden_total
import pytest
from corpus import read_entries
from golden_compare import CellComparison
from golden_report import KNOWN, Report, Result
from golden_total import (
    CORPUS_MIN,
    EXAMPLES,
    GPU_CELLS_MIN,
    HERE,
    NOTEBOOKS,
    OWN_MIN,
    PROGRAMS,
    lacking,
    left_to_soak,
    shortfalls,
)
from percent import read_percent

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


def test_golden_gates_part_is_enough_by_itself_and_the_rest_is_known_notebooks() -> None:
    own = {path.stem: read_percent(path).gpu_cells for path in NOTEBOOKS}
    assert not PROGRAMS - set(own)
    left = left_to_soak(PROGRAMS)
    assert len(PROGRAMS) / 2 < len(left) < len(PROGRAMS)
    assert sum(count for name, count in own.items() if name not in left) > GPU_CELLS_MIN


def test_golden_gates_part_falls_short_without_gpu_cells_and_without_its_notebooks_of_the_corpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(golden_total, "corpus_folder", lambda: tmp_path)
    listed = [entry.name for entry in read_entries()]
    asked = {path.stem for path in (*EXAMPLES, *NOTEBOOKS)} - left_to_soak(PROGRAMS)

    def told(label: str, names: set[str]) -> list[str]:
        cells = [CellComparison(f"c{number}", label, (), ()) for number in range(GPU_CELLS_MIN)]
        return shortfalls(Report([Result("any", name, "reference", cells) for name in names]))

    gates = asked | (set(listed) - left_to_soak(listed))
    assert told("gpu", gates) == []
    assert ["on a GPU" in why for why in told("cpu", gates)] == [True]
    (why,) = told("gpu", asked)
    assert "not compared" in why and all(name not in why for name in left_to_soak(listed))


def test_golden_known_differences_are_told_to_people() -> None:
    told = (HERE.parents[1] / "docs" / "not-preserved.md").read_text()
    for place, known in KNOWN.items():
        assert known.reason, place
        assert f"\n| {known.row}" in told, place
