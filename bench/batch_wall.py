"""Wall time of whole notebooks through LooseLeaf beside stock nbclient, think time 0 and delays off.

`python bench/batch_wall.py [--rounds N] [--json FILE]`. Each round runs every notebook once on the stock kernel (with
our virtual device in that process, where the notebook uses one) and once as `looseleaf run` does, on a cluster that
was started before; the two take turns at going first. A time goes from the kernel's start to its end. The target is a
ratio of at most 1.1 for notebooks that use no GPU (docs/batch.md). On a busy machine the kernels' CPU seconds tell more
than the times do. `gpu_cell_ms`: what a GPU cell takes longer than on the stock kernel, starts and saves included.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import nbformat.v4 as nbf
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from looseleaf.batch.client import OneSpec
from looseleaf.batch.report import CellRecord
from looseleaf.batch.run import Outcome, run_notebook_async
from looseleaf.local.cluster import LocalCluster

EXAMPLES = Path(__file__).parents[1] / "examples"
TIMEOUT_S = 300
DEVICE = "__import__('looseleaf.devices').devices.install('reference', 'emulated', 1)"
EXTRA = ("gpu_cell_ms", "cold_start_ms", "warm_start_ms", "save_ms")
# On a machine of few cores threads that wait for each other would be what is measured.
ENV = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass
class Case:
    """A notebook and its times by side: seconds from start to end, and seconds of CPU of its kernel process.

    `records`: its cells of every round through LooseLeaf.
    """

    name: str
    nb: Any
    gpu: bool
    wall_s: dict[str, list[float]] = field(default_factory=lambda: {"stock": [], "ours": []})
    cpu_s: dict[str, list[float]] = field(default_factory=lambda: {"stock": [], "ours": []})
    records: list[CellRecord] = field(default_factory=list)


def cpu_notebook() -> Any:
    """About sixty cells as data work has them: imports, tables, functions, fits, plots, and much that is small."""
    cells = [
        "import numpy as np\nimport pandas as pd\nimport matplotlib.pyplot as plt\nrng = np.random.default_rng(0)",
        "n = 20_000\ndf = pd.DataFrame({'g': rng.integers(0, 50, n), **{name: rng.normal(size=n) for name in 'xy'}})",
        "def zscore(s):\n    return (s - s.mean()) / s.std()",
        "df['z'] = zscore(df.x)\ndf.head()",
    ]
    for number in range(10):
        cells += [
            f"k{number} = {number} + 1\nk{number}",
            f"part{number} = df[df.g % 10 == {number}]\nlen(part{number})",
            f"agg{number} = part{number}.groupby('g').agg({{'x': 'mean', 'y': 'std'}})\nagg{number}.shape",
            f"xz = part{number}[['x', 'z']].to_numpy()\ncoef{number} = np.linalg.lstsq(xz, part{number}.y)[0]",
            f"log{number} = [f'{{a:.2f}}' for a in agg{number}.x[:5]]\nlog{number}[-1]",
        ]
    cells += [
        "fig, ax = plt.subplots()\nax.hist(df.x, bins=40)\nplt.show()",
        "coefs = np.stack([globals()[f'coef{n}'] for n in range(10)])\ncoefs.mean(0)",
        "eig = np.linalg.eigvalsh(np.cov(rng.normal(size=(300, 2000))))\neig[-1]",
        "summary = df.describe()\nsummary",
        "text = summary.to_csv()\nlen(text)",
        "'done'",
    ]
    return nbf.new_notebook(cells=[nbf.new_code_cell(source) for source in cells])


def small_notebook() -> Any:
    """Sixty cells that do next to nothing: what is left is the kernel's start and each cell's overhead."""
    return nbf.new_notebook(cells=[nbf.new_code_cell(f"x{n} = {n}\nx{n} + 1") for n in range(60)])


def gpu_notebook() -> Any:
    """A tensor of 4 MB and twenty GPU cells in a row that change it."""
    cells = ["import torch\nx = torch.zeros(1_000_000)", "x = x.cuda()", *["x += 1"] * 19, "x.sum().item()"]
    return nbf.new_notebook(cells=[nbf.new_code_cell(source) for source in cells])


async def run_stock(nb: Any, *, gpu: bool) -> None:
    """The notebook on the stock kernel, as nbclient starts it."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        lines = [f"--IPKernelApp.exec_lines={DEVICE}"] if gpu else []
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}",
                "--HistoryManager.hist_file=:memory:", *lines]  # fmt: skip
        env = {"PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": ""}
        spec = {"argv": argv, "display_name": "stock", "language": "python", "env": env}
        manager = AsyncKernelManager(
            kernel_name="stock", kernel_spec_manager=OneSpec(spec), transport="ipc",
            connection_file=f"{folder}/kernel.json",
        )  # fmt: skip
        where = {"metadata": {"path": str(EXAMPLES)}}
        client = NotebookClient(nb, km=manager, kernel_name="stock", timeout=TIMEOUT_S, resources=where)
        client.owns_km = True
        await client.async_execute()


async def run_ours(nb: Any, endpoint: str, records: list[CellRecord]) -> None:
    """The notebook as `looseleaf run` runs it on a cluster that it has started."""
    result = await run_notebook_async(nb, endpoint, folder=EXAMPLES, timeout_s=TIMEOUT_S, embedded=True)
    assert result.outcome is Outcome.OK, result.failure
    records.extend(result.records)


def kernels_cpu_s() -> float:
    """CPU seconds of all kernels that have ended; workers are children of their daemon."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def run_rounds(cases: list[Case], endpoint: str, rounds: int, say: Callable[[str], None]) -> None:
    """Fills in the times; of several rounds one more comes first, which warms the file cache and is left out."""
    for number in range(0 if rounds > 1 else 1, rounds + 1):
        for case in cases:
            records: list[CellRecord] = []
            for side in ("stock", "ours") if number % 2 else ("ours", "stock"):
                nb = copy.deepcopy(case.nb)
                began_s, cpu_s = time.perf_counter(), kernels_cpu_s()
                await (run_stock(nb, gpu=case.gpu) if side == "stock" else run_ours(nb, endpoint, records))
                wall_s, cpu_s = time.perf_counter() - began_s, kernels_cpu_s() - cpu_s
                say(f"round {number} {case.name} {side}: {wall_s:.2f} s, {cpu_s:.2f} s of CPU")
                if number:
                    case.wall_s[side].append(wall_s)
                    case.cpu_s[side].append(cpu_s)
            if number:
                case.records.extend(records)


def figures(case: Case) -> dict[str, Any]:
    """The case's medians and ratios; of GPU cells medians, and what each took longer than on the stock kernel."""
    found: dict[str, Any] = {"notebook": case.name}
    for kind, times in (("wall", case.wall_s), ("cpu", case.cpu_s)):
        medians = {side: statistics.median(values) for side, values in times.items()}
        found.update({f"{side}_{kind}_s": value for side, value in medians.items()})
        found[f"{kind}_ratio"] = medians["ours"] / medians["stock"]
    ratios = [ours / stock for ours, stock in zip(case.wall_s["ours"], case.wall_s["stock"], strict=True)]
    found["wall_ratio_spread"] = [min(ratios), max(ratios)]
    gpu = [cell for cell in case.records if cell.label == "gpu" and cell.start_ms]
    if gpu:
        per_round = len(gpu) / len(ratios)
        found["gpu_cell_ms"] = (found["ours_wall_s"] - found["stock_wall_s"]) * 1000 / per_round
        found["save_ms"] = statistics.median(cell.save_ms or 0.0 for cell in gpu)
    for path in ("cold", "warm"):
        starts = [cell.start_ms for cell in gpu if cell.path == path and cell.start_ms is not None]
        if starts:
            found[f"{path}_start_ms"] = statistics.median(starts)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    os.environ.update(ENV)
    cases = [
        Case("60 small CPU cells", small_notebook(), gpu=False),
        Case("60 CPU cells of data work", cpu_notebook(), gpu=False),
        Case("20 small GPU cells", gpu_notebook(), gpu=True),
        Case("digits_cnn, 4 GPU cells", nbformat.read(EXAMPLES / "digits_cnn.ipynb", as_version=4), gpu=True),
    ]
    cases = [case for case in cases if options.only in case.name]
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        with LocalCluster.start(data=Path(folder), gpus=1, device="emulated", emulated_delays=False) as cluster:
            cluster_s = time.perf_counter() - began_s
            endpoint = str(cluster.kernel_socket())
            asyncio.run(run_rounds(cases, endpoint, options.rounds, lambda line: print(line, file=sys.stderr)))
    print(f"cluster start {cluster_s:.2f} s (not in the times below); {options.rounds} rounds, medians, "
          f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")  # fmt: skip
    rows = [figures(case) for case in cases]
    for row in rows:
        low, high = row["wall_ratio_spread"]
        extra = ", ".join(f"{key} {row[key]:.0f}" for key in EXTRA if key in row)
        print(f"{row['notebook']:<28} wall {row['stock_wall_s']:6.2f} -> {row['ours_wall_s']:6.2f} s, ratio "
              f"{row['wall_ratio']:.2f} ({low:.2f} to {high:.2f}); kernel's CPU {row['stock_cpu_s']:5.2f} -> "
              f"{row['ours_cpu_s']:5.2f} s, ratio {row['cpu_ratio']:.2f}  {extra}")  # fmt: skip
    if options.json:
        report = {
            "cluster_start_s": cluster_s, "rounds": options.rounds, "cores": os.cpu_count(), "load": os.getloadavg(),
            "python": platform.python_version(), "platform": platform.platform(), "rows": rows,
            "cells": [{"notebook": case.name, **asdict(cell)} for case in cases for cell in case.records],
        }  # fmt: skip
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
