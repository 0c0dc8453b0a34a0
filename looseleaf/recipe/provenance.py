"""Guesses from text about what an object holds, where no header tells: notebook code and packages behind a value."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator


def held_names(expr: ast.expr | None, is_class: Callable[[str], bool]) -> frozenset[str]:
    """Names whose objects the value of `expr` may hold.

    An argument is held by what is made of it, a method's receiver too; a function that is called is not held, a class
    is by its instance. Attributes, comparisons and texts hold nothing.
    """
    return frozenset(_held(expr, is_class)) if expr is not None else frozenset()


def _held(node: ast.expr, is_class: Callable[[str], bool]) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and is_class(node.func.id):
            yield node.func.id
        elif isinstance(node.func, ast.Attribute):
            yield from _held(node.func.value, is_class)
        elif isinstance(node.func, ast.Call):
            yield from _held(node.func, is_class)
        for part in [*node.args, *(k.value for k in node.keywords)]:
            yield from _held(part, is_class)
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        own = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        parts = [node.elt, *(g.iter for g in node.generators)]
        yield from (name for part in parts for name in _held(part, is_class) if name not in own)
    elif isinstance(node, (ast.Subscript, ast.Starred, ast.Await, ast.NamedExpr)):
        yield from _held(node.value, is_class)
    elif isinstance(node, ast.IfExp):
        yield from (name for part in (node.body, node.orelse) for name in _held(part, is_class))
    elif isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.BoolOp, ast.BinOp, ast.Dict)):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _held(child, is_class)


def names_in(expr: ast.expr | None) -> frozenset[str]:
    """Every name loaded in `expr`."""
    if expr is None:
        return frozenset()
    return frozenset(n.id for n in ast.walk(expr) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
