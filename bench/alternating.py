"""Measures several tasks in turn, round after round, and says how one compares with the others.

A neighbour's load on the machine then meets all tasks alike, and stays out of their ratios.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Seconds = float | Sequence[float]
Task = Callable[[], Seconds | Mapping[str, Seconds]]
"""Does its work once and returns what it took: one duration, several, or several kinds of them by name."""

# A benchmark fails only if it misses its target by this factor: less may be the machine's load, more is a fault.
# What is no ratio has no reference that the load slows as much.
BROKEN_FACTORS = {"ratio": 5.0, "added_s": 20.0, "time_s": 20.0}

# What pytest-benchmark reads as the time: it advances by exactly the durations that were measured.
_elapsed_s = 0.0


def clock_s() -> float:
    """The timer of every benchmark here; see `publish`."""
    return _elapsed_s


def timed_s(function: Callable[..., object], *args: object) -> float:
    """How long one call takes."""
    began_s = time.perf_counter()
    function(*args)
    return time.perf_counter() - began_s


def timing(function: Callable[..., object], *args: object) -> Task:
    """A task that is one call."""
    return lambda: timed_s(function, *args)


@dataclass(frozen=True)
class Target:
    """`limit` is for the ratio to the reference, for the time added to it, or for the time itself, both in seconds.

    `text` as people say it. `tail`: it is for the 95th percentile, not the median.
    """

    kind: Literal["ratio", "added_s", "time_s"]
    limit: float
    text: str
    tail: bool = False


@dataclass
class Rounds:
    """Durations in seconds by series; one list a round. A series is a task, or `task/kind` if it gave several kinds."""

    series: dict[str, list[list[float]]] = field(default_factory=dict)

    def add(self, name: str, measured: Seconds | Mapping[str, Seconds]) -> None:
        """What `name` took in one more round."""
        if isinstance(measured, Mapping):
            for kind, value in measured.items():
                self.add(f"{name}/{kind}", value)
        else:
            values = [measured] if isinstance(measured, (int, float)) else list(measured)
            self.series.setdefault(name, []).append(values)

    def values_s(self, name: str) -> list[float]:
        """All durations of a series, in order."""
        return [value for round_ in self.series[name] for value in round_]

    def ratios(self, name: str, reference: str) -> list[float]:
        """Of each round's medians."""
        pairs = zip(self.series[name], self.series[reference], strict=True)
        return [statistics.median(ours) / statistics.median(theirs) for ours, theirs in pairs]


def alternate(tasks: Mapping[str, Task], *, rounds: int, warmup_rounds: int = 1) -> Rounds:
    """Does all tasks once a round, each round beginning with the next of them; warm-up rounds are not counted."""
    found, names = Rounds(), list(tasks)
    for number in range(-warmup_rounds, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            measured = tasks[name]()
            if number >= 0:
                found.add(name, measured)
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and 95th percentile; the percentile is the nearest value that was seen."""
    ordered = sorted(values)
    low, _, high = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
    p95 = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    return {"median": statistics.median(ordered), "low": low, "high": high, "p95": p95}


def compare(rounds: Rounds, name: str, reference: str | None, target: Target | None) -> dict[str, Any]:
    """One row of the table: `name` beside `reference` (None: alone), and whether the target was met."""
    ours = spread(rounds.values_s(name))
    row: dict[str, Any] = {"time_s": ours, "rounds": len(rounds.series[name]), "reference": reference}
    values = {"time_s": ours["p95"] if target is not None and target.tail else ours["median"]}
    if reference is not None:
        theirs = spread(rounds.values_s(reference))
        ratio = spread(rounds.ratios(name, reference))
        row.update(reference_s=theirs, ratio=ratio, reference_values_s=rounds.values_s(reference))
        tail = target is not None and target.tail
        values["ratio"] = ours["p95"] / theirs["median"] if tail else ratio["median"]
        values["added_s"] = ours["p95"] - theirs["p95"] if tail else ours["median"] - theirs["median"]
    if target is not None:
        value = values[target.kind]
        row["target"] = {
            "kind": target.kind, "limit": target.limit, "text": target.text, "value": value,
            "met": value <= target.limit, "broken": value > target.limit * BROKEN_FACTORS[target.kind],
        }  # fmt: skip
    return row


def publish(
    benchmark: Any, rounds: Rounds, name: str, what: str, *beside: tuple[str | None, Target | None], **facts: Any
) -> None:
    """Gives pytest-benchmark the durations of `name`, and its extra_info a row for each (reference, target).

    The reference is None for a target of the time alone. `facts` go into the JSON. Fails if a target is missed by more
    than its factor of BROKEN_FACTORS. A run with --benchmark-disable only sees that everything works.
    """
    remaining = iter(rounds.values_s(name))

    def advance() -> None:
        global _elapsed_s
        _elapsed_s += next(remaining)

    benchmark.pedantic(advance, rounds=len(rounds.values_s(name)), iterations=1)
    if benchmark.disabled:
        return
    rows = [compare(rounds, name, reference, target) for reference, target in beside]
    benchmark.extra_info.update(facts, what=what, rows=rows)
    broken = [row["target"] for row in rows if row.get("target", {}).get("broken")]
    assert not broken, f"{what}: far worse than its target: {broken}"
