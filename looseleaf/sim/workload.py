"""What people do: one stream of cells a session, the same for every policy under one seed.

A session's cells come from a generator of its own, and each cell takes the same number of draws from it whatever the
settings: policies and variants are compared on the same people. What the machinery draws comes from other generators.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol

from looseleaf.sim.model import Mechanism, Workload
from looseleaf.units import GIB


@dataclass(slots=True)
class Cell:
    """One cell as a person will edit and run it.

    `gap_s`: from the end of the cell before to Run; `edit_s`: edit start to Run, within the gap. `abandoned`: in the
    gap before this CPU cell a GPU cell is edited and not run. `prepare_s`: what a whole preparation takes. `guess`:
    uniform in [0, 1), decides whether a prediction is right.
    """

    gap_s: float
    edit_s: float
    gpu: bool
    run_s: float
    abandoned: bool
    closure_bytes: int
    gpu_count: int
    prepare_s: float
    guess: float


class CellStream(Protocol):
    """A session's cells, one after the other for ever. `gpus`: the most that one of its cells takes."""

    gpus: int

    def next(self, now_s: float) -> Cell:
        """The cell that follows the one that ended at `now_s`."""
        ...


class DrawnCells:
    """Cells of a session that is drawn from a workload's distributions."""

    def __init__(self, workload: Workload, mechanism: Mechanism, seed: int, index: int) -> None:
        self._workload = workload
        self._random = drawn = random.Random(f"workload/{seed}/{index}")
        self._gpu_share = drawn.betavariate(workload.gpu_share_alpha, workload.gpu_share_beta)
        size, bound = drawn.random(), drawn.random()
        two, eight = workload.two_gpu_share, workload.eight_gpu_share
        self.gpus = 8 if size < eight else 2 if size < eight + two else 1
        self._bytes_min = int(workload.type_bound_gib * GIB) if bound < workload.type_bound_share else 0
        # Looked up once: this is the simulator's innermost loop.
        self._prepare = (mechanism.prepare_median_s, mechanism.prepare_sigma, mechanism.prepare_max_s)
        self._gpu_run = (workload.gpu_run_median_s, workload.gpu_run_sigma, workload.gpu_run_max_s)
        self._cpu_run = (workload.cpu_run_median_s, workload.cpu_run_sigma, workload.cpu_run_max_s)
        self._closure = (workload.closure_median_gib * GIB, workload.closure_sigma, workload.closure_max_gib * GIB)
        self._edit = (workload.edit_median_s, workload.edit_sigma, math.inf)

    def next(self, now_s: float) -> Cell:
        """See CellStream."""
        workload, uniform, normal = self._workload, self._random.random, self._random.gauss
        gap_s = workload.gap_min_s - math.log(1.0 - uniform()) * workload.gap_extra_s
        pauses, pause = uniform() < workload.pause_share, -math.log(1.0 - uniform())
        if pauses:
            gap_s += pause * workload.pause_s
        if workload.day_swing > 1.0:
            gap_s *= slowness(workload, now_s)
        edit_s = min(from_normal(normal(), self._edit), gap_s)
        gpu = uniform() < self._gpu_share
        abandoned = uniform() < workload.abandoned_share
        run, closure, prepare, guess = normal(), normal(), normal(), uniform()
        run_s = from_normal(run, self._gpu_run if gpu else self._cpu_run)
        closure_bytes = max(int(from_normal(closure, self._closure)), self._bytes_min)
        prepare_s = from_normal(prepare, self._prepare)
        return Cell(gap_s, edit_s, gpu, run_s, abandoned and not gpu, closure_bytes, self.gpus, prepare_s, guess)


def from_normal(normal: float, shape: tuple[float, float, float]) -> float:
    """The value that belongs to one of the standard normal distribution: lognormal by its median, sigma and maximum."""
    median, sigma, most = shape
    return min(median * math.exp(sigma * normal), most)


def lognormal(drawn: random.Random, median: float, sigma: float, most: float) -> float:
    """A lognormal value by its median, at most `most`."""
    return from_normal(drawn.gauss(), (median, sigma, most))


def slowness(workload: Workload, now_s: float) -> float:
    """How much longer gaps are at this time of day: 1 in the busiest hour, `day_swing` in the quietest, at midnight."""
    phase = math.cos(2 * math.pi * now_s / (workload.day_hours * 3600))
    return float(workload.day_swing ** ((1 + phase) / 2))
