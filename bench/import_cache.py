"""How often a worker's imports are there within a second: the notebooks of a folder replayed as sessions of one host.

    python bench/import_cache.py DIR                      72 sessions over the notebooks in DIR
    python bench/import_cache.py DIR --sessions 24 --seeds 4 --plot cache.png --json cache.json

Every GPU cell gets a new worker, which is the worst case: warm workers have their imports. Recipes are those that the
text alone gives. The daemon's own rules decide (core/zygote_tree.py), in simulated time: forks, probes and builds take
their measured or stand-in times, and no computing power is fought over. Import times are measured here for packages
that are installed (`--no-measure`: none is); others take what the import-cache study measured for them, or a log-normal
time of their name's own with the median of the study's tail (0.15 s). No notebook runs.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import machine

from looseleaf.batch.files import read_notebook
from looseleaf.cli.explain import explain_notebook
from looseleaf.config import BASE_IMPORTS
from looseleaf.errors import LooseLeafError
from looseleaf.recipe import DeviceLabel
from looseleaf.services.worker_daemon.core import zygote_events as ev
from looseleaf.services.worker_daemon.core.zygote_facts import ProbeResult, Verdict
from looseleaf.services.worker_daemon.core.zygote_nodes import TreeKey, TreeLimits
from looseleaf.services.worker_daemon.core.zygote_tree import ImportCacheRules
from looseleaf.units import GIB, MIB
from looseleaf.worker.thread_counts import THREAD_VARIABLES

CAPS: Final = (8, 16, 32)
# The bound of an interactive start (design, targets).
READY_WITHIN_S: Final = 1.0
# Between two GPU cells of a session, and between the first and last session's begin.
THINK_S: Final = 40.0
ARRIVALS_S: Final = 1800.0
# Stand-ins: of the study's simulated tail; a submodule of what is there already takes a part of its package's time.
STUDY_S: Final = {
    "torch": 1.5, "numpy": 0.33, "pandas": 1.05, "sklearn": 2.1, "transformers": 2.3, "matplotlib": 0.95,
}  # fmt: skip
TAIL_MEDIAN_S: Final = 0.15
TAIL_SIGMA: Final = 1.0
SUBMODULE_SHARE: Final = 0.1
PRIVATE_BYTES_PER_S: Final = 80 * MIB
# A process of the worker's before any package: interpreter, shell, protocol.
BARE_START_S: Final = 1.0
FORK_S: Final = 0.03

_MEASURE = """
import importlib, json, sys, time
took = {}
for name in json.load(sys.stdin):
    began = time.perf_counter()
    try:
        importlib.import_module(name)
    except BaseException:
        continue
    took[name] = time.perf_counter() - began
print("\\n" + json.dumps(took))
"""


@dataclass(frozen=True)
class Outcome:
    """One policy over all seeds. `ready`: share of starts whose imports were there within `READY_WITHIN_S`."""

    policy: str
    starts: int
    mean_s: float
    median_s: float
    p95_s: float
    ready: float
    builds: int
    evictions: int


def recipes_of(folder: Path) -> dict[str, list[frozenset[str]]]:
    """Notebook → imports of each of its GPU cells but the standard library's; notebooks without one are left out.

    A part of a package brings the package along.
    """
    found = {}
    for path in sorted(folder.glob("*.ipynb")):
        try:
            cells = explain_notebook(read_notebook(path), path.parent)
        except LooseLeafError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            continue
        recipes = [cell.analysis.recipe for cell in cells]
        gpu = [_with_packages(recipe.imports) for recipe in recipes if recipe.label is DeviceLabel.GPU]
        if gpu:
            found[path.name] = gpu
    return found


def _with_packages(imports: Iterable[str]) -> frozenset[str]:
    names = [name for name in imports if name.partition(".")[0] not in sys.stdlib_module_names]
    return frozenset([*names, *(name.partition(".")[0] for name in names)])


def measured_times(names: Iterable[str]) -> dict[str, float]:
    """Seconds of each import that works here, packages before their parts, in one fresh process."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _MEASURE], input=json.dumps(sorted(names)), text=True, capture_output=True,
        check=False, env={**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")},
    )  # fmt: skip
    lines = done.stdout.strip().splitlines()
    return dict(json.loads(lines[-1])) if lines else {}


def stand_in_s(name: str) -> float:
    """The same for a name in every run."""
    package, _, rest = name.partition(".")
    own = STUDY_S.get(package) or random.Random(f"import {package}").lognormvariate(math.log(TAIL_MEDIAN_S), TAIL_SIGMA)
    return own * SUBMODULE_SHARE if rest else own


class Times:
    """Seconds of imports; what is not measured has its stand-in."""

    def __init__(self, measured: Mapping[str, float]) -> None:
        self.measured = dict(measured)

    def of(self, name: str) -> float:
        return self.measured[name] if name in self.measured else stand_in_s(name)

    def sum(self, names: Iterable[str]) -> float:
        return sum(self.of(name) for name in sorted(names))


@dataclass(frozen=True)
class Start:
    """A GPU cell: when it needs a worker, and with which imports."""

    at_s: float
    imports: frozenset[str]


def interleaved(recipes: Mapping[str, Sequence[frozenset[str]]], sessions: int, seed: int) -> list[Start]:
    """The starts of so many sessions, each over one notebook from first to last cell, in order of time."""
    rng = random.Random(seed)
    names = sorted(recipes)
    rng.shuffle(names)
    found = []
    for number in range(sessions):
        at_s = rng.uniform(0, ARRIVALS_S)
        for imports in recipes[names[number % len(names)]]:
            found.append(Start(at_s, imports))
            at_s += rng.expovariate(1 / THINK_S)
    return sorted(found, key=lambda start: start.at_s)


class Host:
    """The rules' actions in simulated time. `waits_s`: from each start to its worker's last import."""

    def __init__(self, base: Mapping[str, float], times: Times, limits: TreeLimits) -> None:
        self.rules = ImportCacheRules(limits)
        self.waits_s: list[float] = []
        self.builds = self.evictions = 0
        self._times = times
        self._later: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        self._key = TreeKey(1)
        self._tell(ev.KeyOpened(self._key), 0.0)
        self._tell(ev.BaseReady(self._key, "e", base, private_bytes=int(sum(base.values()) * PRIVATE_BYTES_PER_S)), 0.0)

    def play(self, starts: Sequence[Start]) -> None:
        """All of them, and what they set going."""
        for start in starts:
            self._until(start.at_s)
            self._count += 1
            self._tell(ev.Requested(self._count, self._key, start.imports), start.at_s)
        self._until(math.inf)

    def _until(self, now_s: float) -> None:
        while self._later and self._later[0][0] <= now_s:
            at_s, _, happen = heapq.heappop(self._later)
            happen(at_s)

    def _after(self, now_s: float, seconds: float, happen: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._later, (now_s + seconds, self._count, happen))

    def _tell(self, event: ev.Event, now_s: float) -> None:
        for action in self.rules.handle(event, now_s):
            self._carry_out(action, now_s)

    def _carry_out(self, action: ev.Action, now_s: float) -> None:
        if isinstance(action, ev.Fork):
            request, took_s = action.request, FORK_S + self.rules.nodes[action.node].depth * FORK_S / 4
            self.waits_s.append(took_s + self._times.sum(action.lacking))
            self._after(now_s, took_s, lambda at_s: self._tell(ev.Forked(request, took_s), at_s))
        elif isinstance(action, ev.Probe):
            node, key = action.node, action.key
            seconds = {name: self._times.of(name) for name in key.imports}
            size = int(sum(seconds.values()) * PRIVATE_BYTES_PER_S)
            result = ProbeResult(key, Verdict.CLEAN, seconds, size, frozenset(key.imports))
            self._after(now_s, FORK_S + sum(seconds.values()), lambda at_s: self._tell(ev.Probed(node, result), at_s))
        elif isinstance(action, ev.Build):
            self.builds += 1
            node = action.node
            seconds = {name: self._times.of(name) for name in action.imports}
            built = ev.Built(node, seconds)
            self._after(now_s, FORK_S + sum(seconds.values()), lambda at_s: self._tell(built, at_s))
        elif isinstance(action, ev.Kill):
            self.evictions += 1
        else:
            raise AssertionError(f"nothing fails here: {action}")


def outcome(policy: str, waits_s: Sequence[float], builds: int = 0, evictions: int = 0) -> Outcome:
    """Figures of one policy."""
    ordered = sorted(waits_s)
    p95_s = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    ready = sum(wait_s <= READY_WITHIN_S for wait_s in ordered) / len(ordered)
    return Outcome(
        policy, len(ordered), statistics.mean(ordered), statistics.median(ordered), p95_s, ready, builds, evictions
    )


def compare(
    recipes: Mapping[str, Sequence[frozenset[str]]], times: Times, sessions: int, seeds: int, bare_s: float
) -> list[Outcome]:
    """Fresh processes, the base alone, and trees of each cap, over the same starts."""
    all_starts = [interleaved(recipes, sessions, seed) for seed in range(seeds)]
    fresh = [bare_s + times.sum(start.imports) for starts in all_starts for start in starts]
    found = [outcome("fresh process", fresh)]
    base = {name: times.of(name) for name in BASE_IMPORTS}
    for cap in (0, *CAPS):
        waits_s: list[float] = []
        builds = evictions = 0
        for starts in all_starts:
            host = Host(base, times, TreeLimits(nodes_max=cap, pss_bytes_max=64 * GIB))
            host.play(starts)
            waits_s += host.waits_s
            builds, evictions = builds + host.builds, evictions + host.evictions
        found.append(outcome(f"tree, cap {cap}" if cap else "base only", waits_s, builds, evictions))
    return found


def as_text(outcomes: Sequence[Outcome]) -> str:
    """The table."""
    lines = [f"{'policy':<15} {'mean s':>7} {'median':>7} {'p95':>7} {'<= 1 s':>7} {'builds':>7} {'evicted':>7}"]
    lines += [
        f"{one.policy:<15} {one.mean_s:7.2f} {one.median_s:7.2f} {one.p95_s:7.2f} {100 * one.ready:6.1f}% "
        f"{one.builds:7} {one.evictions:7}"
        for one in outcomes
    ]
    return "\n".join(lines)


def draw(outcomes: Sequence[Outcome], path: Path, title: str) -> None:
    """A bar for each policy: share of starts with their imports within a second."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    bars = axes.barh([one.policy for one in outcomes], [100 * one.ready for one in outcomes])
    axes.bar_label(bars, [f"{100 * one.ready:.0f} %, p95 {one.p95_s:.2f} s" for one in outcomes], padding=3)
    axes.set(xlim=(0, 125), xlabel="starts whose imports are there within 1 s, %", title=title)
    axes.invert_yaxis()
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table. Returns 1 if the folder has no notebook with a GPU cell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sessions", type=int, default=72)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--no-measure", action="store_true", help="stand-in times for installed packages too")
    parser.add_argument("--plot", type=Path, help="PNG file to draw into")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args(argv)
    recipes = recipes_of(options.folder)
    if not recipes:
        print(f"{options.folder}: no notebook with a GPU cell", file=sys.stderr)
        return 1
    names = {name for cells in recipes.values() for cell in cells for name in cell} | set(BASE_IMPORTS)
    measured = {} if options.no_measure else measured_times(names)
    outcomes = compare(recipes, Times(measured), options.sessions, options.seeds, BARE_START_S)
    what = f"{len(recipes)} notebooks, {options.sessions} sessions, {options.seeds} seeds"
    print(f"{what}; {len(names)} imports, {len(measured)} of them measured here")
    print(as_text(outcomes))
    if options.json:
        facts: dict[str, Any] = {"machine": machine.facts(), "what": what, "measured_s": measured}
        options.json.write_text(json.dumps({**facts, "outcomes": [asdict(one) for one in outcomes]}, indent=1))
    if options.plot:
        draw(outcomes, options.plot, what)
    return 0


if __name__ == "__main__":
    sys.exit(main())
