"""Names in expressions: scopes of comprehensions and class bodies, lambdas, dynamic access, magics."""

from __future__ import annotations

import ast
from typing import Final, Literal

from looseleaf.errors import InvalidArgument
from looseleaf.recipe.dynamic import (
    dotted,
    dynamic_reason,
    imported_modules,
    literal_programs,
    namespace_key,
    query_names,
    root_name,
    unpickles,
    updated_names,
)
from looseleaf.recipe.facts import Binding, BindingKind, CodeFacts
from looseleaf.recipe.history_line import HISTORY_MAGIC, parse_history_line
from looseleaf.recipe.magics import (
    BODY_IS_PYTHON,
    FORGETTING_MAGICS,
    HELP_MAGICS,
    ISOLATED_MAGICS,
    QUIET_MAGICS,
    STATEMENT_MAGICS,
    MagicCall,
    empties_namespace,
    interpolated_expressions,
    is_install,
    magic_call,
    may_be_persons,
    without_options,
)
from looseleaf.recipe.scopes import ScopeTable
from looseleaf.recipe.tokens import token_names
from looseleaf.recipe.tree import nodes_of, operands

_CALLABLE_METHODS_THAT_CHANGE = frozenset(
    [
        "append",
        "extend",
        "insert",
        "remove",
        "pop",
        "popitem",
        "clear",
        "sort",
        "reverse",
        "update",
        "setdefault",
        "add",
        "discard",
        "write",
        "close",
        "load_state_dict",
        "zero_grad",
        "step",
        "backward",
        "train",
        "eval",
        "fit",
        "fit_transform",
        "partial_fit",
        "compile",
        "load_weights",
        "set_weights",
        "cuda",
        "cpu",
        "half",
        "float",
        "to",
        "requires_grad_",
        "add_module",
        "register_buffer",
        "register_forward_hook",
        "apply",
        "drop",
        "rename",
        "fillna",
        "reset_index",
        "next",
    ]
)


# Names that a cell has bound when it reads another; with more of them the read is as if there were none, which may
# need a name too many.
SURE_NAMES_MAX: Final = 256


class Scope:
    """A comprehension's or class body's own names."""

    __slots__ = ("kind", "names")

    def __init__(self, kind: Literal["comprehension", "class"], names: set[str]) -> None:
        self.kind = kind
        self.names = names


class ExpressionVisitor(ast.NodeVisitor):
    """Collects the names of expressions. `sure` holds what the cell has bound on every path so far."""

    def __init__(self, python: str) -> None:
        self.table = ScopeTable(python)
        self.scopes: list[Scope] = []
        self.guard = 0
        self.sure: set[str] = set()
        self._frozen: frozenset[str] = frozenset()
        self.reads: dict[tuple[str, frozenset[str]], None] = {}
        self.loads: set[str] = set()
        self.bindings: list[Binding] = []
        self.superseded: list[Binding] = []
        # Names that `bindings` may have.
        self.bound: set[str] = set()
        self.codes: dict[str, tuple[CodeFacts, ...]] = {}
        self.deletes: set[str] = set()
        self.may_delete: set[str] = set()
        self.touched: set[str] = set()
        self.modules: set[str] = set()
        self.calls: set[str] = set()
        self.dynamic = ""
        self.unpickles = False
        self.rebinds_all = False
        self.forgets = False
        self.shell: list[str] = []
        self.installs = False

    # Names.

    def use(self, name: str) -> None:
        """`name` is looked up here."""
        for depth, scope in enumerate(reversed(self.scopes)):
            # A class body's names are invisible to scopes nested in it.
            if name in scope.names and (scope.kind == "comprehension" or depth == 0):
                return
        self.loads.add(name)
        self._read(name)
        self._read_through(self.codes.get(name, ()), {name})

    def _read(self, name: str) -> None:
        if name not in self.sure:
            if len(self.sure) > SURE_NAMES_MAX:
                self._frozen = frozenset()
            elif self._frozen != self.sure:
                self._frozen = frozenset(self.sure)
            self.reads.setdefault((name, self._frozen), None)

    def _read_through(self, codes: tuple[CodeFacts, ...], seen: set[str]) -> None:
        """Code of this very cell may run from here on: what it reaches is looked up in the session as it then is."""
        for code in codes:
            self.dynamic = self.dynamic or code.dynamic
            for name in sorted((code.reads | code.carries) - seen):
                seen.add(name)
                if name in code.reads:
                    self._read(name)
                self._read_through(self.codes.get(name, ()), seen)

    def bind(
        self,
        name: str,
        kind: BindingKind = "value",
        *,
        expr: ast.expr | None = None,
        codes: tuple[CodeFacts, ...] = (),
        module: str = "",
        attribute: str = "",
        submodule: str = "",
        certain: bool = True,
    ) -> None:
        """`name` is bound here; `certain=False` where even on this path it may not happen."""
        if self.scopes:
            self.scopes[-1].names.add(name)
            return
        certain = certain and not self.guard
        if certain:
            self._supersede(name, keep_imports=kind == "import")
        self.bound.add(name)
        order = len(self.bindings) + len(self.superseded)
        self.bindings.append(Binding(name, kind, certain, module, attribute, submodule, codes, expr, order))
        self.codes[name] = codes if certain else (*self.codes.get(name, ()), *codes)
        self.sure.add(name)
        self.deletes.discard(name)

    def _supersede(self, name: str, *, keep_imports: bool = False) -> None:
        """What `name` was bound to counts only if the cell fails half-way; `import a.b, a.c` bind `a` together."""
        if name not in self.bound:
            return
        gone = [b for b in self.bindings if b.name == name and not (keep_imports and b.kind == "import")]
        if gone:
            self.superseded += gone
            # By identity: two bindings may be equal but for their expressions.
            ids = {id(b) for b in gone}
            self.bindings = [b for b in self.bindings if id(b) not in ids]

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.use(node.id)
        elif isinstance(node.ctx, ast.Store):
            self.bind(node.id)
        else:
            self._delete(node.id)

    def _delete(self, name: str) -> None:
        if self.scopes:
            self.scopes[-1].names.discard(name)
            return
        if self.guard:
            self.may_delete.add(name)
        elif name not in self.sure:
            self.deletes.add(name)
        if not self.guard:
            self._supersede(name)
            self.codes.pop(name, None)
        self.sure.discard(name)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        for _, operand in operands(node):
            self.visit(operand)

    # Expressions with scopes of their own.

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.arguments(node.args)
        # As if called in place: a key function is, and a stored one costs one name too many at most.
        for name in sorted(self.table.globals_of(node).reads):
            self.use(name)

    def arguments(self, args: ast.arguments) -> None:
        """Defaults are evaluated where the code is defined."""
        for default in [*args.defaults, *(d for d in args.kw_defaults if d is not None)]:
            self.visit(default)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        self._comprehension(node.generators, [node.elt])

    visit_SetComp = visit_ListComp
    visit_GeneratorExp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node.generators, [node.key, node.value])

    def _comprehension(self, generators: list[ast.comprehension], results: list[ast.expr]) -> None:
        self.visit(generators[0].iter)
        names = [n for g in generators for n in nodes_of(g.target) if isinstance(n, ast.Name)]
        self.scopes.append(Scope("comprehension", {n.id for n in names if isinstance(n.ctx, ast.Store)}))
        for name in names:
            # Of targets such as `x.attr` and `x[i]`.
            if isinstance(name.ctx, ast.Load):
                self.use(name.id)
        for index, generator in enumerate(generators):
            if index:
                self.visit(generator.iter)
            for condition in generator.ifs:
                self.visit(condition)
        for result in results:
            self.visit(result)
        self.scopes.pop()

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        name = node.target.id
        if not any(s.kind == "comprehension" for s in self.scopes):
            self.bind(name, expr=node.value)
            return
        # It binds outside the comprehension, but only if the comprehension runs; inside it is seen from here on.
        self.scopes[-1].names.add(name)
        inside, self.scopes, was_sure = self.scopes, [], name in self.sure
        self.bind(name, expr=node.value, certain=False)
        if not was_sure:
            self.sure.discard(name)
        self.scopes = inside

    # Calls.

    def visit_Call(self, node: ast.Call) -> None:
        magic = magic_call(node)
        if magic is not None:
            self._magic(magic)
        name = dotted(node.func)
        if name:
            self.calls.add(name)
        for text in literal_programs(node):
            self.nested(text, isolated=False)
        for used in query_names(node):
            self.use(used)
        self.modules |= imported_modules([node])
        if unpickles(node):
            self.unpickles = True
        if name in ("setattr", "delattr") and node.args:
            self.touch(root_name(node.args[0]))
        for key in updated_names(node):
            self.bind(key, certain=False)
        if isinstance(node.func, ast.Attribute) and self._changes_receiver(node.func.attr, node):
            self.touch(root_name(node.func.value))
        if name in ("model.load_state_dict", "load_state_dict") or name.endswith(".load_state_dict"):
            # Weights by key: no class of the session is looked up by name.
            before = self.unpickles
            self.children(node)
            self.unpickles = before
            return
        self.children(node)

    @staticmethod
    def _changes_receiver(attr: str, node: ast.Call) -> bool:
        return (
            attr in _CALLABLE_METHODS_THAT_CHANGE
            or (attr.endswith("_") and not attr.endswith("__"))
            or any(k.arg == "inplace" for k in node.keywords)
        )

    def children(self, node: ast.AST) -> None:
        """Visits below `node`, noting a dynamic access or a namespace key at `node` itself."""
        key = namespace_key(node)
        if key is not None:
            if isinstance(getattr(node, "ctx", None), ast.Store):
                self.bind(key)
            else:
                self.use(key)
            if isinstance(node, ast.Call):
                for part in (*node.args[1:], *node.keywords):
                    self.visit(part)
                if getattr(node.func, "attr", "") == "setdefault":
                    self.bind(key, certain=False)
            return
        self.dynamic = self.dynamic or dynamic_reason(node, in_code=False)
        super().generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Compare)):
            self.children(node)
        else:
            super().generic_visit(node)

    def touch(self, name: str) -> None:
        """The object of `name` may change in place."""
        if name and not any(name in s.names for s in self.scopes):
            self.touched.add(name)

    def _magic(self, magic: MagicCall) -> None:
        for text in interpolated_expressions(magic.line):
            self.nested(text, isolated=True)
        self.installs = self.installs or any(map(is_install, magic.commands))
        if may_be_persons(magic.name):
            self.use(magic.name)
        if magic.body and magic.name in BODY_IS_PYTHON:
            self.nested(magic.body, isolated=BODY_IS_PYTHON[magic.name])
        if magic.name == "!":
            self.shell.append(magic.line)
        elif magic.name in STATEMENT_MAGICS:
            self._run_by_magic(magic, isolated=False)
        elif magic.name in ISOLATED_MAGICS:
            self._run_by_magic(magic, isolated=True)
        elif magic.name in HELP_MAGICS:
            self.nested(magic.line.split(".")[0], isolated=True)
        elif magic.name == "pylab":
            self.modules |= {"numpy", "matplotlib.pyplot"}
        elif magic.name == "xdel":
            self._delete(magic.line.split()[-1] if magic.line.split() else "")
        elif magic.name in FORGETTING_MAGICS:
            self.rebinds_all = True
            self.forgets = self.forgets or (magic.name == "reset" and empties_namespace(magic.line))
        elif magic.name == HISTORY_MAGIC:
            self._restored(magic.line)
        elif magic.name not in QUIET_MAGICS:
            # An unknown magic may take names of the session as its arguments.
            words = {word for word in magic.line.split() if word.isidentifier()}
            for word in sorted(words | token_names(magic.line)):
                self.use(word)

    def _restored(self, line: str) -> None:
        """An older value, of which nothing is known but that its name was defined in this session before."""
        try:
            asked = parse_history_line(line)
        except InvalidArgument:
            return
        self.rebinds_all = self.rebinds_all or asked.command == "checkout"
        source = ast.Name(id=asked.names[0], ctx=ast.Load()) if asked.target else None
        for name in asked.binds:
            self.bind(name, expr=source, certain=False)

    def _run_by_magic(self, magic: MagicCall, *, isolated: bool) -> None:
        """The Python that a magic's line ends in; options of it that are not known here stand before, as words."""
        if not self.nested(without_options(magic.line), isolated=isolated):
            for name in sorted(token_names(magic.line)):
                self.use(name)

    def nested(self, text: str, *, isolated: bool) -> bool:
        """Python inside a string that runs here, nothing and False if it does not parse; `isolated`: its bindings do
        not stay."""
        raise AssertionError("the statement visitor answers this")
