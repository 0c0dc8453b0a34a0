from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import closure_accuracy
import nbformat
import pytest
from described_state import state_before

from looseleaf.recipe import CellRun, ExecutionLog
from looseleaf.recipe.name_facts import UNKNOWN_NAME

CELLS = ["import torch\nx = torch.zeros(2)", "y = x.cuda()", "del x"]


def truth(**changes: Any) -> dict[str, Any]:
    cell = {"id": "c1", "needs": ["x"], "needs_types": [], "packages": [], "packages_types": ["torch"],
            "defines": ["y"], "imports": [], "deletes": [],
            "gpu": True, "gpu_kind": "compute", "gpu_accept": [True]}  # fmt: skip
    return {"notebook": "nb.ipynb", "order": "document", "cells": [{**cell, **changes}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source, id=f"c{i}") for i, source in enumerate(CELLS)]
    nbformat.write(notebook, tmp_path / "nb.ipynb")
    (tmp_path / "truth").mkdir()
    return tmp_path / "truth"


def test_score_of_the_truth_is_full(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "nb.json").write_text(json.dumps(truth()))
    assert closure_accuracy.main([str(folder), "--wrong"]) == 0
    assert "targets: met" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "missed", "line"),
    [
        ({"needs": ["x", "z"]}, "needs recall", "nb c1: needs misses ['z']"),
        ({"needs": []}, "needs precision", "nb c1: needs has ['x'] too many"),
        ({"packages": ["jax", "os"]}, "packages recall", "nb c1: packages and types miss ['jax']"),
        ({"gpu": False, "gpu_kind": "none", "gpu_accept": [False]}, "labels", "nb c1: label GPU"),
    ],
)
def test_score_names_what_is_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], missed: str, line: str
) -> None:
    (folder / "nb.json").write_text(json.dumps(truth(**changes)))
    assert closure_accuracy.main([str(folder), "--wrong"]) == 1
    out = capsys.readouterr().out
    assert f"missed: {missed}" in out
    assert line in out


def test_live_objects_decide_where_the_text_cannot_tell(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = nbformat.v4.new_notebook()
    cells = ["from helpers import load, big", "x = load()", "x.go()", "print(big)"]
    notebook.cells = [nbformat.v4.new_code_cell(source, id=f"c{i}") for i, source in enumerate(cells)]
    nbformat.write(notebook, folder.parent / "nb.ipynb")
    cell = {"id": "c2", "needs": ["x"], "packages": [], "defines": [], "imports": [], "deletes": [], "gpu": True,
            "gpu_kind": "resident", "gpu_accept": [True]}  # fmt: skip
    (folder / "nb.json").write_text(json.dumps({"notebook": "nb.ipynb", "cells": [cell]}))
    states = folder.parent / "states"
    states.mkdir()
    assert closure_accuracy.main([str(folder), "--live", "--states", str(states)]) == 1
    assert "nobody described" in capsys.readouterr().err
    after = {"c1": {"x": {"type": "helpers.Thing", "gpu_bytes": 1 << 30}}}
    (states / "nb.json").write_text(json.dumps({"notebook": "nb.ipynb", "after": after}))
    assert closure_accuracy.main([str(folder), "--live", "--states", str(states), "--wrong"]) == 1
    out = capsys.readouterr().out
    assert "nb c2: label CPU" in out and "with live objects, nb" not in out
    assert "missed: labels\n" in out


def test_described_flag_and_memory_reach_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "nb.json"
    after = {"a": {"f": {"flag": False}, "m": {"type": "torch.Tensor", "gpu_bytes": 8}}, "b": {"f": {"flag": True}}}
    path.write_text(json.dumps({"notebook": "nb.ipynb", "after": after}))
    state, log = state_before(path), ExecutionLog()
    assert state("a", log) == {}
    log.record(CellRun(1, "a", "f = ask()\nm = make()\nn = 1", ok=True))
    found = state("b", log)
    assert (found["f"].flag, found["m"].device_bytes, found["n"] is UNKNOWN_NAME) == (False, 8, True)
    assert state("c", log)["f"].flag is True


def test_score_without_notebooks_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "other.json").write_text(json.dumps({**truth(), "notebook": "none.ipynb"}))
    assert closure_accuracy.main([str(folder)]) == 2
    assert "not at hand" in capsys.readouterr().err
