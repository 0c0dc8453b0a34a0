from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from looseleaf.local.restart import RestartDelay


def test_delay_doubles_to_its_limit_and_falls_back_after_a_long_life() -> None:
    delay = RestartDelay(0.2, 1.0)
    assert [delay.after_exit(0, 0.1) for _ in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]
    assert delay.after_exit(10, 11.0) == 0.2


@given(st.floats(0, 5), st.floats(5, 60), st.lists(st.floats(0, 100), max_size=30))
def test_delay_stays_within_its_limits(least_s: float, most_s: float, lives_s: list[float]) -> None:
    delay = RestartDelay(least_s, most_s)
    for life_s in lives_s:
        assert least_s <= delay.after_exit(0, life_s) <= most_s
