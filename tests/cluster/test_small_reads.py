"""Small values that live on a GPU are read in the kernel, without one; any other use of them is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

MAKE = """%%gpu
import torch
loss = torch.tensor(1.5, device="cuda")
losses = [loss, loss * 2]
rows = torch.arange(3, device="cuda")
metric = {"loss": loss, "rows": rows}
large = torch.zeros(5_000_000, device="cuda")
"""
READS = {
    "loss.item()": "1.5", "float(loss)": "1.5", "f'{loss:.2f}'": "'1.50'", "loss.cpu()": "tensor(1.5000)",
    "loss.detach().cpu().numpy().tolist()": "1.5", "rows.tolist()": "[0, 1, 2]",
    "rows.cpu().numpy()": "array([0, 1, 2])", "loss": "tensor(1.5000, device='cuda:0')",
    "rows.shape[0]": "3",
}  # fmt: skip


def test_small_device_values_are_read_in_the_kernel(notebook: Any) -> None:
    notebook.ok(MAKE)
    told = {cell: notebook.ok(cell) for cell in READS}
    assert {cell: (outcome.value, outcome.report["path"]) for cell, outcome in told.items()} == {
        cell: (shown, "cpu") for cell, shown in READS.items()
    }
    printed = notebook.ok("print(metric)")
    assert "tensor([0, 1, 2], device='cuda:0')" in printed.text and printed.report["path"] == "cpu"


def test_large_device_values_are_refused_by_name_in_a_cell_for_the_cpu(notebook: Any) -> None:
    notebook.ok(MAKE)
    refused = notebook.run("%%cpu\nlarge.sum()")
    assert refused.ename == "CUDA_IN_CPU_CELL" and "large" in refused.error
    assert notebook.ok("%who").text.split()[:2] == ["large", "loss"]
    assert "5000000" in notebook.ok("large?\nlocals()").value
