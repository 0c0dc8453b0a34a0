"""The runner itself: what both kernels are given before and with a cell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from golden_run import NotebookRun
from percent import read_percent

RunBoth = Callable[..., dict[str, NotebookRun]]

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(300)]

NOTEBOOK = """\
# What a cell is sent with, and what is seeded before the first one.
# gpu-cells: 1
# %% first
get_ipython().kernel.get_parent()["metadata"].get("cellId")
# %% other
get_ipython().kernel.get_parent()["metadata"].get("cellId")
# %% again from=first
# %% drawn
import random, numpy
random.random(), numpy.random.rand(), hash("text")
# %% drawn-there gpu
import random, numpy
random.random(), numpy.random.rand(), hash("text")
# %% fails
1 / 0
# %% file
open("note.txt").read()
"""


def shown(run: NotebookRun) -> dict[str, str]:
    return {
        cell.name: content["data"]["text/plain"]
        for cell in run.cells
        for kind, content in cell.messages
        if kind == "execute_result"
    }


def test_golden_run_gives_both_sides_the_same_start(tmp_path: Path, run_both: RunBoth) -> None:
    (tmp_path / "n.py").write_text(NOTEBOOK)
    notebook = read_percent(tmp_path / "n.py").notebook
    sides = run_both(notebook, plain=True, prepare=lambda folder: (folder / "note.txt").write_text("beside it"))
    told = {side: shown(run) for side, run in sides.items()}
    assert [told["here"][name] for name in ("first", "other", "again")] == ["'first'", "'other'", "'first'"]
    assert [cell.name for cell in sides["here"].cells if cell.label == "gpu"] == ["drawn-there"]
    for side, run in sides.items():
        assert run.failure == ""
        for name in ("drawn", "drawn-there", "file"):
            assert told[side][name] == told["here"][name], (side, name)
        assert [cell.name for cell in run.cells if cell.reply["status"] == "error"] == ["fails"]
    assert told["here"]["drawn"] != told["here"]["drawn-there"]
    assert told["here"]["file"] == "'beside it'"
    assert len({run.folder for run in sides.values()}) == 3
