"""Facts of texts that are Python, but nested deeper than a recursive look can go."""

from __future__ import annotations

import ast
from typing import Final

from looseleaf.recipe.dynamic import dynamic_reason, imported_modules
from looseleaf.recipe.facts import Binding, CellFacts, Read
from looseleaf.recipe.tree import UNPARSEABLE, nodes_of, parse

_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def flat_facts(digest: str, python: str, *, future_annotations: bool) -> CellFacts | None:
    """Facts of a text nested too deep to be followed: every name may be read, none is sure. None if it is no Python."""
    try:
        tree = parse(python)
    except UNPARSEABLE:
        return None
    nodes = nodes_of(tree)
    names = [n for n in nodes if isinstance(n, ast.Name)]
    bound = dict.fromkeys(n.id for n in names if isinstance(n.ctx, ast.Store))
    bound.update(dict.fromkeys(n.name for n in nodes if isinstance(n, _DEFINITIONS)))
    loaded = frozenset(n.id for n in names if isinstance(n.ctx, ast.Load))
    return CellFacts(
        source_hash=digest,
        parsed=True,
        too_deep=True,
        reads=tuple(Read(name, frozenset()) for name in sorted(loaded)),
        loads=loaded,
        bindings=tuple(Binding(name, "value", certain=False) for name in bound),
        may_delete=frozenset(n.id for n in names if isinstance(n.ctx, ast.Del)),
        touched=loaded,
        modules=frozenset(imported_modules(nodes)),
        dynamic=next((reason for n in nodes if (reason := dynamic_reason(n, in_code=False))), ""),
        future_annotations=future_annotations,
        tree=tree,
    )
