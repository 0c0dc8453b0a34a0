"""From Run to the first output of a prepared cell, by how far it was prepared: `prepare_up_to` of three clusters.

Their virtual GPUs take the time that real ones would to open and to copy (design §8). No completed worker stays: each
run is the first one of a worker that an edit has prepared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from alternating import alternate, publish
from kernels import Kernel, wait_gone
from pytest_benchmark.fixture import BenchmarkFixture

from looseleaf.local.cluster import LocalCluster

ROUNDS = 9
# A run that found its worker not prepared is not counted, and done again so often.
TRIES_MAX = 5
STAGES = ("host_ready", "context_ready", "device_ready")
# 256 MiB on the GPU: about 13 ms to copy beside the 0.3 s of a context.
SETUP = "import torch\nrounds = 0"
MAKE = "held = torch.ones(1 << 26, device='cuda')"
SOURCE = "rounds += 1\nprint(float(held[rounds]))"


@pytest.fixture(scope="module")
def kernels(
    tmp_path_factory: pytest.TempPathFactory, one_thread: None, smoke: bool
) -> Iterator[dict[str, Kernel]]:
    """A notebook for each stage, in a cluster of its own."""
    if smoke:
        pytest.skip("three clusters are more than a look at whether it works needs")
    with ExitStack() as stack:
        found = {}
        for stage in STAGES:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("LOOSELEAF_SCHEDULER_PREPARE_UP_TO", stage)
                cluster = stack.enter_context(LocalCluster.start(
                    data=tmp_path_factory.mktemp("c"), gpus=1, device="emulated", emulated_delays=True,
                    log_level="warning", keep_warm_s=0.0,
                ))  # fmt: skip
            found[stage] = stack.enter_context(Kernel.here(str(cluster.kernel_socket())))
            for text in (SETUP, MAKE):
                found[stage].run(text)
        yield found


def first_output_s(kernel: Kernel) -> float:
    """Of a run on a worker that was prepared for it."""
    for _ in range(TRIES_MAX):
        kernel.prepare(SOURCE)
        cell = kernel.run(SOURCE)
        wait_gone(cell.report["worker"])
        if cell.report["path"] == "prepared":
            assert cell.first_output_s is not None, "the cell printed nothing"
            return cell.first_output_s
    raise AssertionError(f"{TRIES_MAX} runs in turn were not prepared: {cell.report}")


@pytest.mark.cluster
def test_run_to_first_output_by_stage(benchmark: BenchmarkFixture, kernels: dict[str, Kernel], smoke: bool) -> None:
    tasks = {stage: lambda kernel=kernel: first_output_s(kernel) for stage, kernel in kernels.items()}
    rounds = alternate(tasks, rounds=ROUNDS, warmup_rounds=1)
    what = "Run to first output, prepared up to context_ready, delays on"
    publish(benchmark, rounds, "context_ready", what, ("host_ready", None), ("device_ready", None))
