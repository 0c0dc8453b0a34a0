"""Breakpoints of the front end's debugger in a cell that runs on a worker: they do not stop it, which is said."""

from __future__ import annotations

from typing import Any, Final

NOTE: Final = (
    "LooseLeaf: this cell runs on a GPU process, where its breakpoints do not stop it; `breakpoint()` in it does, and "
    "%%cpu runs it here\n"
)


def breakpoints_note(debugger: Any, cell_file: str) -> str:
    """What a person is told of a cell that was given the name `cell_file`; empty without breakpoints in it.

    `debugger`: ipykernel's, None where debugpy is not installed.
    """
    if debugger is None or not debugger.is_started:
        return ""
    return NOTE if debugger.breakpoint_list.get(cell_file) else ""
