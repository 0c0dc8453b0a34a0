"""The tables of docs/simulate.md: policies by workload and number of sessions, attach times, ablations, variants.

    python bench/simulation_table.py                                        everything, hours of one core
    python bench/simulation_table.py --only policies --jobs 2 --plot out/plots
    python bench/simulation_table.py --only attach --seeds 3 --budget-s 600

Each simulation's result is kept in out/simulation/, by its parameters and its code, so that a run that was broken off
goes on where it was, and one whose code is the same costs nothing. Prints Markdown as it goes; a table whose time is up
says how many seeds each row has, and what is left out.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import machine

from looseleaf.sim.kept import KeptResults, code_of
from looseleaf.sim.model import ABLATIONS, WORKLOADS, Model, load_model
from looseleaf.sim.plots import write_plots
from looseleaf.sim.policies import POLICIES
from looseleaf.sim.results import Result, SeedResult
from looseleaf.sim.runner import drawn_streams, simulate_seed
from looseleaf.sim.tables import COLUMNS, OTHER_COLUMNS, against, late_rows, markdown, rows_of

ROOT = Path(__file__).parents[1]
SESSIONS = (24, 48, 72, 1000, 10_000)
VARIANT_SESSIONS = 72
DUTIES = ("w1", "long")
ATTACH_S = (0.1, 0.3, 0.5, 0.8)
STAGES = ("host_ready", "context_ready", "device_ready")
# Headroom over the demand's peak, and how far back that peak is looked for: the simulator's usual pair and around it.
FRONTIER = (
    (0.0, 300.0), (0.1, 300.0), (0.15, 300.0), (0.2, 300.0), (0.25, 300.0), (0.35, 300.0), (0.2, 120.0), (0.2, 600.0))
# At most so many sessions are simulated for the workload's whole time and under all seeds.
LARGE = 2000
LARGE_HOURS, LARGE_SEEDS = 2.0, 3


@dataclass(frozen=True)
class Row:
    """One simulation under each seed; `name`: what differs, in the first column."""

    name: str
    model: Model
    policy: str
    sessions: int


def policies(sessions: Sequence[int]) -> Iterator[Row]:
    """All policies on W1 and on the workload with the paper's duty; looseleaf last, to be compared with the others."""
    for count in sessions:
        for workload in DUTIES:
            for policy in sorted(POLICIES, key=lambda name: name == "looseleaf"):
                yield Row(policy, load_model(workload), policy, count)


def attach(_sessions: Sequence[int]) -> Iterator[Row]:
    """Attach times in place of the model's."""
    for workload in DUTIES:
        for attach_s in ATTACH_S:
            yield _ours(f"attach {attach_s} s", load_model(workload).changed(attach_s=attach_s))


def ablations(_sessions: Sequence[int]) -> Iterator[Row]:
    """Nothing left out, then one part at a time."""
    yield _ours("all", load_model("w1"))
    for part in ABLATIONS:
        yield _ours(f"no {part}", load_model("w1").changed(without=frozenset({part})))


def stages(_sessions: Sequence[int]) -> Iterator[Row]:
    """How far preparations go before Run at most."""
    for workload in DUTIES:
        for stage in STAGES:
            yield _ours(f"up to {stage}", load_model(workload).changed(limits={"prepare_stage_max": stage}))


def variants(_sessions: Sequence[int]) -> Iterator[Row]:
    """The other workloads."""
    for workload in WORKLOADS:
        if workload not in DUTIES:
            yield _ours(workload, load_model(workload))


def frontier(sessions: Sequence[int]) -> Iterator[Row]:
    """How many hosts there are beyond the demand: cost against starts within a second."""
    for count in sessions:
        for share, peak_s in FRONTIER:
            model = load_model("w1").changed(limits={"headroom_share": share, "demand_peak_s": peak_s})
            yield Row(f"{100 * share:.0f} % over the peak of {peak_s:.0f} s", model, "looseleaf", count)


def _ours(name: str, model: Model) -> Row:
    return Row(name, model, "looseleaf", VARIANT_SESSIONS)


@dataclass(frozen=True)
class Table:
    """Rows by the sessions that are asked for, and those that are usual."""

    rows: Callable[[Sequence[int]], Iterator[Row]]
    sessions: tuple[int, ...] = (VARIANT_SESSIONS,)


TABLES: dict[str, Table] = {
    "policies": Table(policies, SESSIONS),
    "attach": Table(attach),
    "ablations": Table(ablations),
    "stages": Table(stages),
    "variants": Table(variants),
    "frontier": Table(frontier, (24, 72)),
}


class Runs:
    """Runs what is not kept yet, on `jobs` processes, and begins none once the time is up."""

    def __init__(self, kept: KeptResults, seeds: int, jobs: int, budget_s: float) -> None:
        self._kept, self._seeds, self._jobs = kept, seeds, jobs
        self._ends_s = time.monotonic() + budget_s

    def result(self, row: Row) -> Result | None:
        """The row under as many seeds as there was time for; None if there was none."""
        model, seeds = _scaled(row, self._seeds)
        done = {seed: self._kept.get(model, row.policy, row.sessions, seed) for seed in seeds}
        missing = [seed for seed, result in done.items() if result is None]
        for begin in range(0, len(missing), self._jobs):
            if time.monotonic() >= self._ends_s:
                break
            for result in self._run(model, row, missing[begin:begin + self._jobs]):
                self._kept.put(model, row.policy, row.sessions, result)
                done[result.seed] = result
        found = tuple(result for result in done.values() if result is not None)
        return Result(row.policy, row.model.name, row.sessions, found) if found else None

    def _run(self, model: Model, row: Row, seeds: Sequence[int]) -> list[SeedResult]:
        work = [(model, row.policy, row.sessions, seed, drawn_streams) for seed in seeds]
        if self._jobs == 1:
            return [simulate_seed(*arguments) for arguments in work]
        with ProcessPoolExecutor(self._jobs) as pool:
            return list(pool.map(simulate_seed, *zip(*work, strict=True)))


def _scaled(row: Row, seeds: int) -> tuple[Model, range]:
    """Many sessions for a shorter time and under fewer seeds."""
    if row.sessions <= LARGE:
        return row.model, range(1, seeds + 1)
    return row.model.changed(hours=LARGE_HOURS), range(1, min(seeds, LARGE_SEEDS) + 1)


def show(name: str, rows: Sequence[Row], runs: Runs) -> list[Result]:
    """Prints one table, and why cells started late."""
    columns = ["what", "seeds", *COLUMNS[1:], *(OTHER_COLUMNS if name == "policies" else ())]
    print(f"### {name}\n\n" + "\n".join(markdown(columns, [])), flush=True)
    results: list[Result] = []
    late, left_out = [], []
    for row in rows:
        result = runs.result(row)
        if result is None:
            left_out.append(f"{row.name} {row.model.name} {row.sessions}")
            continue
        results.append(result)
        compared = against(result, results) if name == "policies" else []
        print("| " + " | ".join([row.name, str(len(result.seeds)), *rows_of([result])[0][1:], *compared]) + " |",
              flush=True)  # fmt: skip
        late += [[row.name, *told[1:]] for told in late_rows([result])]
    if left_out:
        print(f"\nLeft out for lack of time: {', '.join(left_out)}.")
    if late:
        print("\nOf all GPU cells, started later than 1 s, by the part that took longest:\n")
        print("\n".join(markdown(["what", "workload", "sessions", "later than 1 s"], late)))
    print(flush=True)
    return results


def where() -> str:
    """One line on the machine and the code."""
    found = machine.facts()
    return (
        f"{found['date_utc']}, {found['cpus']} CPUs ({found['cpu_model']}), Python {found['python']}, commit "
        f"{found['commit'] or 'unknown'}, code {code_of('looseleaf')}"
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(TABLES), action="append")
    parser.add_argument("--sessions", type=int, action="append", help="instead of a table's usual numbers")
    parser.add_argument("--policy", choices=POLICIES, action="append")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="processes, at most one a core")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no simulation after so long")
    parser.add_argument("--keep", type=Path, default=ROOT / "out" / "simulation", help="folder of single results")
    parser.add_argument("--plot", type=Path, help="folder for pictures of the policies, one folder a workload")
    options = parser.parse_args()
    jobs = max(1, min(options.jobs, os.cpu_count() or 1))
    runs = Runs(KeptResults(options.keep), options.seeds, jobs, options.budget_s)
    print(f"{where()}\n")
    for name in options.only or TABLES:
        rows = TABLES[name].rows(options.sessions or TABLES[name].sessions)
        results = show(name, [row for row in rows if row.policy in (options.policy or POLICIES)], runs)
        if options.plot is not None and name == "policies":
            for workload in DUTIES:
                shown = [result for result in results if result.workload == workload]
                print("\n".join(str(path) for path in write_plots(shown, options.plot / workload)) if shown else "")


if __name__ == "__main__":
    main()
