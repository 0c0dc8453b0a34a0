"""A comparison as rows for people: means with half of their 95 % intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from looseleaf.sim.results import IMMEDIATE_S, INTERACTIVE_S, Result, SeedResult, quantile

COLUMNS: Final = [
    "policy", "workload", "sessions", "GPUs", "saved", "immediate", "within 1 s", "p50", "p95", "p99", "max", "boots",
    "prepared (used)", "events/s",
]  # fmt: skip


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
        f"{prepared['ordered']:.0f} ({prepared['used']:.0f})" if prepared else "-",
        f"{result.events_per_s:,.0f}",
    ]  # fmt: skip


def as_markdown(results: Sequence[Result]) -> list[str]:
    """The rows as lines of a Markdown table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "| " + " | ".join("---" for _ in COLUMNS) + " |"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows_of(results)]


def duration(seconds: float) -> str:
    """Milliseconds below a second, seconds, and minutes from two on."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _plain(result: Result, value: Callable[[SeedResult], float]) -> str:
    estimate = result.estimate(value)
    return f"{estimate.mean:.1f}" + (f" ±{estimate.half_width:.1f}" if len(result.seeds) > 1 else "")


def _percent(result: Result, value: Callable[[SeedResult], float]) -> str:
    estimate = result.estimate(value)
    # Without a sign for what is rounded to nothing.
    mean = round(100 * estimate.mean, 1) + 0.0
    return f"{mean:.1f}" + (f" ±{100 * estimate.half_width:.1f} %" if len(result.seeds) > 1 else " %")
