"""The Python that magic lines hide in strings, put where it runs, for whoever follows a cell's code."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from looseleaf.recipe.magics import (
    ISOLATED_MAGICS,
    STATEMENT_MAGICS,
    MagicCall,
    interpolated_expressions,
    magic_call,
    may_be_persons,
    without_options,
)

# Fields of nodes that hold statements, or nodes that hold them.
_BODIES: Final = ("body", "orelse", "finalbody", "handlers", "cases")


def unfold(
    tree: ast.Module, *, shown: Sequence[str] = (), setup: str = "", called: Sequence[str] = ()
) -> ast.Module:
    """`tree`, changed in place: before each statement with a line magic stands the Python that the magic runs or shows.

    `shown`: expressions whose text a cell magic's line takes; `setup`: Python that runs before the body;
    `called`: cell magics that may be functions of the session. What does not parse is left out.
    """
    _unfold_bodies(tree)
    tree.body[:0] = [*_shown(shown), *_parsed(setup), *(call for name in called for call in _parsed(f"{name}('', '')"))]
    return tree


def _unfold_bodies(tree: ast.Module) -> None:
    """Line magics stand as statements or as assigned values; everything else only contains statements."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        for field in _BODIES:
            parts = getattr(node, field, None)
            if not isinstance(parts, list):
                continue
            todo += parts
            if any(isinstance(part, (ast.Expr, ast.Assign)) for part in parts):
                parts[:] = [new for part in parts for new in (*_before(part), part)]


def _before(statement: ast.AST) -> Iterator[ast.stmt]:
    if isinstance(statement, (ast.Expr, ast.Assign)):
        yield from _hidden(statement.value)


def _hidden(value: ast.expr) -> Iterator[ast.stmt]:
    magic = magic_call(value) if isinstance(value, ast.Call) else None
    if magic is not None:
        yield from _shown(interpolated_expressions(magic.line))
        yield from _parsed(_python(magic))


def _python(magic: MagicCall) -> str:
    if may_be_persons(magic.name):
        return f"{magic.name}({magic.line!r})"
    return without_options(magic.line) if magic.name in STATEMENT_MAGICS | ISOLATED_MAGICS else ""


def _shown(expressions: Iterable[str]) -> Iterator[ast.stmt]:
    """Each as the text that it becomes: `f"{x}"`."""
    for text in expressions:
        for statement in _parsed(text):
            if isinstance(statement, ast.Expr):
                part = ast.FormattedValue(value=statement.value, conversion=-1, format_spec=None)
                statement.value = ast.JoinedStr(values=[part])
                yield ast.fix_missing_locations(statement)


def _parsed(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text.strip()).body
    except (SyntaxError, ValueError):
        return []
