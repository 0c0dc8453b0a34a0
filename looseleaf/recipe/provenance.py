"""Guesses from text about what an object holds, where no header tells: notebook code and packages behind a value."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, Protocol

from looseleaf.recipe.tree import nodes_of, operands

# Methods whose receiver keeps what it is given.
_KEEPING_METHODS: Final = frozenset(
    {
        "append", "appendleft", "extend", "insert", "add", "update", "setdefault", "put", "push",
        "register_forward_hook", "register_backward_hook", "register_full_backward_hook", "register_buffer",
        "register_parameter", "add_module",
        "add_callback", "add_cb", "add_cbs", "add_event_handler", "compile", "set_transform", "with_transform",
        "set_params", "register", "subscribe", "observe", "on_click",
    }
)  # fmt: skip
# Calls that use a function and do not keep it.
_USING_METHODS: Final = frozenset({"apply", "applymap", "agg", "aggregate", "transform", "sort", "filter", "pipe"})
_USING_FUNCTIONS: Final = frozenset({"sorted", "max", "min", "sum", "any", "all", "len", "reduce"})


class Origins(Protocol):
    """What is known of the session's names where an expression is looked at."""

    def made_by(self, name: str) -> frozenset[str]:
        """Notebook code that the result of calling `name` may hold: a class, a function that is wrapped or made."""

    def has_method(self, name: str, attr: str) -> bool:
        """`name` is an instance of a notebook class with a method `attr`."""


def held_names(expr: ast.expr | None, origins: Origins) -> frozenset[str]:
    """Names whose objects the value of `expr` may hold.

    An argument is held by what is made of it, a method's receiver too; of a function that is called what it makes is
    held. Other attributes than methods, comparisons and texts hold nothing.
    """
    try:
        return frozenset(node.id for node in _held(expr, origins) if isinstance(node, ast.Name))
    except RecursionError:
        return names_in(expr)


class _NothingKnown:
    def made_by(self, name: str) -> frozenset[str]:
        return frozenset()

    def has_method(self, name: str, attr: str) -> bool:
        return False


def held_lambdas(expr: ast.expr | None, origins: Origins | None = None) -> list[ast.Lambda]:
    """Lambdas in `expr` that its value may hold."""
    origins = origins or _NothingKnown()
    try:
        return [node for node in _held(expr, origins) if isinstance(node, ast.Lambda)]
    except RecursionError:
        return []


def kept_by(call: ast.Call) -> list[ast.expr]:
    """What the receiver of a method call keeps of its arguments."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in _KEEPING_METHODS:
        return [*call.args, *(k.value for k in call.keywords)]
    return []


def _held(node: ast.expr | None, origins: Origins) -> Iterator[ast.expr]:
    if isinstance(node, (ast.Name, ast.Lambda)):
        yield node
    elif isinstance(node, ast.Call):
        yield from _held_by_call(node, origins)
    elif isinstance(node, ast.Attribute):
        owner = node.value
        if isinstance(owner, ast.Call) or (isinstance(owner, ast.Name) and origins.has_method(owner.id, node.attr)):
            yield from _held(owner, origins)
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        own = {n.id for g in node.generators for n in nodes_of(g.target) if isinstance(n, ast.Name)}
        for part in (node.elt, *(g.iter for g in node.generators)):
            yield from (n for n in _held(part, origins) if not isinstance(n, ast.Name) or n.id not in own)
    elif isinstance(node, (ast.Subscript, ast.Starred, ast.Await, ast.NamedExpr)):
        yield from _held(node.value, origins)
    elif isinstance(node, ast.IfExp):
        for part in (node.body, node.orelse):
            yield from _held(part, origins)
    elif isinstance(node, ast.BinOp):
        for _, part in operands(node):
            yield from _held(part, origins)
    elif isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.BoolOp, ast.Dict)):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _held(child, origins)


def _held_by_call(node: ast.Call, origins: Origins) -> Iterator[ast.expr]:
    func = node.func
    if isinstance(func, ast.Name):
        yield from (ast.Name(id=name, ctx=ast.Load()) for name in sorted(origins.made_by(func.id)))
    elif isinstance(func, ast.Attribute):
        yield from _held(func.value, origins)
    elif isinstance(func, ast.Call):
        yield from _held(func, origins)
    uses = isinstance(func, ast.Name) and func.id in _USING_FUNCTIONS
    if isinstance(func, ast.Attribute) and func.attr in _USING_METHODS:
        return
    for part in [*node.args, *(k.value for k in node.keywords if k.arg != "key")]:
        if not (uses and isinstance(part, ast.Lambda)):
            yield from _held(part, origins)


def made_in(name: str, node: ast.AST, origins: Origins) -> frozenset[str]:
    """What a call of the code that `node` defines as `name` makes: itself if it is a class or holds code of its own."""
    if isinstance(node, ast.ClassDef):
        return frozenset({name})
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return frozenset()
    made: set[str] = set()
    for part in nodes_of(node):
        if part is not node and isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            made.add(name)
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
            made |= origins.made_by(part.func.id)
        elif isinstance(part, (ast.Return, ast.Assign, ast.Yield)) and held_lambdas(part.value, origins):
            made.add(name)
    return frozenset(made)


def names_in(expr: ast.expr | None) -> frozenset[str]:
    """Every name loaded in `expr`."""
    if expr is None:
        return frozenset()
    return frozenset(n.id for n in nodes_of(expr) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
