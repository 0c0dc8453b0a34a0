"""LooseLeaf in JupyterLab and Notebook 7: a prebuilt front-end extension, no server side."""

from __future__ import annotations

__version__ = "0.1.0"


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where Jupyter finds the assets of a development install."""
    return [{"src": "labextension", "dest": "@looseleaf/lab"}]
