"""Facts of the functions, classes and lambdas that a cell defines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, Literal

from looseleaf.recipe.dynamic import (
    dotted,
    dynamic_reason,
    imported_modules,
    literal_programs,
    namespace_key,
    query_names,
)
from looseleaf.recipe.facts import CodeFacts
from looseleaf.recipe.magics import (
    ISOLATED_MAGICS,
    STATEMENT_MAGICS,
    interpolated_expressions,
    magic_call,
    may_be_persons,
    without_options,
)
from looseleaf.recipe.scopes import CodeNode, ScopeTable
from looseleaf.recipe.tokens import token_names
from looseleaf.recipe.tree import nodes_of, parse


def code_facts(node: CodeNode, table: ScopeTable) -> CodeFacts:
    """Facts of a function, class or lambda."""
    reached = table.globals_of(node)
    inside = nodes_of(node)
    reads = set(reached.reads)
    dynamic = ""
    for part in inside:
        if not isinstance(part, _TELLING):
            continue
        key = namespace_key(part)
        if key is not None:
            reads.add(key)
        elif not dynamic:
            dynamic = dynamic_reason(part, in_code=True)
            if dynamic == "globals()" and _keys_only(inside):
                dynamic = ""
        if isinstance(part, ast.Call):
            reads.update(_texts_in(part))
    kind: Literal["function", "class", "lambda"] = "function"
    if isinstance(node, ast.ClassDef):
        kind = "class"
    elif isinstance(node, ast.Lambda):
        kind = "lambda"
    return CodeFacts(
        name="<lambda>" if isinstance(node, ast.Lambda) else node.name,
        kind=kind,
        reads=frozenset(reads),
        writes=reached.writes,
        imports=frozenset(imported_modules(inside)),
        carries=frozenset(_held_names(node)),
        dynamic=dynamic,
        node=node,
    )


# The nodes by which code reaches names that it does not spell out.
_TELLING: Final = (ast.Call, ast.Attribute, ast.Subscript, ast.Compare)


def _keys_only(nodes: list[ast.AST]) -> bool:
    """Every `globals()` among `nodes` stands where `namespace_key` understands it."""
    calls = sum(isinstance(n, ast.Call) and dotted(n.func) == "globals" for n in nodes)
    return calls == sum(namespace_key(n) is not None for n in nodes)


def _texts_in(call: ast.Call) -> Iterator[str]:
    """Names in the texts that `call` runs or queries, read as Python expressions."""
    yield from query_names(call)
    texts = literal_programs(call)
    magic = magic_call(call)
    if magic is not None:
        texts = [*texts, *interpolated_expressions(magic.line)]
        if magic.name in STATEMENT_MAGICS | ISOLATED_MAGICS:
            texts.append(without_options(magic.line))
        if may_be_persons(magic.name):
            yield magic.name
            yield from token_names(magic.line)
    for text in texts:
        try:
            tree = parse(text.strip())
        except (SyntaxError, ValueError):
            continue
        yield from (n.id for n in nodes_of(tree) if isinstance(n, ast.Name))


def _held_names(node: CodeNode) -> set[str]:
    """Names whose objects the code object keeps: decorators' wrappers, bases, default values."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.ClassDef):
        parts += [*node.bases, *(k.value for k in node.keywords), *node.decorator_list]
        for child in node.body:
            if isinstance(child, (ast.Assign, ast.AnnAssign)) and child.value is not None:
                parts.append(child.value)
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                parts += [*child.decorator_list, *child.args.defaults]
    else:
        parts += [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
        if not isinstance(node, ast.Lambda):
            parts += node.decorator_list
    return {n.id for part in parts for n in nodes_of(part) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
