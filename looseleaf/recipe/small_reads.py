"""Does a cell only *read* small values that live on a GPU? Then the kernel answers, without one (design §3).

Reading gives a number, text, a host copy, or tells a plain fact: `loss.item()`, `[v.cpu() for v in losses]`,
`print(metric["rows"])`, `len(x)`, `f"{loss:.2f}"`, `losses[-1]`. Computing with a value, storing it or handing it to
code that nobody follows is a use of the GPU: `t.mean().item()` needs one, `t.cpu().mean()` does not.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from typing import Final

from looseleaf.recipe.cues import (
    PASSING_CALLS,
    PASSING_METHODS,
    READING_CALLS,
    READING_METHODS,
    SAME_VALUE_METHODS,
    VIEW_ATTRS,
    is_host_attr,
)
from looseleaf.recipe.tree import UNPARSEABLE, Handlers, nodes_of

_SAME: Final = SAME_VALUE_METHODS | PASSING_METHODS


def only_reads(tree: ast.Module, names: Collection[str]) -> bool:
    """Whether all that `tree` does with the values of `names` is to read them. Never raises."""
    return _followed(tree, names) is not None


def reads_by_name(tree: ast.Module, names: Collection[str]) -> bool:
    """Whether `only_reads`, and that of the variables themselves: of what they hold nobody knows what it is."""
    reads = _followed(tree, names)
    return reads is not None and not reads.of_parts


def _followed(tree: ast.Module, names: Collection[str]) -> _Reads | None:
    reads = _Reads(names)
    try:
        reads.body(tree.body)
    except (_UsedError, *UNPARSEABLE):
        return None
    return reads


class _UsedError(Exception):
    """More than a reading."""


class _Reads:
    """Follows device values through one cell. An expression's result is True if it is, or holds, one of them."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self.device = set(names)
        self.of_parts = False

    # Statements.

    def body(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            method = _DO[type(statement)]
            if method is not None:
                method(self, statement)
            else:
                self.unknown(statement)

    def unknown(self, node: ast.AST) -> bool:
        """Code whose rules are not here may have nothing to do with them; gives something on the host."""
        if any(isinstance(n, ast.Name) and n.id in self.device for n in nodes_of(node)):
            raise _UsedError
        return False

    def host(self, node: ast.AST | None) -> None:
        """`node` must give something on the host."""
        if isinstance(node, ast.expr) and self.eval(node):
            raise _UsedError

    def do_Expr(self, node: ast.Expr) -> None:
        # A bare value is shown.
        self.eval(node.value)

    def do_Assign(self, node: ast.Assign) -> None:
        self.host(node.value)
        for target in node.targets:
            self.target(target, device=False)

    def do_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.host(node.value)
        self.target(node.target, device=False)

    def do_AugAssign(self, node: ast.AugAssign) -> None:
        self.unknown(node.target)
        self.host(node.value)

    def target(self, target: ast.expr, *, device: bool) -> None:
        """Binds what `target` names; storing into anything that has to do with them is a use."""
        if isinstance(target, ast.Name):
            (self.device.add if device else self.device.discard)(target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self.target(element, device=device)
        elif isinstance(target, ast.Starred):
            self.target(target.value, device=device)
        else:
            if device:
                raise _UsedError
            self.unknown(target)

    def _items(self, target: ast.expr, items: ast.expr) -> None:
        """Binds `target` to what an iteration over `items` gives."""
        device = self.eval(items)
        self.of_parts = self.of_parts or device
        self.target(target, device=device)
        call = items.func if isinstance(items, ast.Call) else None
        numbered = isinstance(call, ast.Name) and call.id == "enumerate"
        keyed = isinstance(call, ast.Attribute) and call.attr == "items"
        if (numbered or keyed) and isinstance(target, ast.Tuple) and target.elts:
            self.target(target.elts[0], device=False)

    def do_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.device.discard(target.id)
            else:
                self.unknown(target)

    def do_If(self, node: ast.If | ast.While) -> None:
        self.eval(node.test)
        # A name that one way bound to something else still is what it was on the other.
        before = set(self.device)
        self.body(node.body)
        after, self.device = self.device, set(before)
        self.body(node.orelse)
        self.device |= after

    do_While = do_If

    def do_For(self, node: ast.For) -> None:
        before = set(self.device)
        self._items(node.target, node.iter)
        # Twice: what a turn binds the next one reads.
        for _ in range(2):
            self.body(node.body)
            self.device |= before
        self.body(node.orelse)
        self.device |= before

    def do_With(self, node: ast.With) -> None:
        for item in node.items:
            self.host(item.context_expr)
            if item.optional_vars is not None:
                self.target(item.optional_vars, device=False)
        self.body(node.body)

    def do_Assert(self, node: ast.Assert) -> None:
        self.eval(node.test)
        if node.msg is not None:
            self.eval(node.msg)

    def do_Pass(self, node: ast.stmt) -> None:
        """Nothing."""

    do_Import = do_ImportFrom = do_Break = do_Continue = do_Pass

    # Expressions.

    def eval(self, node: ast.expr) -> bool:
        method = _ON[type(node)]
        return method(self, node) if method is not None else self.unknown(node)

    def any(self, nodes: Iterable[ast.expr | None]) -> bool:
        """Each is looked at, also behind the first that is one."""
        found = False
        for node in nodes:
            if node is not None and self.eval(node):
                found = True
        return found

    def on_Name(self, node: ast.Name) -> bool:
        return node.id in self.device

    def on_Constant(self, node: ast.Constant) -> bool:
        return False

    def on_Attribute(self, node: ast.Attribute) -> bool:
        if not self.eval(node.value):
            return False
        owner = node.value
        if isinstance(owner, ast.Attribute) and owner.attr == "device" and node.attr in ("type", "index"):
            return False
        if node.attr == "device":
            # Handed on it says where to compute; of a variable the device walk knows that, of its parts it does not.
            return not (isinstance(node.value, ast.Name) and node.value.id in self._names)
        if is_host_attr(node.attr):
            return False
        if node.attr in VIEW_ATTRS:
            return True
        raise _UsedError

    def on_Subscript(self, node: ast.Subscript) -> bool:
        self.host(node.slice)
        device = self.eval(node.value)
        self.of_parts = self.of_parts or device
        return device

    def on_Slice(self, node: ast.Slice) -> bool:
        return self.any([node.lower, node.upper, node.step])

    def on_Call(self, node: ast.Call) -> bool:
        if isinstance(node.func, ast.Attribute):
            if self.eval(node.func.value):
                return self._method(node, node.func.attr)
            if node.func.attr == "format" and isinstance(node.func.value, ast.Constant):
                self._arguments(node)
                return False
        name = node.func.id if isinstance(node.func, ast.Name) and node.func.id not in self.device else ""
        if name in READING_CALLS:
            self._arguments(node)
            return False
        if name in PASSING_CALLS:
            device = self._arguments(node)
            self.of_parts = self.of_parts or device
            return device
        self.host(node.func)
        if self._arguments(node):
            raise _UsedError
        return False

    def _arguments(self, node: ast.Call) -> bool:
        return self.any([*node.args, *(keyword.value for keyword in node.keywords)])

    def _method(self, node: ast.Call, attr: str) -> bool:
        """A method of one of them."""
        if attr in _SAME or attr in READING_METHODS or _to_host(node, attr):
            if self._arguments(node):
                raise _UsedError
            self.of_parts = self.of_parts or attr in PASSING_METHODS
            return attr in _SAME
        raise _UsedError

    def on_BinOp(self, node: ast.BinOp) -> bool:
        left, right = self.eval(node.left), self.eval(node.right)
        is_text = isinstance(node.left, (ast.Constant, ast.JoinedStr)) and isinstance(node.op, ast.Mod)
        if left or (right and not is_text):
            raise _UsedError
        return False

    def on_UnaryOp(self, node: ast.UnaryOp) -> bool:
        if self.eval(node.operand) and not isinstance(node.op, ast.Not):
            raise _UsedError
        return False

    def on_Compare(self, node: ast.Compare) -> bool:
        looks = all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)
        # `"loss" in metric`: a key.
        asks = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        asks = asks and all(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops)
        sides = [node.left, *node.comparators]
        asks = asks or all(isinstance(s, ast.Attribute) and s.attr == "device" for s in sides if self.eval(s))
        if self.any(sides) and not (looks or asks):
            raise _UsedError
        return False

    def on_JoinedStr(self, node: ast.JoinedStr) -> bool:
        self.any(node.values)
        return False

    def on_FormattedValue(self, node: ast.FormattedValue) -> bool:
        self.any([node.value, node.format_spec])
        return False

    def on_Tuple(self, node: ast.Tuple | ast.List | ast.Set) -> bool:
        return self.any(node.elts)

    on_List = on_Set = on_Tuple

    def on_Dict(self, node: ast.Dict) -> bool:
        return self.any([*node.keys, *node.values])

    def on_BoolOp(self, node: ast.BoolOp) -> bool:
        return self.any(node.values)

    def on_IfExp(self, node: ast.IfExp) -> bool:
        self.eval(node.test)
        return self.any([node.body, node.orelse])

    def on_Starred(self, node: ast.Starred) -> bool:
        return self.eval(node.value)

    def on_NamedExpr(self, node: ast.NamedExpr) -> bool:
        self.host(node.value)
        self.device.discard(node.target.id)
        return False

    def on_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> bool:
        return self._comprehension(node.generators, [node.elt])

    on_SetComp = on_GeneratorExp = on_ListComp

    def on_DictComp(self, node: ast.DictComp) -> bool:
        return self._comprehension(node.generators, [node.key, node.value])

    def _comprehension(self, generators: Iterable[ast.comprehension], results: list[ast.expr]) -> bool:
        outside = self.device
        self.device = set(outside)
        for generator in generators:
            self._items(generator.target, generator.iter)
            self.any(generator.ifs)
        found = self.any(results)
        self.device = outside
        return found


def _to_host(node: ast.Call, attr: str) -> bool:
    """`x.to("cpu")`."""
    places = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "device")]
    return attr == "to" and len(places) == 1 and isinstance(places[0], ast.Constant) and places[0].value == "cpu"


_DO = Handlers(_Reads, "do_")
_ON = Handlers(_Reads, "on_")
