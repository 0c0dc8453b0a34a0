"""Keyed fingerprints of device payloads by the host's vector unit, beside a memcpy of the same bytes, all cold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alternating import Rounds, Target, alternate, publish, timing
from pytest_benchmark.fixture import BenchmarkFixture

from looseleaf.dirty_tracker import FINGERPRINT_SCHEDULES, copy_into, region_fingerprints
from looseleaf.units import MIB

STATE_MIB = 256
SMOKE_MIB = 16
ROUNDS = 7
# At least half of a memcpy's speed, by the fastest unit.
TARGETS = {FINGERPRINT_SCHEDULES[0]: Target("ratio", 2.0, "<= 2"), "scalar": None}


@pytest.fixture(scope="module")
def rounds(smoke: bool) -> Rounds:
    size_bytes = (SMOKE_MIB if smoke else STATE_MIB) * MIB
    values: Any = np.arange(size_bytes // 8, dtype=np.uint64)
    state, target = memoryview(values), memoryview(np.zeros_like(values))
    tasks = {
        schedule: timing(lambda schedule=schedule: region_fingerprints(state, bytes(32), schedule=schedule))
        for schedule in TARGETS
    }
    tasks["memcpy"] = timing(lambda: copy_into(target, 0, state, 0, size_bytes))
    return alternate(tasks, rounds=1 if smoke else ROUNDS)


@pytest.mark.parametrize("schedule", list(TARGETS))
def test_fingerprints_of_large_state(benchmark: BenchmarkFixture, rounds: Rounds, schedule: str) -> None:
    publish(
        benchmark, rounds, schedule, f"keyed fingerprints by {schedule} of {STATE_MIB} MiB",
        ("memcpy", TARGETS[schedule]),
    )  # fmt: skip
