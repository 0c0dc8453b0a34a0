"""Notebooks show the same through LooseLeaf as on an ordinary kernel with a (virtual) GPU of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import nbformat.v4 as nbf
import pytest
from golden_compare import compare
from golden_report import Result
from golden_run import NotebookRun
from golden_total import EXAMPLES, NOTEBOOKS, PROGRAMS, left_to_soak
from percent import read_percent
from tricky_cells import BASICS, LIBRARIES, Cell

# How many of the cells are to be labelled gpu.
EXAMPLES_GPU_CELLS = {"digits_cnn": 4, "exploratory": 3, "finetune_frozen": 4, "inference_pipeline": 3}

OWN = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.soak] if path.stem in left_to_soak(PROGRAMS) else [])
    for path in NOTEBOOKS
]

RunBoth = Callable[..., dict[str, NotebookRun]]
Take = Callable[[Result], None]

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(400)]


def check(group: str, name: str, sides: dict[str, NotebookRun], report: Take, limited: str = "") -> None:
    """Every side went through, and LooseLeaf told the same as each other side."""
    assert {side: run.failure for side, run in sides.items() if run.failure} == {}
    problems = []
    for side in sorted(set(sides) - {"here"}):
        result = Result(group, name, side, compare(sides[side], sides["here"]), limited)
        report(result)
        problems += result.problems()
    assert not problems, "\n" + "\n".join(problems)


def check_gpu_cells(run: NotebookRun, expected: int) -> None:
    """As many cells ran as GPU cells as the notebook says."""
    found = [cell.name for cell in run.cells if cell.label == "gpu"]
    assert len(found) == expected, f"{len(found)} cells were labelled gpu, not {expected}: {', '.join(found)}"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_golden_example_shows_what_an_ordinary_kernel_shows(path: Path, run_both: RunBoth, report: Take) -> None:
    sides = run_both(nbformat.read(str(path), as_version=4), plain=False)
    check("examples", path.stem, sides, report)
    check_gpu_cells(sides["here"], EXAMPLES_GPU_CELLS[path.stem])


@pytest.mark.parametrize("path", OWN)
def test_golden_notebook_shows_what_an_ordinary_kernel_shows(path: Path, run_both: RunBoth, report: Take) -> None:
    source = read_percent(path)
    sides = run_both(source.notebook, plain=source.gpu_cells == 0)
    check("own notebooks", path.stem, sides, report)
    may_fail = {cell.id for cell in source.notebook.cells if "raises-exception" in cell.metadata.get("tags", [])}
    failed = {cell.name for cell in sides["reference"].cells if cell.reply["status"] != "ok"}
    assert failed == may_fail, "cells that fail on an ordinary kernel, and cells marked `raises`"
    check_gpu_cells(sides["here"], source.gpu_cells)
    again = [cell.name for cell in sides["here"].cells if cell.run_again]
    assert len(again) == source.run_again, f"run again: {', '.join(again)}"


@pytest.mark.parametrize("cells", [BASICS, LIBRARIES], ids=["basics", "libraries"])
def test_golden_tricky_cells_show_what_an_ordinary_kernel_shows(
    cells: list[Cell], request: pytest.FixtureRequest, run_both: RunBoth, report: Take
) -> None:
    made = [nbf.new_code_cell(source, id=f"t{number:02}") for number, (_, source) in enumerate(cells)]
    for cell, (device, _) in zip(made, cells, strict=True):
        cell.metadata.update(looseleaf={"device": device})
    sides = run_both(nbf.new_notebook(cells=made), plain=False)
    check("tricky cells", request.node.callspec.id, sides, report)
