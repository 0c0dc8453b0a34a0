"""The tables of docs/simulate.md: all policies by workload and number of sessions, attach times, ablations, variants.

    python bench/simulation_table.py                       everything, hours of one core
    python bench/simulation_table.py --budget-s 600        what fits, the smallest first
    python bench/simulation_table.py --seeds 3 --only policies --sessions 24 --sessions 72

Prints Markdown as it goes: a table whose time is up ends with what it has, and says what is left out.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from looseleaf.sim.model import ABLATIONS, WORKLOADS, Model, load_model
from looseleaf.sim.policies import POLICIES
from looseleaf.sim.results import Result
from looseleaf.sim.runner import simulate
from looseleaf.sim.tables import COLUMNS, rows_of

SESSIONS = (24, 48, 72, 1000, 10_000)
VARIANT_SESSIONS = 72
ATTACH_S = (0.1, 0.3, 0.5, 0.8)
# At most so many sessions are simulated for the workload's whole time and under all seeds.
LARGE = 2000
LARGE_HOURS, LARGE_SEEDS = 2.0, 3


@dataclass(frozen=True)
class Row:
    """One simulation; `name`: what differs, in the first column."""

    name: str
    model: Model
    policy: str
    sessions: int


def policies(sessions: Sequence[int]) -> Iterator[Row]:
    """All policies on W1 and on the workload with the paper's duty."""
    for count in sessions:
        for workload in ("w1", "long"):
            for policy in POLICIES:
                yield Row(policy, load_model(workload), policy, count)


def attach(_sessions: Sequence[int]) -> Iterator[Row]:
    """Attach times in place of the model's."""
    for workload in ("w1", "long"):
        for attach_s in ATTACH_S:
            yield Row(f"attach {attach_s} s", load_model(workload).changed(attach_s=attach_s), "looseleaf",
                      VARIANT_SESSIONS)  # fmt: skip


def ablations(_sessions: Sequence[int]) -> Iterator[Row]:
    """One part left out at a time."""
    for part in ABLATIONS:
        yield Row(f"no {part}", load_model("w1").changed(without=frozenset({part})), "looseleaf", VARIANT_SESSIONS)


def variants(_sessions: Sequence[int]) -> Iterator[Row]:
    """The other workloads."""
    for workload in WORKLOADS:
        if workload not in ("w1", "long"):
            yield Row(workload, load_model(workload), "looseleaf", VARIANT_SESSIONS)


TABLES: dict[str, Callable[[Sequence[int]], Iterator[Row]]] = {
    "policies": policies, "attach": attach, "ablations": ablations, "variants": variants}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(TABLES), action="append")
    parser.add_argument("--sessions", type=int, action="append")
    parser.add_argument("--policy", choices=POLICIES, action="append")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no simulation after so long")
    options = parser.parse_args()
    ends_s = time.monotonic() + options.budget_s
    where = f"{platform.machine()} machine with {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{time.strftime('%Y-%m-%d', time.gmtime())}, {where}, {options.seeds} seeds\n")
    for name in options.only or TABLES:
        rows = TABLES[name](options.sessions or SESSIONS)
        wanted = [row for row in rows if row.policy in (options.policy or POLICIES)]
        show(name, wanted, options.seeds, ends_s)


def show(name: str, rows: Sequence[Row], seeds: int, ends_s: float) -> None:
    """Prints one table."""
    print(f"### {name}\n")
    print("| " + " | ".join(COLUMNS) + " |\n| " + " | ".join("---" for _ in COLUMNS) + " |", flush=True)
    left_out = []
    for row in rows:
        if time.monotonic() >= ends_s:
            left_out.append(f"{row.name} {row.model.name} {row.sessions}")
            continue
        cells = rows_of([run(row, seeds)])[0]
        print("| " + " | ".join([row.name, *cells[1:]]) + " |", flush=True)
    if left_out:
        print(f"\nLeft out for lack of time: {', '.join(left_out)}.")
    print(flush=True)


def run(row: Row, seeds: int) -> Result:
    """Under all seeds; many sessions for a shorter time and under fewer."""
    large = row.sessions > LARGE
    model = row.model
    if large:
        model = model.changed(
            hours=LARGE_HOURS, attach_s=model.mechanism.attach_s, without=model.mechanism.without)
    return simulate(model, row.policy, row.sessions, range(1, (min(seeds, LARGE_SEEDS) if large else seeds) + 1))


if __name__ == "__main__":
    main()
