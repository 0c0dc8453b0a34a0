"""What people call a session: its notebook's path, as far as the front end tells it."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

TITLE_VARIABLE: Final = "LOOSELEAF_SESSION_TITLE"
TITLE_CHARS_MAX: Final = 500
# A Jupyter server sets it for the kernel alone; what a cell starts has it, too, and kernels that this starts.
PATH_VARIABLE: Final = "JPY_SESSION_NAME"
# jupyter_client sets it: the process that has started the kernel.
LAUNCHER_VARIABLE: Final = "JPY_PARENT_PID"
# A kernel has one, unless a cell changes the variable.
LAUNCHERS_MAX: Final = 8


def notebook_of(environ: Mapping[str, str], namespace: Mapping[str, Any]) -> str:
    """The path of the notebook that a Jupyter server or VS Code tells; empty if neither does.

    A path that the kernel's launcher had itself, as papermill in a cell has, is of another notebook and not taken.
    """
    path = environ.get(PATH_VARIABLE, "")
    if path and _variable_of(environ.get(LAUNCHER_VARIABLE) or str(os.getppid()), PATH_VARIABLE) == path:
        path = ""
    told = path or namespace.get("__vsc_ipynb_file__")
    return told if isinstance(told, str) else ""


# Asked at each cell, while the launcher may have ended since.
@functools.lru_cache(maxsize=LAUNCHERS_MAX)
def _variable_of(pid: str, name: str) -> str:
    """The variable as the process began with it; empty if it had none or does not let this one look."""
    try:
        entries = Path("/proc", str(int(pid)), "environ").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return ""
    prefix = os.fsencode(f"{name}=")
    return next((os.fsdecode(entry.removeprefix(prefix)) for entry in entries if entry.startswith(prefix)), "")


def title_of(environ: Mapping[str, str], namespace: Mapping[str, Any]) -> str:
    """As somebody chose it, the path that a Jupyter server or VS Code tells, or the folder where the kernel runs."""
    told = environ.get(TITLE_VARIABLE) or notebook_of(environ, namespace)
    if told:
        return told[:TITLE_CHARS_MAX]
    try:
        return f"a notebook in {os.getcwd()}"[:TITLE_CHARS_MAX]
    except OSError:
        return ""  # the folder was deleted
