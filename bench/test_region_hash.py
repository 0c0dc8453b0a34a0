"""Region hashing beside a memcpy of the same bytes: it reads as much and writes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alternating import Rounds, Target, alternate, publish, timing
from pytest_benchmark.fixture import BenchmarkFixture

from looseleaf.dirty_tracker import compare_regions, copy_into, region_hashes
from looseleaf.units import MIB

STATE_MIB = 256
SMOKE_MIB = 16
ROUNDS = 9
# Beside a memcpy in any case; hashing by one thread is to take at most 2/3 of its time.
TARGETS = {
    "XXH3-128, 1 thread": Target("ratio", 1 / 1.5, "<= 2/3"),
    "XXH3-128, 2 threads": None,
    "exact compare": None,
}


@pytest.fixture(scope="module")
def rounds(smoke: bool) -> Rounds:
    size_bytes = (SMOKE_MIB if smoke else STATE_MIB) * MIB
    values: Any = np.arange(size_bytes // 8, dtype=np.uint64)
    state, shadow = memoryview(values), memoryview(values.copy())
    tasks = {
        "XXH3-128, 1 thread": timing(lambda: region_hashes(state, threads=1)),
        "XXH3-128, 2 threads": timing(lambda: region_hashes(state, threads=2)),
        "exact compare": timing(lambda: compare_regions(state, shadow)),
        "memcpy": timing(lambda: copy_into(shadow, 0, state, 0, size_bytes)),
    }
    return alternate(tasks, rounds=1 if smoke else ROUNDS)


@pytest.mark.parametrize("kind", list(TARGETS))
def test_region_hash_of_large_state(benchmark: BenchmarkFixture, rounds: Rounds, kind: str) -> None:
    publish(benchmark, rounds, kind, f"{kind} of {STATE_MIB} MiB", ("memcpy", TARGETS[kind]))
