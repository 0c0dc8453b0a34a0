"""Notebooks as text: what one shows, how many of its cells need a GPU, and its cells.

    # Gradient accumulation over four small batches.
    # gpu-cells: 3
    # %% setup
    import torch
    # %% train gpu
    ...
    # %% again from=train raises

`# %% ID FLAGS` starts a code cell. Flags: `gpu` or `cpu` ask for a device as the cell's settings do, `raises` lets it
fail, `from=ID` gives it the text of an earlier cell, as if that were run again. Lines of magics are written as in a
notebook, so that such a file need not be Python. A head line `# run-again: N` says how many cells are taken for CPU
cells at first and taken back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat.v4 as nbf

_CELL = re.compile(r"# %% (?P<id>[A-Za-z0-9_-]+)(?P<flags>( \S+)*)\s*")
_HEAD = re.compile(r"# (?P<key>gpu-cells|run-again): (?P<value>\d+)")


@dataclass(frozen=True)
class PercentNotebook:
    """A notebook; `gpu_cells`: how many of its runs end on a GPU; `run_again`: how many begin without one."""

    title: str
    gpu_cells: int
    notebook: Any
    run_again: int = 0


def read_percent(path: Path) -> PercentNotebook:
    """The notebook of a file; ValueError says which line is wrong."""
    head: dict[str, str] = {}
    title: list[str] = []
    cells: list[Any] = []
    texts: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("# %%"):
            found = _CELL.fullmatch(line)
            if found is None or found["id"] in texts:
                raise ValueError(f"{path.name}:{number}: not the start of a cell with an id of its own: {line!r}")
            cell, lines = _new_cell(found["id"], found["flags"].split(), texts, f"{path.name}:{number}")
            cells.append(cell)
            texts[found["id"]] = lines
        elif lines is not None:
            lines.append(line)
        elif (key := _HEAD.fullmatch(line)) is not None:
            head[key["key"]] = key["value"]
        elif line:
            title.append(line.removeprefix("# "))
    if "gpu-cells" not in head or not title:
        raise ValueError(f"{path.name}: the file begins with what it shows and a line `# gpu-cells: N`")
    for cell in cells:
        cell.source = "\n".join(texts[cell.id]).strip("\n")
    made = nbf.new_notebook(cells=cells)
    return PercentNotebook(" ".join(title), int(head["gpu-cells"]), made, int(head.get("run-again", 0)))


def _new_cell(cell_id: str, flags: list[str], texts: dict[str, list[str]], place: str) -> tuple[Any, list[str]]:
    """A cell, and the list that its text's lines go into."""
    cell = nbf.new_code_cell(id=cell_id)
    lines: list[str] = []
    for flag in flags:
        if flag in ("gpu", "cpu"):
            cell.metadata["looseleaf"] = {"device": flag}
        elif flag == "raises":
            cell.metadata["tags"] = ["raises-exception"]
        elif flag.startswith("from=") and flag[5:] in texts:
            lines = list(texts[flag[5:]])
            cell.metadata["golden_cell_id"] = flag[5:]
        else:
            raise ValueError(f"{place}: {flag!r} is no flag; there are gpu, cpu, raises and from=ID of an earlier cell")
    return cell, lines
