"""Expressions over abstract values: plain flags are computed, residency flows along."""

from __future__ import annotations

import ast
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final

from looseleaf.recipe.cues import is_device_tensor_type, is_host_attr, is_there
from looseleaf.recipe.tree import Handlers, operands
from looseleaf.recipe.values import UNKNOWN, Value, join, known, made_of

# Longer texts and containers are not computed: flags are short.
FLAG_ITEMS_MAX: Final = 256
FLAG_CHARS_MAX: Final = 256

_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.eq, ast.IsNot: operator.ne,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


class StaticFlags(ABC):
    """The part of the device walk that evaluates expressions other than calls."""

    computes: bool
    _on: ClassVar[Handlers]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._on = Handlers(cls, "on_")

    @abstractmethod
    def load(self, name: str) -> Value:
        """The value of `name` where it is used."""

    @abstractmethod
    def bind(self, name: str, value: Value) -> None:
        """Binds `name` in the innermost frame."""

    @abstractmethod
    def target(self, target: ast.expr, value: Value) -> None:
        """Binds an assignment's target."""

    @abstractmethod
    def cue(self, text: str, confidence: float) -> None:
        """Notes a use of the GPU."""

    @abstractmethod
    def on_Call(self, node: ast.Call) -> Value:
        """The value of a call."""

    @abstractmethod
    def spend(self) -> bool:
        """Takes one step of the walk's budget; False if it is used up."""

    @abstractmethod
    def enter(self) -> None:
        """Opens a frame, as a comprehension does."""

    @abstractmethod
    def leave(self) -> None:
        """Closes the innermost frame."""

    def eval(self, node: ast.expr) -> Value:
        """What is known of `node`'s value; follows everything in it that may use the GPU."""
        if not self.spend():
            return UNKNOWN
        method = self._on[type(node)]
        return self.mixed(node) if method is None else method(self, node)

    def mixed(self, node: ast.AST) -> Value:
        """A value made of its parts: resident if one of them is."""
        resident = False
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                resident = self.eval(child).resident or resident
            elif isinstance(child, (ast.keyword, ast.FormattedValue)):
                resident = self.eval(child.value).resident or resident
        return made_of(resident)

    def on_Constant(self, node: ast.Constant) -> Value:
        value = node.value
        if isinstance(value, str) and len(value) > FLAG_CHARS_MAX:
            return UNKNOWN
        return known(value) if value is None or isinstance(value, (bool, int, float, str)) else UNKNOWN

    def on_Name(self, node: ast.Name) -> Value:
        return self.load(node.id)

    def on_Attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.eval(node.value), node.attr)

    def attribute(self, owner: Value, attr: str) -> Value:
        """What is known of `owner.attr`."""
        if attr in owner.attrs:
            return owner.attrs[attr]
        if owner.path:
            path = f"{owner.path}.{attr}"
            if attr in ("has_mps", "has_cuda"):
                return known(is_there(path))
            if is_device_tensor_type(path):
                self.cue(f"`{path}` makes GPU tensors", 0.95)
                return Value(path=path, resident=True)
            return Value(path=path, armed=owner.armed)
        if attr == "device":
            if owner.resident:
                return known("cuda")
            return known("cpu") if owner.exact else UNKNOWN
        if attr == "type" and owner.known and isinstance(owner.flag, str):
            # `torch.device("cuda:0").type`; devices are followed as their strings.
            return known(owner.flag.partition(":")[0])
        resident = owner.resident and not is_host_attr(attr)
        return Value(resident=resident, armed=owner.armed, family=owner.family if resident else "")

    def on_Subscript(self, node: ast.Subscript) -> Value:
        if _reads_loss(node):
            self.eval(node.value)
            return UNKNOWN
        owner, key = self.eval(node.value), self.eval(node.slice)
        if owner.known and key.known and isinstance(owner.flag, (dict, list, tuple, str)):
            try:
                return known(owner.flag[key.flag])
            except (KeyError, IndexError, TypeError):
                return UNKNOWN
        return Value(resident=owner.resident or key.resident, armed=owner.armed, path=owner.path, family=owner.family)

    def on_BoolOp(self, node: ast.BoolOp) -> Value:
        decides = isinstance(node.op, ast.Or)
        values: list[Value] = []
        for part in node.values:
            value = self.eval(part)
            values.append(value)
            if value.known and bool(value.flag) == decides:
                # With something unknown before it only the truth of the outcome is known, not the value.
                return value if all(v.known for v in values) else known(decides)
        return values[-1] if all(v.known for v in values) else Value(resident=any(v.resident for v in values))

    def on_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.eval(node.operand)
        if value.known and isinstance(node.op, ast.Not):
            return known(not value.flag)
        if value.known and isinstance(node.op, ast.USub) and isinstance(value.flag, (int, float)):
            return known(-value.flag)
        return made_of(value.resident)

    def on_BinOp(self, node: ast.BinOp) -> Value:
        parts = operands(node)
        result = self.eval(parts[0][1])
        for op, operand in parts[1:]:
            result = self._combined(result, op, self.eval(operand))
        return result

    def _combined(self, left: Value, op: ast.operator | None, right: Value) -> Value:
        self.computes = self.computes or left.resident or right.resident
        if isinstance(op, ast.BitOr) and isinstance(left.flag, dict) and isinstance(right.flag, dict):
            return known({**left.flag, **right.flag})
        if (
            left.known
            and right.known
            and isinstance(op, ast.Add)
            and isinstance(left.flag, str)
            and isinstance(right.flag, str)
        ):
            text = left.flag + right.flag
            return known(text) if len(text) <= FLAG_CHARS_MAX else UNKNOWN
        return made_of(left.resident or right.resident)

    def on_Compare(self, node: ast.Compare) -> Value:
        values = [self.eval(node.left), *(self.eval(c) for c in node.comparators)]
        self.computes = self.computes or any(v.resident for v in values)
        if len(values) == 2 and all(v.known for v in values):
            try:
                result = bool(_COMPARE[type(node.ops[0])](values[0].flag, values[1].flag))
            except TypeError:
                return UNKNOWN
            # Of a dictionary some entries are known, seldom all.
            partly = isinstance(values[1].flag, dict) and isinstance(node.ops[0], (ast.In, ast.NotIn))
            return UNKNOWN if partly and result == isinstance(node.ops[0], ast.NotIn) else known(result)
        return made_of(any(v.resident for v in values))

    def on_IfExp(self, node: ast.IfExp) -> Value:
        test = self.eval(node.test)
        if test.known:
            return self.eval(node.body if test.flag else node.orelse)
        return join(self.eval(node.body), self.eval(node.orelse))

    def on_JoinedStr(self, node: ast.JoinedStr) -> Value:
        parts = []
        for part in node.values:
            value = self.eval(part.value if isinstance(part, ast.FormattedValue) else part)
            parts.append(str(value.flag) if value.known else None)
        if any(p is None for p in parts):
            return UNKNOWN
        text = "".join(p for p in parts if p is not None)
        return known(text) if len(text) <= FLAG_CHARS_MAX else UNKNOWN

    def on_Dict(self, node: ast.Dict) -> Value:
        keys = [self.eval(k) if k is not None else UNKNOWN for k in node.keys]
        values = [self.eval(v) for v in node.values]
        flags: dict[object, object] = {}
        for key, value in zip(keys, values, strict=True):
            # Unknown entries are left out: a GPU choice among the known ones still tells.
            if key.known and value.known and isinstance(key.flag, (str, int)) and len(flags) < FLAG_ITEMS_MAX:
                flags[key.flag] = value.flag
        for spread, value in zip(node.keys, values, strict=True):
            if spread is None and isinstance(value.flag, dict):
                flags = {**value.flag, **flags}
        return Value(
            known=bool(flags) or not node.keys,
            flag=flags,
            resident=any(v.resident for v in values),
            armed=any(v.armed for v in values),
        )

    def on_List(self, node: ast.List | ast.Tuple) -> Value:
        values = [self.eval(e) for e in node.elts]
        if all(v.known for v in values) and len(values) <= FLAG_ITEMS_MAX:
            flags = [v.flag for v in values]
            return known(flags if isinstance(node, ast.List) else tuple(flags))
        return made_of(any(v.resident for v in values), armed=any(v.armed for v in values))

    def on_Tuple(self, node: ast.Tuple) -> Value:
        return self.on_List(node)

    def on_Starred(self, node: ast.Starred) -> Value:
        return self.eval(node.value)

    def on_Await(self, node: ast.Await) -> Value:
        return self.eval(node.value)

    def on_NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.eval(node.value)
        self.bind(node.target.id, value)
        return value

    def on_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        return self._comprehension(node.generators, [node.elt])

    on_SetComp = on_ListComp
    on_GeneratorExp = on_ListComp

    def on_DictComp(self, node: ast.DictComp) -> Value:
        return self._comprehension(node.generators, [node.key, node.value])

    def _comprehension(self, generators: list[ast.comprehension], results: list[ast.expr]) -> Value:
        self.enter()
        for generator in generators:
            items = self.eval(generator.iter)
            self.target(generator.target, items.part())
            for condition in generator.ifs:
                self.eval(condition)
        values = [self.eval(result) for result in results]
        self.leave()
        return made_of(any(v.resident for v in values), armed=any(v.armed for v in values))


def _reads_loss(node: ast.Subscript) -> bool:
    """`loss.data[0]`, as the first versions of torch read a number."""
    owner, key = node.value, node.slice
    return (
        isinstance(owner, ast.Attribute)
        and owner.attr == "data"
        and isinstance(owner.value, ast.Name)
        and "loss" in owner.value.id.lower()
        and isinstance(key, ast.Constant)
        and key.value == 0
    )
