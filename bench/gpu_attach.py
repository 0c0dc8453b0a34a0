"""Parts of `make gpu-check` about processes: what attaching to a GPU costs, and a session on real workers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLOSURES_GIB = (0.1, 1, 4, 28)
# How soon after a kill the memory must be free again.
FREE_LIMIT_S = 30.0
POLL_S = 0.01

# Prints one JSON object a line; the parent measures what it cannot: its own death.
ATTACH = """
import json, sys, time
def timed(name, work):
    began = time.perf_counter(); result = work()
    print(json.dumps({name: round(time.perf_counter() - began, 4)}), flush=True)
    return result
torch = timed("import torch s", lambda: __import__("torch"))
timed("context s", lambda: (torch.cuda.init(), torch.zeros(1, device="cuda"), torch.cuda.synchronize()))
free, total = torch.cuda.mem_get_info()
print(json.dumps({"free after context": free}), flush=True)
a = torch.randn(512, 512, device="cuda")
timed("first cuBLAS call s", lambda: ((a @ a).sum().item()))
image, kernel = torch.randn(1, 3, 64, 64, device="cuda"), torch.randn(8, 3, 3, 3, device="cuda")
timed("first cuDNN call s", lambda: torch.nn.functional.conv2d(image, kernel).sum().item())
for gib in json.loads(sys.argv[1]):
    size = int(gib * 2**30)
    if size + 2**30 > torch.cuda.mem_get_info()[0]:
        print(json.dumps({f"H2D {gib} GiB": "does not fit"}), flush=True)
        continue
    # One pinned buffer, again and again: what a closure in host memory comes through.
    step = min(size, 2**28)
    pinned = torch.empty(step, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(size, dtype=torch.uint8, device="cuda")
    def copy():
        for at in range(0, size, step):
            part = target[at : at + step]
            part.copy_(pinned[: len(part)], non_blocking=True)
        torch.cuda.synchronize()
    copy()
    timed(f"H2D {gib} GiB s", copy)
    del target
held = torch.empty(4 * 2**30, dtype=torch.uint8, device="cuda")
print(json.dumps({"ready": True}), flush=True)
time.sleep(600)
"""


def attach(device: str) -> dict[str, Any]:
    """Context, first calls of the libraries, copies of closures, footprint, and the time from a kill to free memory."""
    import torch

    torch.cuda.synchronize()
    before, _ = torch.cuda.mem_get_info()
    found: dict[str, Any] = {}
    command = [sys.executable, "-c", ATTACH, json.dumps(CLOSURES_GIB)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            for text in child.stdout:
                found |= json.loads(text)
                if "ready" in found:
                    break
        finally:
            child.kill()
            began_s = time.monotonic()
    assert found.pop("ready", False), f"the child ended early: {found}"
    found["context MiB"] = round((before - found.pop("free after context")) / 2**20)
    while torch.cuda.mem_get_info()[0] < before - 2**28:
        assert time.monotonic() - began_s < FREE_LIMIT_S, "a killed process's memory is not free"
        time.sleep(POLL_S)
    found["kill to free s"] = round(time.monotonic() - began_s, 3)
    return found


# The second cell's process has nothing but what the store gave it.
MOVING_CELLS = (
    "import os, torch\nw = torch.arange(1 << 22, dtype=torch.float64, device='cuda')\nfirst = os.getpid()",
    "w += 1\nprint('moved', os.getpid() != first, float(w[0]), float(w[-1]), w.device)",
)


def session_moves(device: str) -> dict[str, Any]:
    """32 MiB of a session made by one worker process, changed by a second one: no worker is kept after its cell."""
    cells = [
        {"cell_type": "code", "id": f"c{number}", "source": text, "metadata": {}, "outputs": [],
         "execution_count": None}
        for number, text in enumerate(MOVING_CELLS)
    ]  # fmt: skip
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    kind = "emulated" if device == "cpu" else device
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        source = Path(folder) / "moving.ipynb"
        source.write_text(json.dumps(notebook))
        began_s = time.monotonic()
        made = _run_notebook(source, folder, "--device", kind, keep_warm_s=0)
        taken_s = time.monotonic() - began_s
        texts = ["".join(output.get("text", "")) for cell in made["cells"] for output in cell["outputs"]]
    assert "moved True 1.0 4194304.0 cuda:0\n" in texts, texts
    return {"moved": "yes", "with start and stop of a cluster s": round(taken_s, 1)}


def session_on_workers(device: str) -> dict[str, Any]:
    """A notebook by `looseleaf run`: GPU cells on leased workers, its state moving between them and the kernel."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        made = _run_notebook(ROOT / "examples/digits_cnn.ipynb", folder)
        return {"cells": sum(cell["cell_type"] == "code" for cell in made["cells"])}


def _run_notebook(source: Path, folder: str, *options: str, keep_warm_s: float | None = None) -> dict[str, Any]:
    """The notebook as `looseleaf run` made it, on a cluster of its own. Raises if a cell failed."""
    target = Path(folder) / "out.ipynb"
    command = [sys.executable, "-m", "looseleaf.cli.main", "run", str(source), "-o", str(target), *options]
    environment = dict(os.environ, LOOSELEAF_DATA=f"{folder}/data")
    if keep_warm_s is not None:
        environment["LOOSELEAF_DAEMON_KEEP_WARM_S"] = str(keep_warm_s)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, (done.stdout + done.stderr)[-400:]
    made: dict[str, Any] = json.loads(target.read_text())
    return made


def device_tests(device: str) -> dict[str, Any]:
    """`pytest -m gpu`: the virtual devices' conformance tests on real CUDA among them."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "--no-header"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    summary = (done.stdout.strip().splitlines() or ["no output"])[-1]
    failed = re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE)
    assert done.returncode == 0, "\n".join(failed)[:400] or summary
    return {"pytest": summary.strip("= ")}
