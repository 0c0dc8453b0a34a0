"""Short ways to build a session from cells and to ask for a recipe in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from looseleaf.recipe import Analysis, CellRun, ExecutionLog, NameFacts, analyze

MakeLog = Callable[..., ExecutionLog]
Ask = Callable[..., Analysis]


def make_log(*sources: str) -> ExecutionLog:
    """A log of cells that all ran well, in this order."""
    log = ExecutionLog()
    for sequence, source in enumerate(sources, start=1):
        log.record(CellRun(sequence, f"c{sequence}", source, ok=True))
    return log


@pytest.fixture
def session() -> MakeLog:
    return make_log


@pytest.fixture
def ask() -> Ask:
    """ask(cell, *earlier cells, headers=..., ...) -> Analysis."""

    def answer(
        source: str, *earlier: str, headers: Mapping[str, NameFacts] | None = None, **options: Any
    ) -> Analysis:
        return analyze(source, cell_id="cell", log=make_log(*earlier), headers=headers, version=0, **options)

    return answer
