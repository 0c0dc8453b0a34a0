"""Texts of earlier cells, so that tracebacks on a worker show the lines of functions that were defined elsewhere."""

from __future__ import annotations

import linecache
from typing import Any, Final

# What goes along with one GPU cell; the newest cells first.
SOURCES_MAX: Final = 300
SOURCES_CHARS_MAX: Final = 400_000


def name_cell(shell: Any, source: str, count: int) -> str:
    """The file name under which cell `count` is compiled wherever it runs; this kernel knows its lines from now on."""
    try:
        text = shell.transform_cell(source)
    except SyntaxError:
        text = source
    return str(shell.compile.cache(text, count, raw_code=source))


def cell_sources(shell: Any) -> list[list[Any]]:
    """[file name, number, text] of the newest cells that `shell` has compiled, here or by `name_cell`."""
    rows: list[list[Any]] = []
    chars = 0
    for name, count in reversed(shell.compile._filename_map.items()):
        entry = linecache.cache.get(name)
        if entry is None or len(entry) < 4:
            continue
        text = "".join(entry[2])
        chars += len(text)
        if chars > SOURCES_CHARS_MAX or len(rows) >= SOURCES_MAX:
            break
        rows.append([name, count, text])
    return rows
