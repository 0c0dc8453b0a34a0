"""`Out` is no variable of the session; what a cell reads of it are the variables `_<number>`."""

from __future__ import annotations

import ast
import re
from collections.abc import Set
from typing import Final

from looseleaf.recipe.tree import nodes_of

RESULT_TABLES: Final = frozenset({"Out", "_oh"})
_RESULT: Final = re.compile(r"_[1-9]\d*")


def all_results(live: Set[str]) -> frozenset[str]:
    """The variables of `live` that hold results of cells."""
    return frozenset(name for name in live if _RESULT.fullmatch(name))


def results_read(tree: ast.Module, tables: Set[str], live: Set[str]) -> frozenset[str]:
    """The results that a text reads by way of `tables`: those whose numbers it gives, all if it gives one otherwise."""
    uses = {id(node) for node in nodes_of(tree) if isinstance(node, ast.Name) and node.id in tables}
    found: set[str] = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.Subscript) and id(node.value) in uses and isinstance(node.slice, ast.Constant):
            uses.discard(id(node.value))
            found.add(f"_{node.slice.value!r}")
    return all_results(live) if uses or not found else all_results(found & live)
