"""What a person is told when a session fell back to an older version, because a host was lost (design §7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

CELLS_TOLD_MAX: Final = 8
LINE_CHARS_MAX: Final = 60


def lost_text(version: int, lost: int, cells: Sequence[str]) -> str:
    """`cells`: texts of the cells whose changes are gone, oldest first; `lost`: how many versions."""
    versions = "version" if lost == 1 else f"{lost} versions"
    text = (
        f"LooseLeaf: a host of this session was lost before its newest {versions} had been written to disk. Variables "
        f"are those of version {version}; what later cells changed is gone"
    )
    lines = [_line(cell) for cell in cells]
    if len(lines) > CELLS_TOLD_MAX:
        lines = [f"{len(lines) - CELLS_TOLD_MAX + 1} cells before these", *lines[1 - CELLS_TOLD_MAX :]]
    return text + ("; run them again:\n" + "".join(f"  {line}\n" for line in lines) if lines else "\n")


def _line(cell: str) -> str:
    lines = [line.strip() for line in cell.splitlines() if line.strip() and not line.lstrip().startswith("%%")]
    first = lines[0] if lines else cell.strip()
    return first if len(first) <= LINE_CHARS_MAX else first[: LINE_CHARS_MAX - 1] + "…"
