"""A comparison as rows for people: means with half of their 95 % intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from looseleaf.sim.results import IMMEDIATE_S, INTERACTIVE_S, Estimate, Result, SeedResult, quantile

COLUMNS: Final = [
    "policy", "workload", "sessions", "GPUs", "saved", "immediate", "within 1 s", "p50", "p95", "p99", "max", "boots",
    "prepared / used / wasted", "events/s",
]  # fmt: skip
# Policies that others are compared with besides pinning.
OTHERS: Final = ("notebookos", "modal")
OTHER_COLUMNS: Final = [f"saved to {name}" for name in OTHERS]


def rows_of(results: Sequence[Result]) -> list[list[str]]:
    """One row a result, in the order of COLUMNS."""
    return [_row(result) for result in results]


def _row(result: Result) -> list[str]:
    starts_s = result.starts_s()
    prepared = result.preparations()
    return [
        result.policy, result.workload, str(result.sessions),
        _plain(result, lambda seed: seed.gpus_provisioned),
        _percent(result, lambda seed: seed.saving),
        _percent(result, lambda seed: seed.share_within(IMMEDIATE_S)),
        _percent(result, lambda seed: seed.share_within(INTERACTIVE_S)),
        *(duration(quantile(starts_s, share)) for share in (0.50, 0.95, 0.99, 1.0)),
        _plain(result, lambda seed: seed.boots),
        " / ".join(f"{prepared[key]:.0f}" for key in ("ordered", "used", "wasted")) if prepared else "-",
        f"{result.events_per_s:,.0f}",
    ]  # fmt: skip


def against(result: Result, others: Sequence[Result]) -> list[str]:
    """What `result` saves of the GPUs of each of OTHERS under the same people, in the order of OTHER_COLUMNS."""
    cells = []
    for name in OTHERS:
        found = [
            other for other in others if other.policy == name and name != result.policy
            and (other.workload, other.sessions) == (result.workload, result.sessions)
            and {seed.seed for seed in other.seeds} & {seed.seed for seed in result.seeds}]
        cells.append(percent(result.saving_against(found[0]), len(result.seeds)) if found else "-")
    return cells


def late_rows(results: Sequence[Result]) -> list[list[str]]:
    """Of all GPU cells, those that started later than 1 s, by the part that took longest; the largest share first."""
    rows = []
    for result in results:
        shares = sorted(result.late_shares().items(), key=lambda item: -item[1])
        if shares:
            told = ", ".join(f"{part} {100 * share:.2f} %" for part, share in shares)
            rows.append([result.policy, result.workload, str(result.sessions), told])
    return rows


def as_markdown(results: Sequence[Result]) -> list[str]:
    """The rows as lines of a Markdown table."""
    return markdown(COLUMNS, rows_of(results))


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return ["| " + " | ".join(row) + " |" for row in (columns, ["---"] * len(columns), *rows)]


def duration(seconds: float) -> str:
    """Milliseconds below a second, seconds, and minutes from two on."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def percent(estimate: Estimate, seeds: int) -> str:
    """A share with half of its interval, which one seed does not give."""
    # Without a sign for what is rounded to nothing.
    mean = round(100 * estimate.mean, 1) + 0.0
    return f"{mean:.1f}" + (f" ±{100 * estimate.half_width:.1f} %" if seeds > 1 else " %")


def _plain(result: Result, value: Callable[[SeedResult], float]) -> str:
    estimate = result.estimate(value)
    return f"{estimate.mean:.1f}" + (f" ±{estimate.half_width:.1f}" if len(result.seeds) > 1 else "")


def _percent(result: Result, value: Callable[[SeedResult], float]) -> str:
    return percent(result.estimate(value), len(result.seeds))
