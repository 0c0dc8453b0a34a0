"""Builds these pages with Sphinx: `make docs`. Markdown stays readable as it is; what only HTML has is made here."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes

import looseleaf

project = "LooseLeaf"
author = "LooseLeaf"
version = release = looseleaf.__version__
extensions = ["myst_nb"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
# Notebooks are shown with the outputs that they have: `make docs-example` runs them, and needs a cluster for it.
nb_execution_mode = "off"
nb_merge_streams = True
root_doc = "index"
myst_heading_anchors = 3
html_theme = "alabaster"
html_theme_options = {"description": "Serverless GPUs for notebooks", "page_width": "1100px", "sidebar_width": "240px"}
html_show_sourcelink = False
html_show_copyright = False

# The page whose reasons are anchors: `errors.html#NO_CLUSTER`, as the texts of errors link to them.
ERROR_PAGE = "errors"
REASON = re.compile(r"[A-Z][A-Z0-9_]+")


def add_reason_anchors(app: Any, doctree: nodes.document) -> None:
    """Makes each reason's first mention on the page of errors its anchor."""
    if app.env.docname != ERROR_PAGE:
        return
    seen: set[str] = set()
    for literal in doctree.findall(nodes.literal):
        reason = literal.astext()
        if REASON.fullmatch(reason) and reason not in seen:
            seen.add(reason)
            literal["ids"].append(reason)


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("doctree-read", add_reason_anchors)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
