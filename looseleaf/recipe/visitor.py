"""One cell's statements in order: which names are looked up in the session, and which the cell has bound by then.

Flow-sensitive at top level. A binding is *sure* where every path makes it; loops may run zero times, a `try` body may
stop anywhere, a branch that ends in `raise` does not go on.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from looseleaf.recipe.code_facts import code_facts
from looseleaf.recipe.dynamic import dotted, dynamic_reason, imported_modules, namespace_key, root_name
from looseleaf.recipe.expressions import ExpressionVisitor, Scope
from looseleaf.recipe.facts import BindingKind, CodeFacts
from looseleaf.recipe.provenance import held_lambdas, kept_by
from looseleaf.recipe.scopes import ScopeTable
from looseleaf.recipe.tree import nodes_of

# A `with` on one of these may end its body early without an exception leaving it.
_SWALLOWING = frozenset({"suppress", "raises", "assertRaises", "capture_output", "ignored"})


class CellVisitor(ExpressionVisitor):
    """Collects the facts of one cell; `future_annotations`: annotations are not evaluated."""

    def __init__(self, python: str, *, future_annotations: bool) -> None:
        super().__init__(python)
        self.future_annotations = future_annotations
        self.sets_future = False
        self.star_imports: list[str] = []
        self.stored: list[tuple[str, ast.expr]] = []
        self.dead = False

    def run(self, tree: ast.Module) -> None:
        """Visits a whole text."""
        self.body(tree.body)
        self.dead = False

    def body(self, statements: Sequence[ast.stmt]) -> None:
        """Visits statements in order; what follows a `raise` is visited too, as it may be reached by an edit."""
        for statement in statements:
            self.visit(statement)

    def nested(self, text: str, *, isolated: bool) -> bool:
        text = text.strip()
        try:
            tree = ast.parse(text)
            table = ScopeTable(text)
        except (SyntaxError, ValueError):
            # A format specification or shell text in braces: take its leading expression, as IPython's formatter does.
            text = text.partition(":")[0].partition("!")[0]
            try:
                tree, table = ast.parse(text), ScopeTable(text)
            except (SyntaxError, ValueError):
                return False
        kept_table, self.table = self.table, table
        kept = (
            set(self.sure),
            list(self.bindings),
            dict(self.codes),
            set(self.deletes),
            set(self.may_delete),
            self.dead,
        )
        self.body(tree.body)
        self.table = kept_table
        if isolated:
            self.sure, self.bindings, self.codes, self.deletes, self.may_delete, self.dead = kept
        return True

    # Bindings.

    def target(self, target: ast.expr, value: ast.expr | None, *, certain: bool = True) -> None:
        """Binds an assignment's target; `value` is what is known of the expression bound."""
        if isinstance(target, ast.Name):
            codes = _lambdas(value, self.table) if value is not None and not self.scopes else ()
            kind: BindingKind = "code" if isinstance(value, ast.Lambda) else "value"
            self.bind(target.id, kind, expr=value, codes=codes, certain=certain)
        elif isinstance(target, ast.Starred):
            self.target(target.value, value, certain=certain)
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts: Sequence[ast.expr | None] = [value] * len(target.elts)
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                if not any(isinstance(e, ast.Starred) for e in [*value.elts, *target.elts]):
                    parts = value.elts
            for element, part in zip(target.elts, parts, strict=True):
                self.target(element, part, certain=certain)
        else:
            key = namespace_key(target)
            if key is not None:
                self.bind(key, expr=value, certain=certain)
                return
            self.touch(root_name(target))
            self.store(root_name(target), value)
            for child in ast.iter_child_nodes(target):
                if isinstance(child, ast.expr):
                    self.visit(child)

    def store(self, name: str, value: ast.expr | None) -> None:
        """`value` is put into the object of `name`."""
        if name and value is not None and not any(name in s.names for s in self.scopes):
            self.stored.append((name, value))

    def visit_Call(self, node: ast.Call) -> None:
        super().visit_Call(node)
        if isinstance(node.func, ast.Attribute):
            for value in kept_by(node):
                self.store(root_name(node.func.value), value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not isinstance(node.value, ast.Lambda):
            self.visit(node.value)
        else:
            # Stored, not called: its reads happen when the name is used.
            self.arguments(node.value.args)
            if any(not isinstance(t, ast.Name) for t in node.targets):
                self.visit(node.value)
        for target in node.targets:
            self.target(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
        self.annotation(node.annotation)
        if node.value is not None:
            self.target(node.target, node.value)
        elif not isinstance(node.target, ast.Name):
            self.visit(node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.touch(root_name(node.target))
        if isinstance(node.target, ast.Name):
            self.use(node.target.id)
            self.visit(node.value)
            old = ast.Name(id=node.target.id, ctx=ast.Load())
            self.bind(node.target.id, expr=ast.BinOp(left=old, op=node.op, right=node.value))
            return
        key = namespace_key(node.target)
        if key is not None:
            self.use(key)
            self.bind(key)
        self.target(node.target, None)
        self.visit(node.value)

    def annotation(self, annotation: ast.expr | None) -> None:
        """Visits an annotation that is evaluated where it stands."""
        if annotation is not None and not self.future_annotations:
            self.visit(annotation)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            key = namespace_key(target)
            if key is not None:
                self._delete(key)
            elif isinstance(target, ast.Name):
                self._delete(target.id)
            elif isinstance(target, (ast.Tuple, ast.List)):
                self.visit_Delete(ast.Delete(targets=target.elts))
            else:
                self.target(target, None)

    def visit_Import(self, node: ast.Import) -> None:
        self.modules |= imported_modules([node])
        self.dynamic = self.dynamic or dynamic_reason(node, in_code=False)
        for alias in node.names:
            top = alias.name.partition(".")[0]
            if alias.asname:
                self.bind(alias.asname, "import", module=alias.name)
            else:
                self.bind(top, "import", module=top, submodule=alias.name if "." in alias.name else "")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module == "__future__":
            self.sets_future = self.sets_future or any(a.name == "annotations" for a in node.names)
            self.future_annotations = self.future_annotations or self.sets_future
        self.modules |= imported_modules([node])
        self.dynamic = self.dynamic or dynamic_reason(node, in_code=False)
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                self.star_imports.append(module)
            else:
                self.bind(alias.asname or alias.name, "import", module=module, attribute=alias.name)

    # Definitions.

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self.arguments(node.args)
        own = _type_parameters(node)
        if own:
            self.scopes.append(Scope("comprehension", own))
        args = node.args
        for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]:
            if arg is not None:
                self.annotation(arg.annotation)
        self.annotation(node.returns)
        if own:
            self.scopes.pop()
        codes = () if self.scopes else (code_facts(node, self.table),)
        self.bind(node.name, "code", codes=codes)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        own = _type_parameters(node)
        if own:
            self.scopes.append(Scope("comprehension", own))
        for base in [*node.bases, *(k.value for k in node.keywords)]:
            self.visit(base)
        self.scopes.append(Scope("class", set()))
        guard, self.guard = self.guard, 0
        self.body(node.body)
        self.guard = guard
        self.scopes.pop()
        if own:
            self.scopes.pop()
        codes = () if self.scopes else (code_facts(node, self.table),)
        self.bind(node.name, "code", codes=codes)

    # Control flow.

    def branches(self, *paths: Callable[[], None]) -> None:
        """Exactly one of `paths` runs; a path that raises does not count for what is sure afterwards."""
        before, was_dead = set(self.sure), self.dead
        ends: list[set[str]] = []
        self.guard += 1
        for path in paths:
            self.sure, self.dead = set(before), False
            path()
            if not self.dead:
                ends.append(self.sure)
        self.guard -= 1
        self.sure = set.intersection(*ends) if ends else before
        self.dead = was_dead or not ends

    def visit_Raise(self, node: ast.Raise) -> None:
        self.generic_visit(node)
        self.dead = True

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        if isinstance(node.test, ast.Constant) and node.test.value:
            self.body(node.body)
            return
        self.branches(lambda: self.body(node.body), lambda: self.body(node.orelse))

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)

        def once() -> None:
            self.target(node.target, node.iter)
            self.body(node.body)
            self.dead = False

        self.branches(once, lambda: None)
        self.body(node.orelse)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self.visit_For(node)

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)

        def once() -> None:
            self.body(node.body)
            self.dead = False

        self.branches(once, lambda: None)
        self.body(node.orelse)

    def visit_Try(self, node: ast.Try) -> None:
        before = set(self.sure)

        def straight() -> None:
            self.body(node.body)
            self.body(node.orelse)

        def handler(part: ast.ExceptHandler) -> Callable[[], None]:
            def path() -> None:
                if part.type is not None:
                    self.visit(part.type)
                if part.name:
                    was_sure = part.name in self.sure
                    self.bind(part.name)
                    self.body(part.body)
                    # Python deletes the name at the handler's end.
                    self.sure.discard(part.name)
                    self.bindings = [b for b in self.bindings if b.name != part.name or b.certain]
                    if was_sure or part.name in before:
                        self.may_delete.add(part.name)
                else:
                    self.body(part.body)

            return path

        self.branches(straight, *(handler(part) for part in node.handlers))
        if node.finalbody:
            after, self.sure = self.sure, before
            bound_before = set(before)
            self.body(node.finalbody)
            self.sure = after | (self.sure - bound_before)

    def visit_TryStar(self, node: ast.TryStar) -> None:
        self.visit_Try(ast.Try(body=node.body, handlers=node.handlers, orelse=node.orelse, finalbody=node.finalbody))

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        swallows = False
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self.target(item.optional_vars, item.context_expr)
            call = item.context_expr
            swallows = swallows or (isinstance(call, ast.Call) and dotted(call.func).rpartition(".")[2] in _SWALLOWING)
        if swallows:
            self.branches(lambda: self.body(node.body), lambda: None)
        else:
            self.body(node.body)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        self.visit_With(node)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)

        def case(part: ast.match_case) -> Callable[[], None]:
            def path() -> None:
                self._pattern(part.pattern, node.subject)
                if part.guard is not None:
                    self.visit(part.guard)
                self.body(part.body)

            return path

        falls_through = () if _takes_all(node.cases[-1]) else (lambda: None,)
        self.branches(*(case(part) for part in node.cases), *falls_through)

    def _pattern(self, pattern: ast.pattern, subject: ast.expr) -> None:
        for piece in nodes_of(pattern):
            if isinstance(piece, ast.MatchValue):
                self.visit(piece.value)
            elif isinstance(piece, ast.MatchClass):
                self.visit(piece.cls)
            elif isinstance(piece, ast.MatchMapping):
                for key in piece.keys:
                    self.visit(key)
                if piece.rest:
                    self.bind(piece.rest, expr=subject)
            elif isinstance(piece, (ast.MatchAs, ast.MatchStar)) and piece.name:
                self.bind(piece.name, expr=subject)


def _lambdas(expr: ast.expr, table: ScopeTable) -> tuple[CodeFacts, ...]:
    """The lambdas that the value of `expr` may hold: a call of the bound object may run them."""
    return tuple(code_facts(n, table) for n in held_lambdas(expr))


def _takes_all(case: ast.match_case) -> bool:
    """Whatever is matched comes in here at the latest: `case _`, `case x`, `case a | _`."""
    todo, pattern = [case.pattern], case.pattern
    while todo and case.guard is None:
        pattern = todo.pop()
        if isinstance(pattern, ast.MatchOr):
            todo.append(pattern.patterns[-1])
        elif isinstance(pattern, ast.MatchAs):
            if pattern.pattern is None:
                return True
            todo.append(pattern.pattern)
    return False


def _type_parameters(node: ast.AST) -> set[str]:
    """`T` of `def f[T](x: T)` and `class C[T]` (Python 3.12)."""
    return {p.name for p in getattr(node, "type_params", ())}
