"""A GPU cell after a CPU cell that made 256 MiB: how long it waits for that, and how long cells wait that come while it
is committed.

In every round the memory is another, so that its commit moves all of it. The reference of a cell that needs 1 MiB is
the same cell that needs the 256 MiB too, in the same kernel; that of a CPU cell is a stock kernel.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest
from alternating import Target, alternate, publish
from kernels import Kernel
from pytest_benchmark.fixture import BenchmarkFixture

ROUNDS = 5
LARGE_BYTES, SMOKE_BYTES = 256 << 20, 80 << 20
SETUP = """
import numpy as np
def make(size_bytes, seed):
    # Each region has a first number of its own, now and in every round.
    made = np.zeros(size_bytes >> 3, dtype="i8")
    made[:: 1 << 18] = np.arange(size_bytes >> 21) + (seed << 20)
    return made
small = np.ones(1 << 17)
"""
NEEDS_SMALL = "%%gpu\nfloat(small[0])"
NEEDS_ALL = "%%gpu\nfloat(small[0]), large.nbytes"
# From the reply of the cell that made it: the commit begins after 0.25 s and takes some tenths of a second.
ARRIVALS_S = (0.27, 0.3, 0.35, 0.4, 0.5)
# A commit gives way within 20 ms.
ARRIVAL_TARGET = Target("added_s", 0.02, "p95 + 20 ms", tail=True)
MAKING_TARGET = Target("added_s", 0.005, "p95 + 5 ms", tail=True)
LAZY_TARGET = Target("ratio", 0.5, "<= 1/2")


@pytest.fixture(scope="module")
def kernels(storage_cluster: Any, one_thread: None) -> Iterator[dict[str, Kernel]]:
    with ExitStack() as stack:
        found = {
            "stock kernel": stack.enter_context(Kernel.stock()),
            "here": stack.enter_context(Kernel.here(str(storage_cluster.kernel_socket()))),
        }
        for kernel in found.values():
            kernel.run(SETUP)
        found["here"].run(NEEDS_SMALL)
        yield found


@pytest.fixture(scope="module")
def make(smoke: bool) -> Any:
    """The source of a cell that makes the memory, another one each time."""
    seeds = count(1)
    size_bytes = SMOKE_BYTES if smoke else LARGE_BYTES
    return lambda: f"large = make({size_bytes}, {next(seeds)})"


@pytest.mark.cluster
def test_gpu_cell_after_one_that_made_256_mib(
    benchmark: BenchmarkFixture, kernels: dict[str, Kernel], make: Any, smoke: bool
) -> None:
    here = kernels["here"]

    def after_making(source: str) -> float:
        here.run(make())
        return here.run(source).reply_s

    tasks = {
        "needs 1 MiB": lambda: after_making(NEEDS_SMALL),
        "needs 256 MiB": lambda: after_making(NEEDS_ALL),
    }
    rounds = alternate(tasks, rounds=1 if smoke else ROUNDS, warmup_rounds=0 if smoke else 1)
    what = "GPU cell that needs 1 MiB after a CPU cell that made 256 MiB"
    publish(benchmark, rounds, "needs 1 MiB", what, ("needs 256 MiB", LAZY_TARGET))


@pytest.mark.cluster
@pytest.mark.parametrize("when", ["making 256 MiB", "while it is committed"])
def test_cpu_cell_and_256_mib(
    benchmark: BenchmarkFixture, kernels: dict[str, Kernel], make: Any, when: str, smoke: bool
) -> None:
    arrivals_s = count()

    def seconds(kernel: Kernel) -> float:
        making_s = kernel.reply_s(make())
        if when == "making 256 MiB":
            return making_s
        time.sleep(ARRIVALS_S[next(arrivals_s) // 2 % len(ARRIVALS_S)])
        return kernel.reply_s("pass")

    tasks = {
        "stock kernel": lambda: seconds(kernels["stock kernel"]),
        "here": lambda: seconds(kernels["here"]),
    }
    rounds = alternate(tasks, rounds=1 if smoke else ROUNDS, warmup_rounds=0 if smoke else 1)
    target = MAKING_TARGET if when == "making 256 MiB" else ARRIVAL_TARGET
    publish(benchmark, rounds, "here", f"CPU cell {when}, to its reply", ("stock kernel", target))
