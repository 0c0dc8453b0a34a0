from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest

from looseleaf.cli.main import main

CELLS = [
    "import torch\nimport helper",
    "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
    "x = [1, 2]\ny = helper.load(x[0])",
    "m = torch.zeros(3).to(device)",
    "print(m, y)",
    "for i in",
]


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    nb = nbformat.v4.new_notebook()
    nb.cells = [nbformat.v4.new_code_cell(source, id=f"id{i}") for i, source in enumerate(CELLS, start=1)]
    nb.cells.insert(1, nbformat.v4.new_markdown_cell("# text", id="md"))
    nb.cells[3].metadata["looseleaf"] = {"device": "gpu"}
    path = tmp_path / "nb.ipynb"
    nbformat.write(nb, path)
    (tmp_path / "helper.py").write_text("def load(x): return x\n")
    return path


def explained(notebook: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> Any:
    assert main(["explain", str(notebook), "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)["cells"]


def test_explain_json_has_a_recipe_per_code_cell(notebook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = explained(notebook, capsys)
    assert [c["gpu"] for c in cells] == [False, False, True, True, True, False]
    assert [c["index"] for c in cells] == [1, 2, 3, 4, 5, 6]
    assert [c["id"] for c in cells] == [f"id{i}" for i in range(1, 7)]
    assert cells[0]["files"] == ["helper.py"]
    assert (cells[0]["packages"], cells[0]["imports"]) == (["helper", "torch"], ["helper", "torch"])
    assert cells[2]["reason"] == "The cell's settings ask for the GPU."
    assert cells[2]["defines"] == ["x", "y"]
    assert cells[4]["needs"] == ["m", "y"]
    assert (cells[4]["packages"], cells[4]["packages_types"]) == ([], ["helper", "torch"])
    assert not cells[5]["parsed"]


def test_explain_table_names_label_reason_and_names(notebook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(notebook)]) == 0
    out = capsys.readouterr().out
    assert "`torch.zeros(3).to()` moves data to the GPU." in out
    assert "3 of 6 cells would borrow a GPU." in out


@pytest.mark.parametrize("wanted", ["id5", "5"])
def test_explain_one_cell_by_id_or_number(notebook: Path, capsys: pytest.CaptureFixture[str], wanted: str) -> None:
    assert main(["explain", str(notebook), "--cell", wanted]) == 0
    assert "2 of 4 live: m, y" in capsys.readouterr().out


def test_explain_unknown_cell_is_refused(notebook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(notebook), "--cell", "nope"]) == 3
    assert "CELL_UNKNOWN" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "no json", "{}", '{"cells": 3, "nbformat": 4, "nbformat_minor": 5}'])
def test_explain_bad_file_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    path = tmp_path / "bad.ipynb"
    path.write_text(text)
    assert main(["explain", str(path)]) == 2
    assert capsys.readouterr().err.startswith("looseleaf: NOTEBOOK_")


def test_explain_missing_file_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tmp_path / "none.ipynb")]) == 2
    assert "there is no notebook" in capsys.readouterr().err


def test_explain_notebook_without_code_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), path)
    assert main(["explain", str(path)]) == 0
    assert "no code cells" in capsys.readouterr().out
