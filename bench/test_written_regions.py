"""Which regions of a restored payload have changed: by its written pages, beside a fingerprint of everything.

The payload is a private mapping, all of whose pages were read; the second save in a process still finds the pages of
the first among its candidates.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from alternating import Rounds, Target, alternate, publish, timed_s
from pytest_benchmark.fixture import BenchmarkFixture

from looseleaf.dirty_tracker import MappedRegions, Memfd, Payload, RestoredRegions, region_hashes, region_tables
from looseleaf.units import MIB, REGION_BYTES

STATE_MIB = 1024
SMOKE_MIB = 16
ROUNDS = 9
DIRTY = {"0 %": 0.0, "1 %": 0.01}
SAVES = ("first", "second")
# Beside a scan by one thread; what a whole save adds to it is measured by test_save.py.
TARGETS = {"0 %": Target("ratio", 1 / 2, "<= 1/2"), "1 %": Target("ratio", 1 / 1.8, "<= 1/1.8")}


class Restored:
    """An arena of random bytes and its fingerprints; `save_s` restores it anew and measures saves of it."""

    def __init__(self, size_mib: int) -> None:
        self.arena = Memfd.create("bench", size_mib * MIB)
        numbers = np.arange(size_mib * MIB // 8, dtype=np.uint64)
        np.multiply(numbers, 0x9E3779B97F4A7C15, out=np.frombuffer(self.arena, dtype=np.uint64))
        self.table = region_hashes(self.arena)

    def save_s(self, fraction: float, threads: int) -> dict[str, float]:
        """Seconds of the first and the second save, each after writes to a share of the regions."""
        with MappedRegions([(self.arena.fd, 0, self.arena.size_bytes)]) as mapped:
            mapped.populate()
            array: Any = np.frombuffer(mapped, dtype=np.uint8)
            restored = RestoredRegions(mapped, self.table)
            taken, last = {}, self.table
            step = round(1 / fraction) if fraction else 1
            for number, save in enumerate(SAVES):
                if fraction:
                    array[number * REGION_BYTES + 5 :: step * REGION_BYTES] += 1
                began_s = time.perf_counter()
                (found,) = region_tables([Payload(array, last, restored)], threads=threads)
                taken[save] = time.perf_counter() - began_s
                assert bool(found.dirty) == bool(fraction)
                last = found.hashes
            del array
        return taken

    def scan_s(self, threads: int) -> float:
        """Seconds to fingerprint all of it."""
        return timed_s(lambda: region_hashes(self.arena, threads=threads))


@pytest.fixture(scope="module")
def rounds(smoke: bool) -> Rounds:
    state = Restored(SMOKE_MIB if smoke else STATE_MIB)
    tasks: dict[str, Any] = {dirty: partial(state.save_s, fraction, 1) for dirty, fraction in DIRTY.items()}
    tasks["XXH3 scan"] = partial(state.scan_s, 1)
    measured = alternate(tasks, rounds=1 if smoke else ROUNDS)
    state.arena.close()
    return measured


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("dirty", list(DIRTY))
def test_changed_regions_of_restored_payload(
    benchmark: BenchmarkFixture, rounds: Rounds, dirty: str, save: str
) -> None:
    name = f"changed regions of restored {STATE_MIB} MiB, {dirty} dirty, {save} save"
    publish(benchmark, rounds, f"{dirty}/{save}", name, ("XXH3 scan", TARGETS[dirty]))
