from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import closure_accuracy
import nbformat
import pytest

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


def test_score_without_notebooks_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "other.json").write_text(json.dumps({**truth(), "notebook": "none.ipynb"}))
    assert closure_accuracy.main([str(folder)]) == 2
    assert "not at hand" in capsys.readouterr().err
