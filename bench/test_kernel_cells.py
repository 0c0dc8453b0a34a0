"""What a CPU cell takes longer than on stock ipykernel, cell by cell in turn, with and without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from alternating import Target, alternate, publish
from kernels import Kernel
from pytest_benchmark.fixture import BenchmarkFixture

ROUNDS = 100
WARMUP_ROUNDS = 3
# Of design §11: at the 95th percentile; the median says how much of it is not the machine's load.
TARGET = Target("added_s", 0.005, "p95 + 5 ms", tail=True)
SETUP = """
import numpy as np
for i in range(200):
    globals()[f"v{i}"] = [{"a": i, "b": list(range(50))}]
for i in range(50):
    exec(f"def f{i}(x): return v{i}, x, np.sum(x)")
"""
CELLS = {"empty": "pass", "ordinary": "y = [v3, v4, f5(np.ones(3))]\nz = f6(1), f7(2)\nlen(y)"}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory, storage_cluster: Any, one_thread: None) -> Iterator[Any]:
    """Each with the same variables."""
    nobody = tmp_path_factory.mktemp("k") / "nobody.sock"
    with ExitStack() as stack:
        found = {
            "stock kernel": stack.enter_context(Kernel.stock()),
            "in a cluster": stack.enter_context(Kernel.here(str(storage_cluster.kernel_socket()))),
            "without a cluster": stack.enter_context(Kernel.here(str(nobody))),
        }
        for kernel in found.values():
            kernel.run(SETUP)
        yield found


@pytest.mark.parametrize("where", ["in a cluster", "without a cluster"])
@pytest.mark.parametrize("kind", list(CELLS))
def test_cpu_cell_added_time(
    benchmark: BenchmarkFixture, kernels: dict[str, Kernel], kind: str, where: str, smoke: bool
) -> None:
    tasks = {
        name: (lambda kernel=kernels[name]: kernel.reply_s(CELLS[kind])) for name in ("stock kernel", where)
    }  # fmt: skip
    rounds = alternate(tasks, rounds=1 if smoke else ROUNDS, warmup_rounds=0 if smoke else WARMUP_ROUNDS)
    publish(benchmark, rounds, where, f"{kind} CPU cell to its reply, {where}", ("stock kernel", TARGET))
