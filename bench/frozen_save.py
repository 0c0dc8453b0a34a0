"""A save after a step that touches only the head of a frozen model, beside a full `torch.save` of the same model.

    python bench/frozen_save.py [--mib 256] [--rounds 5]

Runs a notebook on a one-machine cluster with one virtual GPU: each round trains the head once, then writes the whole
model and its optimizer with `torch.save` from the same worker. Prints one line a round and the medians.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

import nbformat

from looseleaf.batch.client import BatchClient
from looseleaf.local.cluster import LocalCluster

SETUP = """
import os, time, torch
from torch import nn
torch.manual_seed(0)
layers = max(1, round({mib} / 4) - 1)
base = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(layers)]).requires_grad_(False)
head = nn.Linear(1024, 256)
inputs = torch.randn(8, 1024)
"""
PLACE = """
model = nn.Sequential(base, head).cuda()
optimizer = torch.optim.Adam(head.parameters())
"""
STEP = """
loss = model(inputs.cuda()).square().mean()
optimizer.zero_grad(); loss.backward(); optimizer.step()
del loss
"""
FULL = """
began = time.monotonic()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path := os.path.join(FOLDER, "full.pt"))
full_ms, full_bytes = (time.monotonic() - began) * 1000, os.path.getsize(path)
os.unlink(path)
print(full_ms, full_bytes)
"""


def notebook(mib: int, rounds: int, folder: str) -> Any:
    """The cells: set-up, placing, then a step and a full save a round."""
    cells = [SETUP.format(mib=mib) + f"FOLDER = {folder!r}", "%%gpu\n" + PLACE]
    for _ in range(rounds + 1):
        cells += ["%%gpu\n" + STEP, "%%gpu\n" + FULL]
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of the frozen base")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        book = notebook(options.mib, options.rounds, folder)
        with LocalCluster.start(data=Path(folder) / "d", device="emulated", gpus=1, emulated_delays=False) as cluster:
            client = BatchClient(book, endpoint=str(cluster.kernel_socket("h0")), timeout=300)
            client.execute()
    cpus = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    print(f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}, {cpus}")
    steps = client.records[4::2]
    full_saves = [[float(part) for part in cell.outputs[0].text.split()] for cell in book.cells[5::2]]
    for number, (step, (full_ms, full_bytes)) in enumerate(zip(steps, full_saves, strict=True), 1):
        moved_mib, full_mib = step.bytes_moved / 2**20, full_bytes / 2**20
        print(
            f"round {number}: {step.dirty_regions}/{step.total_regions} regions dirty, {moved_mib:.2f} MiB moved, "
            f"{step.save_ms:.0f} ms to staged; full torch.save {full_mib:.1f} MiB, {full_ms:.0f} ms"
        )
    save_ms = statistics.median(step.save_ms or 0.0 for step in steps)
    full_ms = statistics.median(full_ms for full_ms, _size in full_saves)
    print(f"median: {save_ms:.0f} ms beside {full_ms:.0f} ms, 1/{full_ms / save_ms:.1f} of the time")


if __name__ == "__main__":
    main()
