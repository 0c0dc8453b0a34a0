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
    "rows.shape[0]": "3", "metric['rows'].tolist()": "[0, 1, 2]", "str(rows.device)": "'cuda:0'", "len(losses)": "2",
    "[v.item() for v in losses]": "[1.5, 3.0]", "losses[-1]": "tensor(3., device='cuda:0')",
    "[v.cpu().numpy().tolist() for v in losses]": "[1.5, 3.0]", "'{:.1f}'.format(losses[0])": "'1.5'",
    "{k: v.device.type for k, v in metric.items()}": "{'loss': 'cuda', 'rows': 'cuda'}",
}  # fmt: skip


def test_small_device_values_are_read_in_the_kernel(notebook: Any) -> None:
    notebook.ok(MAKE)
    told = {cell: notebook.ok(cell) for cell in READS}
    assert {cell: (outcome.value, outcome.report["path"]) for cell, outcome in told.items()} == {
        cell: (shown, "cpu") for cell, shown in READS.items()
    }
    printed = notebook.ok("print(metric)")
    assert "tensor([0, 1, 2], device='cuda:0')" in printed.text and printed.report["path"] == "cpu"
    # What a loop that only reads leaves bound is the same object on a worker.
    looped = notebook.ok("for item in losses:\n    print(item.item())")
    assert (looped.text.split(), looped.report["path"]) == (["1.5", "3.0"], "cpu")
    there = notebook.ok("%%gpu\n(item is losses[1], (item + 1).item(), str(item.device), (rows + 1).tolist())")
    assert there.value == "(True, 4.0, 'cuda:0', [1, 2, 3])"


def test_notebook_answers_for_the_pool_without_a_gpu(notebook: Any) -> None:
    listed = "GPU 0: LooseLeaf Virtual GPU (UUID: GPU-00000000-0000-4c4c-0000-000000000000)"
    asked = notebook.ok("!nvidia-smi -L")
    assert (asked.text.strip(), asked.report["path"]) == (listed, "cpu")
    notebook.ok("import subprocess, torch")
    called = notebook.ok("subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True).stdout.strip()")
    assert (called.value, called.report["path"]) == (repr(listed), "cpu")
    there = notebook.ok("%%gpu\n!nvidia-smi -L\nprint(torch.cuda.mem_get_info()[1])")
    here = notebook.ok("torch.cuda.mem_get_info()[1]")
    assert there.text.split("\n")[0].strip() == listed
    assert (there.text.split()[-1], here.report["path"]) == (here.value, "cpu")


def test_large_device_values_are_refused_by_name_in_a_cell_for_the_cpu(notebook: Any) -> None:
    notebook.ok(MAKE)
    refused = notebook.run("%%cpu\nlarge.sum()")
    assert refused.ename == "CUDA_IN_CPU_CELL" and "large" in refused.error
    assert notebook.ok("%who").text.split()[:2] == ["large", "loss"]
    assert "5000000" in notebook.ok("large?\nlocals()").value
