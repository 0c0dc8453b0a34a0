"""Example notebooks show the same through LooseLeaf as on an ordinary kernel with a (virtual) GPU of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat.v4 as nbf
import pytest
from golden_compare import compare

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


TRICKY = [
    "import sys, torch\nfrom torch import nn\ntorch.manual_seed(5)\ndef broken(t):\n    u = t + 1\n    return u[99]",
    "x = torch.arange(4.0, device='cuda')\nx",
    "_",
    "print('a'); print('b', file=sys.stderr); print('c')\nx * 2",
    "broken(x)",
    "%%time\nx += 1\nprint(x)",
    "loss = (x ** 2).mean()\nloss",
    "loss.item(), float(loss), f'{loss:.3f}', x.shape, x.device, len(x)",
    "print(x)\nloss",
    "torch.rand(2), torch.rand(2, device='cuda')",
    "torch.rand(2)",
    "%%capture text\nprint('hidden', x.sum())",
    "text.stdout",
    "raise SystemExit",
    "class P:\n    def __init__(self, t): self.t = t\n    def __repr__(self): return f'P({self.t})'\np = P(x)\np",
    "p.t is x, p",
    "y = x.view(2, 2)\ny[0, 0] = 7\nx",
    "del y\n'y' in globals()",
    "for i in range(3):\n    print(i, end=' ', flush=True)\n    sys.stderr.write('e')",
    "import os\nos.environ['GOLDEN'] = '1'\nx.cpu().numpy()",
    "x.add_(1)\nos.environ['GOLDEN'], os.getcwd() == os.path.abspath('.')",
]


def test_golden_tricky_cells_show_what_an_ordinary_kernel_shows(
    run_reference: Callable[..., Any], run_here: Callable[..., Any]
) -> None:
    def notebook() -> Any:
        cells = [nbf.new_code_cell(source, id=f"t{number:02}") for number, source in enumerate(TRICKY)]
        for cell in cells:
            cell.metadata["tags"] = ["raises-exception"]
        return nbf.new_notebook(cells=cells)

    reference = run_reference(notebook())
    found, result = run_here(notebook())
    assert result.failure == ""
    differences = compare(reference, found)
    assert not differences, "\n".join(map(str, differences))
