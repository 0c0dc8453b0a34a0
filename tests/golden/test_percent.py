from __future__ import annotations

from pathlib import Path

import pytest
from percent import read_percent

GOOD = "# What it\n# shows.\n# gpu-cells: 2\n# %% a\nx = 1\n\n# %% b gpu raises\nx / 0\n# %% c from=a\n"


def test_notebook_is_read_with_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "n.py"
    path.write_text(GOOD)
    found = read_percent(path)
    assert (found.title, found.gpu_cells, found.run_again) == ("What it shows.", 2, 0)
    path.write_text("# run-again: 3\n" + GOOD)
    assert read_percent(path).run_again == 3
    assert [(cell.id, cell.source) for cell in found.notebook.cells] == [("a", "x = 1"), ("b", "x / 0"), ("c", "x = 1")]
    assert found.notebook.cells[1].metadata == {"looseleaf": {"device": "gpu"}, "tags": ["raises-exception"]}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("# %% b gpu raises", "# %% b fast"), ("# %% b gpu raises", "# %% a"), ("from=a", "from=z"), ("# %% a", "# %%")],
)
def test_wrong_line_is_named(tmp_path: Path, wrong: str, right: str) -> None:
    path = tmp_path / "n.py"
    path.write_text(GOOD.replace(wrong, right))
    with pytest.raises(ValueError, match=r"n\.py:\d+: "):
        read_percent(path)


def test_file_without_a_head_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "n.py"
    path.write_text(GOOD.replace("# gpu-cells: 2\n", ""))
    with pytest.raises(ValueError, match="gpu-cells: N"):
        read_percent(path)
