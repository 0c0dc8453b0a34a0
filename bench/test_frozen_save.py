"""A save after a step that touches only the head of a frozen model, beside a full `torch.save` from the same worker.

A notebook on a one-machine cluster: each round trains the head once, in a cell whose report tells how long its save
took to *staged*; then a cell writes the whole model and its optimizer with `torch.save`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alternating import alternate, publish
from kernels import Kernel
from pytest_benchmark.fixture import BenchmarkFixture

MODEL_MIB = 256
SMOKE_MIB = 8
ROUNDS = 7
SETUP = """
import os, time, torch
from torch import nn
torch.manual_seed(0)
layers = max(1, round({mib} / 4) - 1)
base = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(layers)]).requires_grad_(False)
head = nn.Linear(1024, 256)
inputs = torch.randn(8, 1024)
path = os.path.join({folder!r}, "full.pt")
"""
PLACE = """%%gpu
model = nn.Sequential(base, head).cuda()
optimizer = torch.optim.Adam(head.parameters())
"""
STEP = """%%gpu
loss = model(inputs.cuda()).square().mean()
optimizer.zero_grad(); loss.backward(); optimizer.step()
del loss
"""
FULL = """%%gpu
began_s = time.perf_counter()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
print(time.perf_counter() - began_s)
"""


@pytest.fixture
def notebook(storage_cluster: Any, one_thread: None) -> Iterator[Kernel]:
    with Kernel.here(str(storage_cluster.kernel_socket())) as kernel:
        yield kernel


def test_save_of_a_frozen_model_after_a_step(
    benchmark: BenchmarkFixture, notebook: Kernel, tmp_path: Path, smoke: bool
) -> None:
    mib = SMOKE_MIB if smoke else MODEL_MIB
    for source in (SETUP.format(mib=mib, folder=str(tmp_path)), PLACE, STEP):
        notebook.run(source)
    dirty: list[str] = []

    def step_s() -> float:
        report = notebook.run(STEP).report
        dirty.append(f"{report['dirty_regions']} of {report['total_regions']}")
        return float(report["save_ms"]) / 1000

    tasks = {"save": step_s, "torch.save": lambda: float(notebook.run(FULL).text)}
    rounds = alternate(tasks, rounds=1 if smoke else ROUNDS, warmup_rounds=0 if smoke else 1)
    what = f"save after a step of a frozen {mib} MiB model's head"
    publish(benchmark, rounds, "save", what, ("torch.save", None), dirty_regions=dirty)
