from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from alternating import BROKEN_FACTORS, Rounds, Target, alternate, clock_s, compare, publish


class FakeBenchmark:
    """What `publish` uses of pytest-benchmark's fixture."""

    def __init__(self, *, disabled: bool = False) -> None:
        self.disabled = disabled
        self.extra_info: dict[str, Any] = {}
        self.times_s: list[float] = []

    def pedantic(self, target: Any, *, rounds: int, iterations: int) -> None:
        for _ in range(1 if self.disabled else rounds):
            began_s = clock_s()
            target()
            self.times_s.append(clock_s() - began_s)


def rounds_of(**series: list[float]) -> Rounds:
    found = Rounds()
    for name, values in series.items():
        for value in values:
            found.add(name, value)
    return found


def test_alternate_does_each_task_once_a_round_and_begins_with_the_next() -> None:
    done: list[str] = []

    def task(name: str) -> Any:
        return lambda: float(done.append(name) or 1.0)

    alternate({name: task(name) for name in "abc"}, rounds=3, warmup_rounds=1)
    assert ["".join(done[start : start + 3]) for start in range(0, 12, 3)] == ["cab", "abc", "bca", "cab"]


def test_alternate_leaves_warm_up_rounds_out() -> None:
    values = iter([9.0, 1.0, 2.0])
    assert alternate({"a": lambda: next(values)}, rounds=2, warmup_rounds=1).values_s("a") == [1.0, 2.0]


def test_task_with_several_kinds_makes_a_series_of_each() -> None:
    found = alternate({"save": lambda: {"staged": 1.0, "durable": [2.0, 3.0]}}, rounds=1, warmup_rounds=0)
    assert found.series == {"save/staged": [[1.0]], "save/durable": [[2.0, 3.0]]}


def test_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # The load of the second round slows both sides; the medians alone would tell a ratio of 2.
    rounds = rounds_of(ours=[1.0, 40.0, 2.0], theirs=[1.0, 40.0, 1.0])
    assert compare(rounds, "ours", "theirs", None)["ratio"]["median"] == 1.0


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (Target("ratio", 1 / 8, ""), 0.1, True),
        (Target("ratio", 0.09, ""), 0.1, False),
        (Target("added_s", -0.8, ""), -0.9, True),
        (Target("time_s", 0.09, ""), 0.1, False),
    ],
)
def test_target_is_met_up_to_its_limit(target: Target, value: float, met: bool) -> None:
    found = compare(rounds_of(ours=[0.1] * 3, theirs=[1.0] * 3), "ours", "theirs", target)["target"]
    assert (found["value"], found["met"]) == (pytest.approx(value), met)


def test_tail_target_is_for_the_95th_percentile() -> None:
    rounds = rounds_of(ours=[1.0] * 17 + [5.0] * 3, theirs=[1.0] * 20)
    assert compare(rounds, "ours", "theirs", Target("ratio", 4.0, ""))["target"]["met"]
    assert not compare(rounds, "ours", "theirs", Target("ratio", 4.0, "", tail=True))["target"]["met"]


def test_publish_gives_the_measured_durations_and_a_row_a_reference() -> None:
    benchmark = FakeBenchmark()
    publish(benchmark, rounds_of(a=[0.5, 0.25], b=[1.0, 1.0], c=[2.0, 2.0]), "a", "it", ("b", None), ("c", None), x=1)
    assert benchmark.times_s == pytest.approx([0.5, 0.25])
    assert [row["reference"] for row in benchmark.extra_info["rows"]] == ["b", "c"]
    assert (benchmark.extra_info["what"], benchmark.extra_info["x"]) == ("it", 1)


@pytest.mark.parametrize(("factor", "fails"), [(0.99, False), (1.01, True)])
@pytest.mark.parametrize("kind", ["ratio", "time_s"])
def test_publish_fails_only_far_from_the_target(kind: Any, factor: float, fails: bool) -> None:
    rounds = rounds_of(a=[BROKEN_FACTORS[kind] * factor], b=[1.0])
    with pytest.raises(AssertionError, match="far worse") if fails else nullcontext():
        publish(FakeBenchmark(), rounds, "a", "it", ("b", Target(kind, 1.0, "")))


def test_publish_judges_nothing_when_benchmarks_are_disabled() -> None:
    benchmark = FakeBenchmark(disabled=True)
    publish(benchmark, rounds_of(a=[1000.0]), "a", "it", (None, Target("time_s", 1.0, "")))
    assert benchmark.extra_info == {}
