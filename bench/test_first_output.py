"""From Run to the first output of a GPU cell, beside the same cell on a stock kernel that keeps its virtual GPU.

*prepared*: an edit came before, and the preparation had ended. *warm*: the session's own worker is still there.
*cold*: neither. In the clusters for the first and the last no completed worker stays. The stock kernel attached before
the measurement, as a notebook does that reserves its GPU; LooseLeaf attaches anew at each Run that is not warm.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from alternating import alternate, publish
from kernels import Cell, Kernel, wait_gone
from pytest_benchmark.fixture import BenchmarkFixture

from looseleaf.local.cluster import LocalCluster

ROUNDS = 9
# A run that took another way than the one that is measured is not counted, and done again so often.
TRIES_MAX = 5
SETUP = "import torch\nweights = torch.ones(1 << 20)\nrounds = 0"
SOURCE = "rounds += 1\nplaced = weights.cuda()\nprint(float(placed.sum()))"
KEPT_WARM_S = 300.0


@dataclass
class Place:
    """A notebook in a cluster, and a stock kernel, both with the same variables."""

    here: Kernel
    stock: Kernel
    delays: bool
    keeps_warm: bool


@pytest.fixture(scope="module", params=["gone-fast", "warm-fast", "gone-delays", "warm-delays"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, one_thread: None, smoke: bool
) -> Iterator[Place]:
    kept, pace = request.param.split("-")
    delays, keeps_warm = pace == "delays", kept == "warm"
    if smoke and (delays or keeps_warm):
        pytest.skip("one cluster is enough to see that it works")
    with ExitStack() as stack:
        if smoke:
            cluster = request.getfixturevalue("storage_cluster")
        else:
            cluster = stack.enter_context(LocalCluster.start(
                data=tmp_path_factory.mktemp("c"), gpus=1, device="emulated", emulated_delays=delays,
                log_level="warning", keep_warm_s=KEPT_WARM_S if keeps_warm else 0.0,
            ))  # fmt: skip
        here = stack.enter_context(Kernel.here(str(cluster.kernel_socket())))
        stock = stack.enter_context(Kernel.stock_with_device(delays=delays))
        for kernel in (here, stock):
            kernel.run(SETUP)
            kernel.run(SOURCE)
        yield Place(here, stock, delays, keeps_warm)


def first_output_s(place: Place, path: str) -> float:
    """Of a run that took that path."""
    for _ in range(TRIES_MAX):
        if path == "prepared":
            place.here.prepare(SOURCE)
        cell = place.here.run(SOURCE)
        worker = cell.report["worker"]
        if not place.keeps_warm:
            wait_gone(worker)
        if cell.report["path"] == path:
            return output_s(cell)
    raise AssertionError(f"{TRIES_MAX} runs in turn were not {path}: {cell.report}")


def output_s(cell: Cell) -> float:
    assert cell.first_output_s is not None, "the cell printed nothing"
    return cell.first_output_s


@pytest.mark.cluster
@pytest.mark.parametrize("path", ["prepared", "cold", "warm"])
def test_run_to_first_output(benchmark: BenchmarkFixture, place: Place, path: str, smoke: bool) -> None:
    if (path == "warm") != place.keeps_warm:
        pytest.skip("the other cluster's")
    tasks = {
        path: lambda: first_output_s(place, path),
        "stock kernel": lambda: output_s(place.stock.run(SOURCE)),
    }
    rounds = alternate(tasks, rounds=1 if smoke else ROUNDS, warmup_rounds=0 if smoke else 1)
    what = f"Run to first output, {path}, delays {'on' if place.delays else 'off'}"
    publish(benchmark, rounds, path, what, ("stock kernel", None))
