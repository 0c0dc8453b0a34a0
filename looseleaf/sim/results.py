"""What is told of simulations: definitions of docs/simulate.md ("What the figures mean"), means with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from looseleaf.sim.ledger import GpuState

# A start is immediate up to here, and interactive up to there (design §6, paper §1).
IMMEDIATE_S: Final = 0.050
INTERACTIVE_S: Final = 1.0
# Two-sided 95 % of Student's t by degrees of freedom; beyond the table the normal value serves.
_T95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SeedResult:
    """One policy under one seed. `starts_s`: of all GPU cells, ascending.

    `late`: of those that were not interactive, how many by the part that took longest; empty if nobody counted.
    """

    seed: int
    gpus_provisioned: float
    gpus_pinned: int
    gpu_seconds: dict[GpuState, float]
    starts_s: Sequence[float]
    refusals: int
    boots: int
    decisions: int
    preparations: dict[str, int]
    processor_s: float
    late: dict[str, int]

    def share_within(self, limit_s: float) -> float:
        """Of all GPU cells, those that started within `limit_s`; 1 if there was none."""
        return sum(1 for start_s in self.starts_s if start_s <= limit_s) / len(self.starts_s) if self.starts_s else 1.0

    @property
    def saving(self) -> float:
        """GPU time not provisioned, against pinning."""
        return 1.0 - self.gpus_provisioned / self.gpus_pinned


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds and half of its 95 % interval; of one seed nothing is known of that: 0."""

    mean: float
    half_width: float


def estimate_of(values: Sequence[float]) -> Estimate:
    """Mean and interval of values that are independent of each other; there must be one."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean, 0.0)
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1))
    freedom = len(values) - 1
    factor = _T95[freedom - 1] if freedom <= len(_T95) else 1.96
    return Estimate(mean, factor * deviation / math.sqrt(len(values)))


@dataclass(frozen=True, slots=True)
class Result:
    """One policy on one workload at one number of sessions, over all seeds."""

    policy: str
    workload: str
    sessions: int
    seeds: tuple[SeedResult, ...]

    def estimate(self, value: Callable[[SeedResult], float]) -> Estimate:
        """Mean and interval of one figure of each seed."""
        return estimate_of([value(seed) for seed in self.seeds])

    def starts_s(self) -> list[float]:
        """Of all seeds together, ascending."""
        return sorted(start_s for seed in self.seeds for start_s in seed.starts_s)

    def gpu_seconds(self) -> dict[GpuState, float]:
        """Means over the seeds."""
        return {
            state: math.fsum(seed.gpu_seconds[state] for seed in self.seeds) / len(self.seeds) for state in GpuState}

    def preparations(self) -> dict[str, float]:
        """What became of preparations, means over the seeds; empty for policies without."""
        return {
            key: sum(seed.preparations[key] for seed in self.seeds) / len(self.seeds)
            for key in self.seeds[0].preparations}

    def saving_against(self, other: Result) -> Estimate:
        """GPU time not provisioned, against another policy under the same people: over the seeds that both have."""
        theirs = {seed.seed: seed.gpus_provisioned for seed in other.seeds}
        savings = [1.0 - seed.gpus_provisioned / theirs[seed.seed] for seed in self.seeds if seed.seed in theirs]
        return estimate_of(savings)

    def late_shares(self) -> dict[str, float]:
        """Of all GPU cells of all seeds, those that were not interactive, by the part that took longest."""
        cells = sum(len(seed.starts_s) for seed in self.seeds)
        parts = sorted({part for seed in self.seeds for part in seed.late})
        return {part: sum(seed.late.get(part, 0) for seed in self.seeds) / max(1, cells) for part in parts}

    @property
    def events_per_s(self) -> float:
        """Decisions of the policy over the processor time of whole simulations: what one free core does."""
        processor_s = math.fsum(seed.processor_s for seed in self.seeds)
        return sum(seed.decisions for seed in self.seeds) / max(1e-9, processor_s)


def quantile(ascending: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed; 0 of none."""
    if not ascending:
        return 0.0
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


def as_plain(result: Result) -> dict[str, Any]:
    """The object that `--json` prints; times in seconds, shares of 1."""
    starts_s = result.starts_s()
    return {
        "policy": result.policy,
        "workload": result.workload,
        "sessions": result.sessions,
        "seeds": len(result.seeds),
        "gpus_provisioned": round(result.estimate(lambda seed: seed.gpus_provisioned).mean, 4),
        "saving_vs_pinned": round(result.estimate(lambda seed: seed.saving).mean, 6) + 0.0,
        "immediate_share": round(result.estimate(lambda seed: seed.share_within(IMMEDIATE_S)).mean, 6),
        "starts_within_1s": round(result.estimate(lambda seed: seed.share_within(INTERACTIVE_S)).mean, 6),
        "p50_s": round(quantile(starts_s, 0.50), 4),
        "p95_s": round(quantile(starts_s, 0.95), 4),
        "p99_s": round(quantile(starts_s, 0.99), 4),
        "max_s": round(starts_s[-1] if starts_s else 0.0, 4),
        "boots": round(result.estimate(lambda seed: seed.boots).mean, 2),
        "events_per_s": round(result.events_per_s),
    }
