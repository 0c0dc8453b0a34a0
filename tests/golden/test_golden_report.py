"""The summary counts what was compared, and fails what must not stay."""

from __future__ import annotations

import json
from pathlib import Path

import golden_report
import pytest
from golden_compare import CellComparison, Difference
from golden_report import Known, Report, Result

DIFFERENCE = Difference("output 1", "a", "b")


def cell(name: str, label: str = "cpu", *rules: str, differs: bool = False) -> CellComparison:
    return CellComparison(name, label, (DIFFERENCE,) if differs else (), rules)


@pytest.fixture
def report() -> Report:
    made = Report()
    made.add(Result("own", "n", "reference", [cell("a", "gpu"), cell("b", "gpu", "address"), cell("c", differs=True)]))
    made.add(Result("own", "n", "plain", [cell("a", "gpu"), cell("b", "gpu"), cell("c")]))
    made.add(Result("corpus", "m", "reference", [cell("a")], limited="needs a package"))
    return made


def test_golden_report_counts_each_cell_once_and_by_its_worst_comparison(report: Report) -> None:
    assert (len(report.cells()), report.gpu_cells()) == (4, 2)
    lines = report.lines()
    counts = "4 cells compared (2 on a GPU): 2 equal, 1 equal after rules, 1 differing"
    assert f"all 2 notebooks, each cell counted once: {counts}" in lines
    assert "  equal after rule 'address': 1 cells" in lines
    assert "  m: needs a package" in lines
    assert "  differs: n, cell c: FAULT: output 1" in lines


def test_golden_report_difference_is_a_problem_unless_known_and_known_must_differ(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = report.results[0]
    assert len(first.problems()) == 1 and "cell c" in first.problems()[0]
    known = Known("reason", "row")
    monkeypatch.setattr(golden_report, "KNOWN", {("n", "c"): known, ("n", "a"): known})
    assert first.problems() == ["n, cell a: no longer differs; take it out of KNOWN"]
    assert "  differs: n, cell c: known: reason" in report.lines()


def test_golden_report_is_written_as_json(report: Report, tmp_path: Path) -> None:
    report.write(tmp_path / "out" / "golden.json", {"m": {"verdict": "part"}})
    found = json.loads((tmp_path / "out" / "golden.json").read_text())
    assert (found["cells"], found["gpu_cells"], found["corpus"]) == (4, 2, {"m": {"verdict": "part"}})
    assert found["results"][0]["cells"][2]["differences"] == ["output 1"]


def test_golden_report_of_several_processes_is_that_of_one(report: Report) -> None:
    parts = [Report([result]) for result in report.results]
    for order in (parts, parts[::-1]):
        joined = Report()
        for part in order:
            joined.unpack(part.pack())
        assert sorted(joined.lines()) == sorted(report.lines())
        assert [result.side for result in joined.results] == ["reference", "plain", "reference"]
    assert [each.what for each in joined.results[2].cells[2].differences] == [DIFFERENCE.what]
