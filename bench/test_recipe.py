"""The analysis of each cell of real notebooks, beside Python's own parse of the same texts.

Notebooks lie in `shared/corpus` beside the checkout, or under LOOSELEAF_CORPUS; without them examples/ stands in. Each
cell is analysed as the next of its session, with its facts not yet known, as at Run; the log is made outside the clock.
Of a few tries of one cell the shortest counts: a neighbour's turn on the processor is no property of the cell.
"""

from __future__ import annotations

import ast
import os
import warnings
from pathlib import Path

import pytest
from alternating import Rounds, Target, alternate, publish, spread, timed_s
from pytest_benchmark.fixture import BenchmarkFixture

from looseleaf.batch.files import read_notebook
from looseleaf.recipe import CellRun, ExecutionLog, derive_recipe
from looseleaf.recipe.analyze import forget_facts

ROOT = Path(__file__).parents[1]
CORPUS = Path(os.environ.get("LOOSELEAF_CORPUS", ROOT.parent / "shared" / "corpus"))
SMOKE_NOTEBOOKS = 2
ROUNDS = 2
TRIES = 3
ANALYSIS, WORST, PARSE = "analysis", "analysis, 99th percentile", "ast.parse"
TARGETS = {
    ANALYSIS: Target("time_s", 1e-3, "<= 1 ms"),
    WORST: Target("time_s", 20e-3, "<= 20 ms"),
}


def cells_of(notebooks: list[Path]) -> list[list[str]]:
    """The code cells of each notebook."""
    return [[c.source for c in read_notebook(path).cells if c.cell_type == "code"] for path in notebooks]


def analyse(notebooks: list[list[str]]) -> list[float]:
    """How long each cell takes, in seconds."""
    found = []
    for cells in notebooks:
        log = ExecutionLog()
        for sequence, source in enumerate(cells, start=1):
            found.append(min(timed_s(_analyse, source, log) for _ in range(TRIES)))
            log.record(CellRun(sequence, "", source, ok=True))
    return found


def _analyse(source: str, log: ExecutionLog) -> None:
    forget_facts()
    derive_recipe(source, cell_id="", log=log, headers=None, version=0)


def parse(notebooks: list[list[str]]) -> list[float]:
    """How long Python takes to parse each cell, or to refuse it, in seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            min(timed_s(_parse, source) for _ in range(TRIES)) for cells in notebooks for source in cells
        ]  # fmt: skip


def _parse(source: str) -> None:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return


@pytest.fixture(scope="module")
def rounds(smoke: bool) -> Rounds:
    notebooks = sorted(CORPUS.glob("*.ipynb")) or sorted((ROOT / "examples").glob("*.ipynb"))
    cells = cells_of(notebooks[:SMOKE_NOTEBOOKS] if smoke else notebooks)
    tasks = {ANALYSIS: lambda: analyse(cells), PARSE: lambda: parse(cells)}
    found = alternate(tasks, rounds=1 if smoke else ROUNDS, warmup_rounds=0)
    for values in found.series[ANALYSIS]:
        ordered = sorted(values)
        found.add(WORST, ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))])
    return found


@pytest.mark.parametrize("kind", list(TARGETS))
def test_recipe_of_a_cell(benchmark: BenchmarkFixture, rounds: Rounds, kind: str) -> None:
    facts = {"cells": len(rounds.series[ANALYSIS][0]), "spread_s": spread(rounds.values_s(ANALYSIS))}
    publish(benchmark, rounds, kind, f"a cell's {kind}", (PARSE, TARGETS[kind]), **facts)
