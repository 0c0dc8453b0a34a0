"""What of the kernel's log the frontend still lacks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from looseleaf.ids import CellId
from looseleaf.kernel.run_log import REQUEST_CHARS_MAX, RUNS_PER_REQUEST_MAX, RunLog


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


@given(st.lists(st.integers(-3, 12)))
def test_unsent_continues_where_the_frontend_says(answers: list[int]) -> None:
    log = filled(8)
    for next_sequence in answers:
        log.acknowledged(next_sequence)
        expected = list(range(max(1, min(next_sequence, 9)), 9))
        assert [run["sequence"] for run in log.unsent()] == expected
