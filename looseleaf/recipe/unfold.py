"""The Python that magic lines hide in strings, put where it runs, for whoever follows a cell's code."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from looseleaf.recipe.magics import (
    ISOLATED_MAGICS,
    STATEMENT_MAGICS,
    MagicCall,
    interpolated_expressions,
    magic_call,
    without_options,
)


def unfold(tree: ast.Module, *, shown: Sequence[str] = (), setup: str = "") -> ast.Module:
    """`tree`, changed in place: before each statement with a line magic stands the Python that the magic runs or shows.

    `shown`: expressions whose text a cell magic's line takes; `setup`: Python that runs before the body. What does not
    parse is left out.
    """
    _Unfolder().visit(tree)
    tree.body[:0] = [*_shown(shown), *_parsed(setup)]
    return tree


class _Unfolder(ast.NodeTransformer):
    """Line magics stand as statements or as assigned values; everything else only contains statements."""

    def visit_Expr(self, node: ast.Expr) -> list[ast.stmt]:
        return [*_hidden(node.value), node]

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        return [*_hidden(node.value), node]


def _hidden(value: ast.expr) -> Iterator[ast.stmt]:
    magic = magic_call(value) if isinstance(value, ast.Call) else None
    if magic is not None:
        yield from _shown(interpolated_expressions(magic.line))
        yield from _parsed(_python(magic))


def _python(magic: MagicCall) -> str:
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
