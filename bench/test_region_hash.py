"""Region hashing against memory speed, in one run: the ratio to memcpy is what counts, the GB/s are this machine's.

`make bench` prints both rows. Hashing is to take at most 2/3 of the time that memcpy takes for the same bytes: it reads
as much and writes nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from looseleaf.dirty_tracker import compare_regions, copy_into, region_hashes
from looseleaf.units import MIB

STATE_BYTES = 256 * MIB
ROUNDS = 7


@pytest.fixture(scope="module")
def state() -> np.ndarray:
    return np.arange(STATE_BYTES // 8, dtype=np.uint64)


@pytest.fixture(scope="module")
def shadow(state: np.ndarray) -> np.ndarray:
    return state.copy()


@pytest.mark.parametrize("threads", [1, 2])
def test_region_hash_of_large_state(benchmark: BenchmarkFixture, state: np.ndarray, threads: int) -> None:
    benchmark.extra_info["size_bytes"] = STATE_BYTES
    table = benchmark.pedantic(
        region_hashes, args=(state,), kwargs={"threads": threads}, rounds=ROUNDS, warmup_rounds=1
    )
    assert len(table) == 16 * 128


def test_memcpy_of_large_state(benchmark: BenchmarkFixture, state: np.ndarray, shadow: np.ndarray) -> None:
    benchmark.extra_info["size_bytes"] = STATE_BYTES
    benchmark.pedantic(copy_into, args=(shadow, 0, state, 0, STATE_BYTES), rounds=ROUNDS, warmup_rounds=1)


def test_exact_compare_of_large_state(benchmark: BenchmarkFixture, state: np.ndarray, shadow: np.ndarray) -> None:
    benchmark.extra_info["size_bytes"] = STATE_BYTES
    assert benchmark.pedantic(compare_regions, args=(state, shadow), rounds=ROUNDS, warmup_rounds=1) == []


def test_region_hash_is_faster_than_memcpy(
    benchmark: BenchmarkFixture, state: np.ndarray, shadow: np.ndarray, record_property: Callable[[str, object], None]
) -> None:
    def elapsed_s(call: Callable[[], object]) -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    def interleaved() -> float:
        # Alternating the two keeps a neighbour's load on the machine out of the ratio.
        pairs = [
            (elapsed_s(lambda: region_hashes(state)), elapsed_s(lambda: copy_into(shadow, 0, state, 0, STATE_BYTES)))
            for _ in range(ROUNDS)
        ]
        return statistics.median(hash_s / copy_s for hash_s, copy_s in pairs)

    ratio = benchmark.pedantic(interleaved, rounds=1, warmup_rounds=1)
    benchmark.extra_info["hash_time_over_memcpy_time"] = round(ratio, 3)
    record_property("hash_time_over_memcpy_time", round(ratio, 3))
    print(f"\nXXH3-128 time / memcpy time over {STATE_BYTES // MIB} MiB: {ratio:.2f} (median of {ROUNDS})")
    if not benchmark.disabled:
        assert ratio <= 1 / 1.5
