"""Syntax trees: a walk that is faster than the library's, and handlers by node type."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

# Parsing, symbol tables and our own recursion answer unusual texts with any of these.
UNPARSEABLE = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)

# Python's parser warns of backslashes that begin no escape and of words that follow a number at once; IPython's
# transforms pass on what it says of line separators that only they split at.
_NUMBER_AND_WORD: Final = re.compile(r"(?<![\w.])[0-9][\w.]*(?:and|else|for|if|in|is|not|or)\b")
_ESCAPE_OR_SEPARATOR: Final = re.compile(r"""\\[^'"\\abfnrtvx0-3\n]|[\v\f\x1c-\x1e\x85\u2028\u2029]""")


@contextmanager
def without_warnings(text: str) -> Iterator[None]:
    """Inside, parsing `text` gives no warning: that is the run's to give.

    Filters of warnings are the process's, and another thread may run a person's cell: they are touched only for a text
    of which Python may warn.
    """
    if not (_ESCAPE_OR_SEPARATOR.search(text) or _NUMBER_AND_WORD.search(text)):
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def parse(python: str) -> ast.Module:
    """`ast.parse` without the warnings that the text itself earns. Raises as it does."""
    with without_warnings(python):
        return ast.parse(python)


def nodes_of(node: ast.AST) -> list[ast.AST]:
    """`node` and everything below it, parents before their children."""
    found = [node]
    for current in found:
        for name in current._fields:
            value = getattr(current, name, None)
            if isinstance(value, list):
                found += [part for part in value if isinstance(part, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, (ast.expr_context, ast.operator)):
                found.append(value)
    return found


def operands(node: ast.BinOp) -> list[tuple[ast.operator | None, ast.expr]]:
    """`a + b - c` as [(None, a), (+, b), (-, c)]: long sums are nested as deep as they are long."""
    found: list[tuple[ast.operator | None, ast.expr]] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp):
        found.append((left.op, left.right))
        left = left.left
    found.append((None, left))
    return found[::-1]


class Handlers(dict[type, Any]):
    """The methods of a class that are named for node types, such as `on_Name`; None where there is none."""

    def __init__(self, owner: type, prefix: str) -> None:
        super().__init__()
        self._owner = owner
        self._prefix = prefix

    def __missing__(self, node_type: type) -> Any:
        self[node_type] = found = getattr(self._owner, f"{self._prefix}{node_type.__name__}", None)
        return found
