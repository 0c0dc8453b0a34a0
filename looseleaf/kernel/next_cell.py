"""Which cells a person is likely to run next: from the notebook's file, and from the order in which cells ran before.

For front ends that tell nothing of edits. Pure but for `read_notebook`.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from looseleaf.kernel_config import PRIVATE_TAGS

NOTEBOOK_BYTES_MAX: Final = 8 << 20
# Looked at behind the cell that has ended, until one of them needs a GPU.
CELLS_AHEAD: Final = 3
CELLS_REMEMBERED_MAX: Final = 1000
# An id that a cell of a file can have (nbformat 4.5). Front ends that know none send others, such as addresses.
_FILE_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class NextCell:
    """`device_override`: the device that its metadata asks for, "gpu", "cpu" or empty."""

    cell_id: str
    source: str
    device_override: str = ""


class RunOrder:
    """Which cell ran after which, the newest time."""

    def __init__(self) -> None:
        self._after: OrderedDict[str, NextCell] = OrderedDict()
        self._last = ""

    def ran(self, cell: NextCell) -> None:
        """The newest cell has ended; one without an id cannot be found again."""
        if self._last and cell.cell_id and cell.cell_id != self._last:
            self._after[self._last] = cell
            self._after.move_to_end(self._last)
            while len(self._after) > CELLS_REMEMBERED_MAX:
                self._after.popitem(last=False)
        self._last = cell.cell_id

    def after(self, cell_id: str) -> list[NextCell]:
        """The cell that followed this one, if one did."""
        found = self._after.get(cell_id)
        return [found] if found is not None else []


def read_notebook(path: str) -> dict[str, Any] | None:
    """The notebook as it was saved last; None if there is none that can be read."""
    try:
        file = Path(path)
        if not path.endswith(".ipynb") or file.stat().st_size > NOTEBOOK_BYTES_MAX:
            return None
        notebook = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return notebook if isinstance(notebook, dict) else None


def cells_behind(
    notebook: Mapping[str, Any], ended: NextCell, private_tags: Collection[str] = PRIVATE_TAGS
) -> list[NextCell]:
    """At most CELLS_AHEAD code cells behind the one that has ended, without empty and private ones.

    It is found by its id; by its text, if no other cell has the same, where it has none or the file knows no ids: one
    with another id is of another notebook, or not in the file yet. Else there are none.
    """
    cells = notebook.get("cells")
    if not isinstance(cells, list) or _ours(notebook).get("private") is True:
        return []
    code = [cell for cell in cells if isinstance(cell, dict) and cell.get("cell_type") == "code"]
    if _FILE_ID.fullmatch(ended.cell_id) and any(cell.get("id") for cell in code):
        places = [place for place, cell in enumerate(code) if cell.get("id") == ended.cell_id]
    else:
        places = [place for place, cell in enumerate(code) if _source(cell).strip() == ended.source.strip()]
    if len(places) != 1:
        return []
    found: list[NextCell] = []
    for cell in code[places[0] + 1 :]:
        if len(found) == CELLS_AHEAD:
            break
        if _source(cell).strip() and not _private(cell, private_tags):
            device = _ours(cell).get("device")
            found.append(NextCell(str(cell.get("id", "")), _source(cell), device if device in ("gpu", "cpu") else ""))
    return found


def _source(cell: Mapping[str, Any]) -> str:
    source = cell.get("source", "")
    if isinstance(source, Sequence) and not isinstance(source, str):
        source = "".join(line for line in source if isinstance(line, str))
    return source if isinstance(source, str) else ""


def _ours(part: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = part.get("metadata")
    found = metadata.get("looseleaf") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def _private(cell: Mapping[str, Any], private_tags: Collection[str]) -> bool:
    tags = cell["metadata"].get("tags") if isinstance(cell.get("metadata"), dict) else None
    return _ours(cell).get("private") is True or (
        isinstance(tags, list) and any(tag in private_tags for tag in tags)
    )
