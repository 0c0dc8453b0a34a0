"""What people call a session: its notebook's path, as far as the front end tells it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

TITLE_VARIABLE: Final = "LOOSELEAF_SESSION_TITLE"
TITLE_CHARS_MAX: Final = 500


def notebook_of(environ: Mapping[str, str], namespace: Mapping[str, Any]) -> str:
    """The path of the notebook that a Jupyter server or VS Code tells; empty if neither does."""
    told = environ.get("JPY_SESSION_NAME") or namespace.get("__vsc_ipynb_file__")
    return told if isinstance(told, str) else ""


def title_of(environ: Mapping[str, str], namespace: Mapping[str, Any]) -> str:
    """As somebody chose it, the path that a Jupyter server or VS Code tells, or the folder where the kernel runs."""
    told = environ.get(TITLE_VARIABLE) or notebook_of(environ, namespace)
    if told:
        return told[:TITLE_CHARS_MAX]
    try:
        return f"a notebook in {os.getcwd()}"[:TITLE_CHARS_MAX]
    except OSError:
        return ""  # the folder was deleted
