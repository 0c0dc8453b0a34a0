"""Many notebooks at once on a real cluster of virtual hosts, with people who think; then the same run in the simulator.

`python bench/real_cluster.py [--notebooks N] [--hosts N] [--gpus N] [--cells N] [--files FILE...] [--json FILE]`

Each notebook has a kernel of its own, begins a few seconds after the one before, and thinks the same time before each
cell, drawn for it (median 10.7 s, paper §2.3). Those that are made here train a small network: their cells take the
time that was drawn for them (median 3 s), most of it waiting, since the machine's few cores stand for every GPU.
Virtual GPUs imitate the times of an attach. Told: starts within 1 s; GPU-seconds held (lease grant to release) beside
pinned (from a notebook's first GPU cell to its end); failures. Then the scheduler's run log is replayed under the
simulator's policy on as many hosts, with preparations, attaches and saves as they were measured, and GPU-seconds held
are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import machine
import nbformat
import nbformat.v4 as nbf

from looseleaf.batch.report import CellRecord, NotebookReport, report_of, totals_of
from looseleaf.batch.run import BatchResult, Outcome, run_notebook_async
from looseleaf.config import SchedulerConfig
from looseleaf.errors import InvalidArgument
from looseleaf.local.cluster import LocalCluster
from looseleaf.local.probe import get_pool
from looseleaf.sim.calibration import calibrated
from looseleaf.sim.ledger import GpuState
from looseleaf.sim.model import load_model
from looseleaf.sim.policies.looseleaf import LooseLeafPolicy
from looseleaf.sim.recorded import ReplayedCells, read_records, replayed_streams
from looseleaf.sim.results import INTERACTIVE_S
from looseleaf.sim.workload import Cell, lognormal
from looseleaf.sim.world import World

# The difference between the cluster's GPU-seconds and the simulator's that is aimed at.
REPLAY_TARGET: Final = 0.15
THINK_MEDIAN_S, THINK_SIGMA, THINK_MIN_S, THINK_MAX_S = 10.7, 0.5, 4.0, 25.0
RUN_MEDIAN_S, RUN_SIGMA, RUN_MAX_S = 3.0, 0.6, 10.0
ARRIVAL_S: Final = 3.0
TIMEOUT_S: Final = 300.0
# Of few cores threads that wait for each other would be what is measured.
ENV: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# What the simulator leases a GPU for.
HELD_STATES: Final = (GpuState.PREPARING, GpuState.RUNNING, GpuState.SAVING)
SETUP = """\
import time
import torch
import torch.nn.functional as F
torch.manual_seed({seed})
model = torch.nn.Sequential(torch.nn.Linear(64, {width}), torch.nn.ReLU(), torch.nn.Linear({width}, 10))
data, target = torch.randn(4096, 64), torch.randint(0, 10, (4096,))
losses = []

def train(run_s):
    end_s = time.monotonic() + run_s
    while time.monotonic() < end_s:
        batch = torch.randint(0, len(data), (64,), device=data.device)
        loss = F.cross_entropy(model(data[batch]), target[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        time.sleep(0.05)"""
TO_GPU = """\
model, data, target = model.cuda(), data.cuda(), target.cuda()
optimizer = torch.optim.Adam(model.parameters())
train({run_s:.2f})"""


@dataclass
class Played:
    """A notebook that was played. Times of one clock; `first_gpu_s`: Run of its first GPU cell, None if it had none."""

    name: str
    result: BatchResult
    first_gpu_s: float | None
    ended_s: float

    @property
    def pinned_s(self) -> float:
        """What it would have held its GPU for, from the first use to the end."""
        return self.ended_s - self.first_gpu_s if self.first_gpu_s is not None else 0.0


@dataclass
class Compared:
    """GPU-seconds held in the cluster and in the simulator's replay of its log."""

    held_s: float
    simulated_s: float
    cells: int
    simulated_cells: int
    simulated_within_1s: float

    @property
    def difference(self) -> float:
        """Of the simulator against the cluster, as a share."""
        return self.simulated_s / self.held_s - 1.0 if self.held_s else math.nan


@dataclass
class Figures:
    """What is told of a run."""

    notebooks: int
    hosts: int
    gpus_per_host: int
    wall_s: float
    failures: list[str]
    totals: dict[str, Any]
    starts_by_path: dict[str, int]
    held_by_scheduler_s: float
    pinned_s: float
    replay: Compared | None = None
    machine: dict[str, Any] = field(default_factory=dict)


def made_notebook(number: int, gpu_cells: int, seed: int) -> Any:
    """A notebook that trains: a cell for the CPU before each one for a GPU."""
    drawn = random.Random(f"notebook/{seed}/{number}")
    sources = [SETUP.format(seed=number, width=64 * drawn.randint(1, 16))]
    for index in range(gpu_cells):
        run_s = lognormal(drawn, RUN_MEDIAN_S, RUN_SIGMA, RUN_MAX_S)
        sources.append(TO_GPU.format(run_s=run_s) if index == 0 else f"train({run_s:.2f})")
        sources.append(f"print({index}, len(losses) > 0, sum(losses[-5:]) / 5)")
    cells = [nbf.new_code_cell(source, id=f"c{index}") for index, source in enumerate(sources)]
    return nbf.new_notebook(cells=cells)


def think_s(number: int, seed: int) -> float:
    """How long the person at this notebook thinks before each cell."""
    drawn = lognormal(random.Random(f"think/{seed}/{number}"), THINK_MEDIAN_S, THINK_SIGMA, THINK_MAX_S)
    return max(THINK_MIN_S, drawn)


async def play(nb: Any, number: int, options: argparse.Namespace, endpoint: str, folder: Path) -> Played:
    """One notebook from its kernel's start to its end, after those before it have begun."""
    await asyncio.sleep(number * ARRIVAL_S * options.pace)
    began_s: dict[str, float] = {}
    first: list[float] = []

    def cell_began(cell: Any, index: int) -> None:
        began_s[str(cell.get("id", index))] = time.monotonic()

    def cell_ended(record: CellRecord) -> None:
        print(f"{number:3} {record.id}: {record.label} {record.path} start {record.start_ms} ms", file=sys.stderr)
        if record.label == "gpu" and not first:
            first.append(began_s[record.id])

    result = await run_notebook_async(
        nb, endpoint, folder=folder, think_s=think_s(number, options.seed) * options.pace, timeout_s=TIMEOUT_S,
        priority="interactive", on_start=cell_began, on_record=cell_ended, title=f"notebook {number}",
    )
    return Played(f"notebook {number}", result, first[0] if first else None, time.monotonic())


def run_cluster(options: argparse.Namespace, folder: Path) -> tuple[Figures, list[Played]]:
    """Plays all notebooks on a cluster in `folder`, which then has the run log too."""
    given = [nbformat.read(path, as_version=4) for path in options.files or ()]
    notebooks = [
        copy.deepcopy(given[number % len(given)]) if given else made_notebook(number, options.cells, options.seed)
        for number in range(options.notebooks)
    ]
    with LocalCluster.start(
        data=folder / "d", hosts=options.hosts, gpus=options.gpus, device="emulated"
    ) as cluster:
        endpoints = [str(cluster.kernel_socket(host)) for host in cluster.record.hosts]

        async def play_all() -> tuple[list[Played], float]:
            played = await asyncio.gather(*(
                play(nb, number, options, endpoints[number % len(endpoints)], options.folder)
                for number, nb in enumerate(notebooks)
            ))
            return list(played), (await get_pool(cluster.address("scheduler"))).gpu_held_s

        began_s = time.monotonic()
        played, held_s = asyncio.run(play_all())
        wall_s = time.monotonic() - began_s
    cells = [record for each in played for record in each.result.records]
    paths = [record.path for record in cells if record.label == "gpu"]
    failures = [
        f"{each.name}: {each.result.failure}" for each in played if each.result.outcome is not Outcome.OK
    ]
    return Figures(
        options.notebooks, options.hosts, options.gpus, wall_s, failures, asdict(totals_of(cells)),
        {path: paths.count(path) for path in sorted(set(paths))}, held_s, sum(each.pinned_s for each in played),
    ), played


def write_report(played: Sequence[Played], path: Path) -> None:
    """A report as that of `looseleaf run --report`."""
    notebooks = [
        NotebookReport(
            each.name, "", each.result.outcome, each.result.failure, each.result.failed_cell, each.result.kernel_pid,
            each.result.start_s, each.result.wall_s, each.result.records,
        )
        for each in played
    ]
    path.write_text(json.dumps(report_of(notebooks, {})) + "\n")


class Once:
    """A recorded session's cells, once: the simulator's own streams begin again at their end."""

    def __init__(self, cells: ReplayedCells, number: int) -> None:
        self.gpus = cells.gpus
        self._cells = cells
        self._left = number

    def next(self, now_s: float) -> Cell:
        """See CellStream."""
        cell = self._cells.next(now_s)
        self._left -= 1
        if self._left >= 0:
            return cell
        return replace(cell, gap_s=1e12, edit_s=0.0, gpu=False, abandoned=False, guess=0.0)


def replay(log: Path, report: Path, hosts: int, gpus: int, held_s: float) -> Compared:
    """The log once more under the simulator's policy, on as many hosts from the beginning to the end."""
    recorded = read_records(log)
    model = load_model("w1").named("replayed")
    try:
        model = calibrated(model, report)
    except InvalidArgument as error:
        print(f"the model's own times are used: {error.message}", file=sys.stderr)
    span_s = max(records[-1].ended_s - records[0].run_s for records in recorded.values())
    # Time for waits that the cluster did not have, and for the gap before the first cell.
    hours = (2 * span_s + 600.0) / 3600
    # Hosts that are neither started nor ended, and what the service itself can do before Run.
    limits = {"hosts_min": hosts, "hosts_max": hosts, "prepare_stage_max": SchedulerConfig().prepare_up_to}
    model = model.changed(hours=hours, limits=limits)
    workload = replace(model.workload, warmup_hours=0.0, arrival_s=1.0)
    model = replace(model, hosts=replace(model.hosts, gpus=gpus), workload=workload)
    names = sorted(recorded)
    streams = replayed_streams(recorded, model.workload, model.mechanism, len(names), seed=1)
    once = [Once(stream, len(recorded[name])) for name, stream in zip(names, streams, strict=True)]
    world = World(model, once, 1, LooseLeafPolicy)
    world.run()
    seconds = world.ledger.gpu_seconds(world.end_s)
    within = sum(start_s <= INTERACTIVE_S for start_s in world.starts_s)
    return Compared(
        held_s, sum(seconds[state] for state in HELD_STATES), sum(map(len, recorded.values())), len(world.starts_s),
        within / max(1, len(world.starts_s)),
    )


def lines(figures: Figures) -> list[str]:
    """For people."""
    totals, replayed = figures.totals, figures.replay
    head = (
        f"{figures.notebooks} notebooks on {figures.hosts} hosts of {figures.gpus_per_host} virtual GPUs, "
        f"{figures.wall_s:.0f} s: {totals['gpu_cells']} GPU cells, {totals['cpu_cells']} CPU cells, "
        f"{len(figures.failures)} notebooks failed"
    )
    told = [head, *figures.failures]
    if totals["gpu_cells"]:
        paths = ", ".join(f"{number} {path}" for path, number in figures.starts_by_path.items())
        told.append(
            f"starts: {totals['starts_within_1s']:.1%} within 1 s, p50 {totals['start_ms_p50']:.0f} ms, p95 "
            f"{totals['start_ms_p95']:.0f} ms; {paths}"
        )
        told.append(
            f"GPU-seconds held {totals['gpu_s_held']:.1f} (the scheduler counts {figures.held_by_scheduler_s:.1f}), "
            f"resident without a cell {totals['gpu_s_resident']:.1f}; pinned {figures.pinned_s:.1f}: "
            f"{1 - totals['gpu_s_held'] / figures.pinned_s:.1%} less"
        )
    if replayed is not None:
        told.append(
            f"replayed: {replayed.simulated_s:.1f} GPU-seconds held for {replayed.simulated_cells} of {replayed.cells} "
            f"cells, {replayed.difference:+.1%} (target within {REPLAY_TARGET:.0%}); "
            f"{replayed.simulated_within_1s:.1%} of starts within 1 s"
        )
    return told


def main(argv: Sequence[str] | None = None) -> Figures:
    """Runs, replays, tells, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--notebooks", type=int, default=12)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=2, help="of each host")
    parser.add_argument("--cells", type=int, default=6, help="GPU cells of each notebook that is made")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=1.0, help="factor on the times that people take")
    parser.add_argument("--files", type=Path, nargs="*", help="notebooks to play in turn, instead of those made")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="where notebooks run")
    parser.add_argument("--keep", type=Path, help="folder for the run log and the report, as for `looseleaf simulate`")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        log, report = folder / "runs.jsonl", folder / "report.json"
        os.environ.update(ENV, LOOSELEAF_SCHEDULER_RUN_LOG=str(log))
        figures, played = run_cluster(options, folder)
        write_report(played, report)
        if log.exists():
            figures.replay = replay(log, report, options.hosts, options.gpus, figures.totals["gpu_s_held"])
        if options.keep is not None:
            shutil.copytree(folder, options.keep, ignore=shutil.ignore_patterns("d"), dirs_exist_ok=True)
    print("\n".join(lines(figures)))
    if options.json is not None:
        figures.machine = {**machine.facts(), "load_average_after": machine.load_average()}
        options.json.write_text(json.dumps(asdict(figures), indent=1) + "\n")
    return figures


if __name__ == "__main__":
    main()
