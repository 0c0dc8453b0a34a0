"""Example notebooks show the same through LooseLeaf as on an ordinary kernel with a (virtual) GPU of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat.v4 as nbf
import pytest
from golden_compare import compare
from tricky_cells import BASICS, LIBRARIES, Cell

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
GPU_CELLS = {"digits_cnn": 4, "exploratory": 3, "finetune_frozen": 4, "inference_pipeline": 3}

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_golden_example_shows_what_an_ordinary_kernel_shows(
    path: Path, run_reference: Callable[..., Any], run_here: Callable[..., Any]
) -> None:
    reference = run_reference(path)
    found, result = run_here(path)
    assert result.failure == ""
    differences = compare(reference, found)
    assert not differences, "\n".join(map(str, differences))
    labels = [record.label for record in result.records]
    assert labels.count("gpu") == GPU_CELLS[path.stem], list(zip([r.id for r in result.records], labels, strict=True))


@pytest.mark.parametrize("cells", [BASICS, LIBRARIES], ids=["basics", "libraries"])
def test_golden_tricky_cells_show_what_an_ordinary_kernel_shows(
    cells: list[Cell], run_reference: Callable[..., Any], run_here: Callable[..., Any]
) -> None:
    def notebook() -> Any:
        made = [nbf.new_code_cell(source, id=f"t{number:02}") for number, (_, source) in enumerate(cells)]
        for cell, (device, _) in zip(made, cells, strict=True):
            cell.metadata.update(tags=["raises-exception"], looseleaf={"device": device})
        return nbf.new_notebook(cells=made)

    reference = run_reference(notebook())
    found, result = run_here(notebook())
    assert result.failure == ""
    differences = compare(reference, found)
    assert not differences, "\n".join(map(str, differences))
