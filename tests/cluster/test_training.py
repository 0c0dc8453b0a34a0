"""Training that moves between processes is, bit for bit, training in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from looseleaf.local.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

SETUP = """
import copy, hashlib, torch
from torch import nn
torch.manual_seed(3)

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(500, 64)
        self.mix = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.BatchNorm1d(64), nn.GELU())
        self.out = nn.Linear(64, 500, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids):
        return self.out(self.mix(self.embed(ids)))

history = []
data = torch.randint(500, (10, 32))
rate = {"value": 1e-3}
"""
BUILD = """
model = Tied().to(device)
ema = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=rate["value"])
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)

def train(steps):
    model.train()
    for step in range(steps):
        ids = data[step % len(data)].to(device)
        loss = nn.functional.cross_entropy(model(ids), ids)
        optimizer.zero_grad(); loss.backward(); optimizer.step(); schedule.step()
        with torch.no_grad():
            for kept, new in zip(ema.parameters(), model.parameters()):
                kept.lerp_(new, 0.1)
        history.append(loss.item())
"""
TRAIN = "train(7)"
EDIT = """
rate["value"] = 5e-4
history.append("edited")
noise = torch.rand(3)
model.note = "edited in a CPU cell"
for group in optimizer.param_groups:
    group["lr"] = rate["value"]
"""
DIGEST = """
def digest():
    parts = [*model.state_dict().values(), *ema.state_dict().values(), noise]
    for state in optimizer.state.values():
        parts.extend(value for value in state.values() if torch.is_tensor(value))
    total = hashlib.sha256()
    for part in parts:
        total.update(part.detach().cpu().contiguous().numpy().tobytes())
    return {
        "weights": total.hexdigest(), "history": [repr(item) for item in history], "note": model.note,
        "tied": model.out.weight is model.embed.weight,
        "same": optimizer.param_groups[0]["params"][0] is model.embed.weight,
        "lr": optimizer.param_groups[0]["lr"], "steps": schedule.last_epoch, "drawn": torch.rand(1).item(),
    }
import json
print(json.dumps(digest()))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster that keeps no warm worker, so that each GPU cell runs in a process of its own."""
    with LocalCluster.start(
        data=tmp_path_factory.mktemp("cold") / "d", device="emulated", gpus=1, emulated_delays=False, keep_warm_s=0.0
    ) as found:
        yield found


def _in_one_process(cells: list[str]) -> dict[str, Any]:
    script = "from looseleaf import devices\ndevices.install('reference', kind='emulated', gpus=1)\ndevice = 'cuda'\n"
    result = subprocess.run(
        [sys.executable, "-c", script + "\n".join(cells)],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
        env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
    )
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_training_over_workers_equals_training_in_one_process(
    new_notebook: Callable[..., Any], tmp_path: Path
) -> None:
    notebook = new_notebook()
    notebook.ok(SETUP + "device = 'cuda' if torch.cuda.is_available() else 'cpu'\n")
    workers = [notebook.ok("%%gpu\n" + BUILD).report["worker"], notebook.ok("%%gpu\n" + TRAIN).report["worker"]]
    edited = notebook.ok("%%cpu\n" + EDIT)
    assert edited.report["path"] == "cpu"
    workers.append(notebook.ok("%%gpu\n" + TRAIN).report["worker"])
    assert len(set(workers)) == 3 and notebook.pid not in workers
    moved = json.loads(notebook.ok("%%gpu\n" + DIGEST).text)
    assert moved == _in_one_process([SETUP, BUILD, TRAIN, EDIT, TRAIN, DIGEST])
    assert moved["tied"] and moved["same"] and moved["note"] == "edited in a CPU cell"
