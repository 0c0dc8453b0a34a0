"""What holds for the comparison as a whole; runs after all notebooks."""

from __future__ import annotations

import pytest
from corpus import corpus_folder, read_entries
from golden_report import KNOWN, REPORT, Report
from test_golden import EXAMPLES, HERE, NOTEBOOKS

GPU_CELLS_MIN = 150
OWN_MIN = 20
CORPUS_MIN = 10


@pytest.mark.slow
def test_golden_comparison_covers_enough(pytestconfig: pytest.Config) -> None:
    found = pytestconfig.stash.get(REPORT, Report())
    compared = {result.notebook for result in found.results}
    missing = {path.stem for path in (*EXAMPLES, *NOTEBOOKS)} - compared
    if missing:
        pytest.skip(f"{len(missing)} notebooks were not asked for or not run")
    assert len(NOTEBOOKS) >= OWN_MIN
    assert found.gpu_cells() >= GPU_CELLS_MIN
    if corpus_folder() is not None:
        names = {entry.name for entry in read_entries()}
        assert names <= compared
        assert len(names) >= CORPUS_MIN


def test_golden_known_differences_are_told_to_people() -> None:
    told = (HERE.parents[1] / "docs" / "not-preserved.md").read_text()
    for place, known in KNOWN.items():
        assert known.reason, place
        assert f"\n| {known.row}" in told, place
