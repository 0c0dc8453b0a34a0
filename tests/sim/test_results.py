"""Definitions of what is told."""

from __future__ import annotations

import pytest

from looseleaf.sim.ledger import GpuState, Ledger
from looseleaf.sim.results import Result, SeedResult, as_plain, quantile
from looseleaf.sim.tables import COLUMNS, against, as_markdown, duration, late_rows


def seed_of(gpus: float, starts_s: list[float], seed: int = 1, late: dict[str, int] | None = None) -> SeedResult:
    return SeedResult(
        seed, gpus, 16, dict.fromkeys(GpuState, 1.0), sorted(starts_s), 0, 3, 100,
        {"ordered": 4, "used": 3, "wasted": 1}, 0.01, late or {})


def test_plain_object_has_exactly_the_keys_that_are_promised() -> None:
    plain = as_plain(Result("looseleaf", "w1", 24, (seed_of(8.0, [0.05, 0.051, 1.0, 1.1]), seed_of(4.0, [0.0]))))
    assert list(plain) == [
        "policy", "workload", "sessions", "seeds", "gpus_provisioned", "saving_vs_pinned", "immediate_share",
        "starts_within_1s", "p50_s", "p95_s", "p99_s", "max_s", "boots", "events_per_s",
    ]  # fmt: skip
    assert plain["gpus_provisioned"] == 6.0
    assert plain["saving_vs_pinned"] == 0.625
    assert plain["immediate_share"] == (0.25 + 1.0) / 2
    assert plain["starts_within_1s"] == (0.75 + 1.0) / 2
    assert (plain["p50_s"], plain["max_s"], plain["boots"]) == (0.051, 1.1, 3.0)
    assert plain["events_per_s"] == 10_000


def test_interval_of_two_seeds_is_that_of_student() -> None:
    estimate = Result("x", "w1", 1, (seed_of(1.0, []), seed_of(3.0, []))).estimate(lambda seed: seed.gpus_provisioned)
    assert (estimate.mean, estimate.half_width) == pytest.approx((2.0, 12.706))


def test_saving_against_another_policy_is_of_the_seeds_that_both_have() -> None:
    ours = Result("looseleaf", "w1", 24, (seed_of(8.0, [], 1), seed_of(4.0, [], 2), seed_of(1.0, [], 3)))
    theirs = Result("modal", "w1", 24, (seed_of(16.0, [], 2), seed_of(16.0, [], 1)))
    saving = ours.saving_against(theirs)
    assert (saving.mean, saving.half_width) == pytest.approx((0.625, 12.706 * 0.125))
    elsewhere = Result("modal", "long", 24, theirs.seeds)
    assert against(ours, [elsewhere, ours, theirs]) == ["-", "62.5 ±158.8 %"]
    assert against(theirs, [ours, theirs]) == ["-", "-"]


def test_late_starts_are_told_by_their_longest_part_as_shares_of_all_cells() -> None:
    seeds = (seed_of(8.0, [0.0] * 5, 1, {"attach": 1}), seed_of(8.0, [0.0] * 5, 2, {"attach": 1, "no GPU": 3}))
    result = Result("looseleaf", "w1", 24, seeds)
    assert result.late_shares() == {"attach": 0.2, "no GPU": 0.3}
    assert late_rows([result, Result("modal", "w1", 24, (seed_of(8.0, [0.0]),))]) == [
        ["looseleaf", "w1", "24", "no GPU 30.00 %, attach 20.00 %"]]


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.25, 1.0), (0.5, 2.0), (0.51, 3.0), (1.0, 4.0)])
def test_quantile_is_the_smallest_value_that_the_share_does_not_exceed(share: float, value: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], share) == value


def test_table_has_a_cell_for_each_column() -> None:
    lines = as_markdown([Result("looseleaf", "w1", 24, (seed_of(8.0, [0.4]), seed_of(8.0, [130.0])))])
    assert {line.count("|") for line in lines} == {len(COLUMNS) + 1}
    assert "130 s" not in lines[2] and "2 min" in lines[2]
    assert [duration(value) for value in (0.0049, 0.9999, 63.0)] == ["5 ms", "1 s", "63 s"]


def test_ledger_counts_from_its_beginning_only_and_each_gpu_once() -> None:
    ledger = Ledger(since_s=100.0)
    ledger.add(GpuState.BOOT, 8, 0.0)
    ledger.move(GpuState.BOOT, GpuState.IDLE, 8, 110.0)
    ledger.move(GpuState.IDLE, GpuState.RUNNING, 2, 120.0)
    seconds = ledger.gpu_seconds(150.0)
    assert (seconds[GpuState.BOOT], seconds[GpuState.IDLE], seconds[GpuState.RUNNING]) == (80.0, 80 + 180.0, 60.0)
    assert sum(seconds.values()) == 8 * 50.0
    with pytest.raises(AssertionError):
        ledger.move(GpuState.SAVING, GpuState.IDLE, 1, 151.0)
