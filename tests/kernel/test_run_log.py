"""What of the kernel's log the frontend still lacks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.ids import CellId
from looseleaf.kernel import run_log
from looseleaf.kernel.run_log import REQUEST_CHARS_MAX, RUNS_PER_REQUEST_MAX, RunLog
from looseleaf.recipe.history_line import FORGET_ALL


def filled(count: int, source: str = "x = 1") -> RunLog:
    log = RunLog()
    for number in range(count):
        log.add(CellId(f"c{number}"), source, ok=number % 2 == 0)
    return log


def test_unsent_after_adding_is_everything_in_order() -> None:
    log = filled(3)
    assert [(run["sequence"], run["cell_id"], run["ok"]) for run in log.unsent()] == [
        (1, "c0", True), (2, "c1", False), (3, "c2", True)
    ]  # fmt: skip
    assert log.length == 3 and log.executed.length == 3


def test_unsent_is_bounded_by_number_and_by_text() -> None:
    log = filled(RUNS_PER_REQUEST_MAX + 5)
    assert len(log.unsent()) == RUNS_PER_REQUEST_MAX
    log.acknowledged(RUNS_PER_REQUEST_MAX + 1)
    assert len(log.unsent()) == 5
    long = filled(4, "#" * (REQUEST_CHARS_MAX // 2))
    assert [run["sequence"] for run in long.unsent()] == [1, 2]
    # One run alone always goes, else nothing would ever go again.
    huge = filled(1, "#" * (REQUEST_CHARS_MAX + 1))
    assert len(huge.unsent()) == 1


def test_checkout_repeats_the_runs_that_led_to_the_version() -> None:
    log = RunLog()
    for number, source in enumerate(["x = 1", "%%writefile m.py\ny = 1", "def f(): return x"], start=1):
        log.add(CellId(f"c{number}"), source, ok=number != 2)
        log.saved(number)
    log.add(CellId("c4"), "def f(): return z", ok=True)
    log.saved(4)
    log.check_out(3, 5)
    log.add(CellId("c5"), "%looseleaf checkout 3", ok=True)
    texts = [run["source"] for run in log.unsent()]
    # A file that a cell wrote did not go back.
    assert texts[4:] == [FORGET_ALL, "x = 1", "def f(): return x", "%looseleaf checkout 3"]
    assert log.executed.definitions["f"].codes[0].reads == {"x"}
    log.saved(5)
    assert log.cells_of(5) == ["%looseleaf checkout 3"] and log.cells_of(4) == ["def f(): return z"]
    log.check_out(4, 6)
    assert log.executed.definitions["f"].codes[0].reads == {"z"} and log.cells_of(6) == []
    log.check_out(77, 7)
    assert not log.executed.definitions and log.cells_of(77) == []


def test_cells_of_a_version_are_those_since_the_one_before() -> None:
    log = filled(2)
    log.saved(1)
    for source in ("a = 1", "b = 1"):
        log.add(CellId("c"), source, ok=True)
    log.saved(2)
    assert len(log.cells_of(1)) == 2 and log.cells_of(2) == ["a = 1", "b = 1"]


def test_cells_that_ran_after_a_version_and_changed_nothing_did_not_make_it() -> None:
    log = filled(0)
    for version, source in ((1, "a = 1"), (1, "print(a)"), (2, "b = 1"), (2, "print(b)")):
        log.add(CellId("c"), source, ok=True)
        log.saved(version)
    assert log.cells_of(1) == ["a = 1"] and log.cells_of(2) == ["b = 1"]
    log.check_out(1, 3)
    assert [run["source"] for run in log.unsent()][-2:] == ["a = 1", "print(a)"]


def test_what_is_known_of_versions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "VERSIONS_KNOWN_MAX", 2)
    monkeypatch.setattr(run_log, "REPEATED_RUNS_MAX", 3)
    log = filled(9)
    for version in (1, 2, 3):
        log.saved(version)
    assert log.cells_of(1) == []
    log.check_out(2, 4)
    assert log.length == 9 + 1 + 3


@given(st.lists(st.integers(-3, 12)))
def test_unsent_continues_where_the_frontend_says(answers: list[int]) -> None:
    log = filled(8)
    for next_sequence in answers:
        log.acknowledged(next_sequence)
        expected = list(range(max(1, min(next_sequence, 9)), 9))
        assert [run["sequence"] for run in log.unsent()] == expected


def test_version_that_no_cell_has_made_is_explained() -> None:
    runs = RunLog()
    runs.add(CellId("c"), "x = 1", ok=True)
    for version in (1, 2):
        runs.saved(version)
    runs.explain(2, "(taken back)")
    runs.explain(9, "(unknown)")
    runs.add(CellId("c"), "y = 1", ok=True)
    runs.saved(3)
    assert [runs.cells_of(version) for version in (1, 2, 3, 9)] == [["x = 1"], ["(taken back)"], ["y = 1"], []]
