"""Tables as plain text, for what magics print."""

from __future__ import annotations

import time
from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """One line for each row, its columns below each other; rows may be shorter than the longest."""
    columns = max(map(len, rows))
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(columns)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def when(unix_ms: int) -> str:
    """A time of the wall clock here, as 2026-11-30 12:30:05."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ms / 1000))
