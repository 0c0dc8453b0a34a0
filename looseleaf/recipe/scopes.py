"""Which global names the body of a function, lambda or class reaches, by Python's own symbol tables."""

from __future__ import annotations

import ast
import symtable
from collections import defaultdict
from dataclasses import dataclass

from looseleaf.recipe.tree import nodes_of

CodeNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Globals:
    """Global names that code reads and writes when it runs, nested code included."""

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()


class ScopeTable:
    """The symbol tables of one text; built when they are first asked for, as most cells define no function.

    Raises SyntaxError from `globals_of` where Python's own compiler would (a duplicate argument, a stray nonlocal).
    """

    def __init__(self, python: str) -> None:
        self._python = python
        self._blocks: dict[tuple[str, int], list[symtable.SymbolTable]] | None = None

    def globals_of(self, node: CodeNode) -> Globals:
        """What the code of `node` reaches when called; for a class: what its methods and nested code reach.

        Two lambdas on one line cannot be told apart here; each gets what both reach.
        """
        if isinstance(node, ast.ClassDef):
            parts = [self.globals_of(child) for child in _code_in_class(node)]
            return Globals(frozenset().union(*(p.reads for p in parts)), frozenset().union(*(p.writes for p in parts)))
        name = "lambda" if isinstance(node, ast.Lambda) else node.name
        reads: set[str] = set()
        writes: set[str] = set()
        for block in self._all_blocks().get((name, node.lineno), ()):
            _collect(block, reads, writes)
        inside = nodes_of(node)
        if writes:
            # A declared global that is only augmented is read too, which the symbol table does not say.
            reads |= writes & {
                n.target.id for n in inside if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
            }
        return Globals(frozenset(reads - _only_annotations(inside)), frozenset(writes))

    def _all_blocks(self) -> dict[tuple[str, int], list[symtable.SymbolTable]]:
        if self._blocks is None:
            self._blocks = defaultdict(list)
            todo = symtable.symtable(self._python, "<cell>", "exec").get_children()
            while todo:
                block = todo.pop()
                self._blocks[(block.get_name(), block.get_lineno())].append(block)
                todo.extend(block.get_children())
        return self._blocks


def _collect(block: symtable.SymbolTable, reads: set[str], writes: set[str]) -> None:
    for symbol in block.get_symbols():
        if symbol.is_global() and symbol.is_referenced():
            reads.add(symbol.get_name())
        if symbol.is_declared_global() and symbol.is_assigned():
            writes.add(symbol.get_name())
    for child in block.get_children():
        _collect(child, reads, writes)


def _code_in_class(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda]:
    """Functions and lambdas directly in a class body or in a class nested in it: the code that runs later."""
    found: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda] = []
    todo: list[ast.AST] = list(node.body)
    while todo:
        part = todo.pop()
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            found.append(part)
        else:
            todo.extend(ast.iter_child_nodes(part))
    return found


def _only_annotations(inside: list[ast.AST]) -> set[str]:
    """Names that occur only as annotations of local variables: Python never evaluates those."""
    local = [n.annotation for n in inside if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    if not local:
        return set()
    annotations = [n for annotation in local for n in nodes_of(annotation) if isinstance(n, ast.Name)]
    skipped = {id(n) for n in annotations}
    elsewhere = {n.id for n in inside if isinstance(n, ast.Name) and id(n) not in skipped}
    return {n.id for n in annotations} - elsewhere
