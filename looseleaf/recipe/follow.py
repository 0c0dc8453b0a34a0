"""Functions, methods and classes of the session in the device walk: followed at their calls, with their arguments."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from looseleaf.recipe.cues import canonical, is_hf_trainer, rule_of
from looseleaf.recipe.dynamic import dotted
from looseleaf.recipe.facts import CodeFacts
from looseleaf.recipe.families import family_of
from looseleaf.recipe.flags import StaticFlags
from looseleaf.recipe.scopes import CodeNode
from looseleaf.recipe.values import UNKNOWN, Value, join, made_of

# Calls of session code within calls that are followed.
CALL_DEPTH_MAX: Final = 8
# Expressions and calls that one walk looks at; what lies beyond counts as not using the GPU.
WALK_STEPS_MAX: Final = 20_000

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Arguments:
    """A call's evaluated arguments; `spread` holds values of unknown keys."""

    args: tuple[Value, ...]
    kwargs: Mapping[str, Value]
    nodes: tuple[ast.expr, ...] = ()
    spread: tuple[Value, ...] = field(default=())

    @property
    def all(self) -> tuple[Value, ...]:
        return (*self.args, *self.kwargs.values(), *self.spread)

    @property
    def resident(self) -> bool:
        return any(v.resident for v in self.all)


class CodeFollower(StaticFlags):
    """The part of the device walk that follows code of the session.

    `computes`: a device value is computed with, not only held. `asks`: a question about the GPU is asked.
    `default_gpu`: new tensors are made on the GPU.
    """

    # Whether the session works with a GPU, and whether with a library that would use one.
    uses_gpu: Callable[[], bool]
    uses_framework: Callable[[], bool]

    def __init__(self) -> None:
        self.computes = False
        self.asks = False
        self.default_gpu = False
        self.frames: list[dict[str, Value]] = [{}]
        self.active: list[CodeFacts] = []
        self._returned: list[Value] = []
        self._nested: set[int] = set()
        self._steps_left = WALK_STEPS_MAX

    @abstractmethod
    def name(self, name: str) -> Value:
        """The value of `name`, without counting as a use."""

    @abstractmethod
    def rebind(self, name: str, value: Value) -> None:
        """`name`, wherever it is bound, now stands for `value`."""

    @abstractmethod
    def body(self, statements: Sequence[ast.stmt]) -> None:
        """Follows statements in order."""

    @abstractmethod
    def star_path(self, name: str) -> str:
        """The path that an unresolved name may have come by."""

    def spend(self) -> bool:
        self._steps_left -= 1
        return self._steps_left > 0

    def enter(self) -> None:
        self.frames.append({})

    def leave(self) -> None:
        self.frames.pop()

    def returns(self, value: Value) -> None:
        """The code that is followed ends or yields with `value`."""
        if self._returned:
            old = self._returned[-1]
            self._returned[-1] = value if old is UNKNOWN else join(old, value)

    def on_Yield(self, node: ast.Yield | ast.YieldFrom) -> Value:
        if node.value is not None:
            self.returns(made_of(self.eval(node.value).resident))
        return UNKNOWN

    on_YieldFrom = on_Yield

    def on_Lambda(self, node: ast.Lambda) -> Value:
        return self.code_value(node)

    def code_value(self, node: CodeNode, attrs: Mapping[str, Value] | None = None) -> Value:
        """The value of a definition that the walk meets."""
        name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
        kind: Literal["function", "class"] = "class" if isinstance(node, ast.ClassDef) else "function"
        code = _met_code(name, kind, node)
        if len(self.frames) > 1:
            self._nested.add(id(node))
        return Value(codes=(code,), attrs=dict(attrs or {}))

    def decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, value: Value) -> Value:
        """`value` after its decorators: one that compiles for the GPU makes its calls GPU work."""
        for decorator in node.decorator_list:
            applied = self.eval(decorator)
            rule = rule_of(applied.path) if applied.path else None
            if applied.armed or (rule is not None and rule.effect in ("transform", "armed")):
                value = replace(value, armed=True)
        return value

    def call_code(self, code: CodeFacts, given: Arguments, self_value: Value | None = None) -> Value:
        """Follows `code` with its arguments; recursion and depth end the walk, not the analysis."""
        node = code.node
        if len(self.active) >= CALL_DEPTH_MAX or any(c.node is node for c in self.active) or not self.spend():
            return made_of(given.resident)
        if isinstance(node, ast.ClassDef):
            return self._instance(code, given)
        if not isinstance(node, _Function):
            return made_of(given.resident)
        result, _ = self._follow(code, node, given, self_value)
        return result

    def _follow(
        self, code: CodeFacts, node: _Function, given: Arguments, self_value: Value | None
    ) -> tuple[Value, Value]:
        """The result of a call, and `self` after it."""
        args = given.args if self_value is None else (self_value, *given.args)
        frame = self._parameters(node.args, args, given.kwargs)
        kept = self.frames
        self.frames = [*kept, frame] if id(node) in self._nested else [kept[0], frame]
        self.active.append(code)
        self._returned.append(UNKNOWN)
        if isinstance(node, ast.Lambda):
            result = self.eval(node.body)
            self._returned.pop()
        else:
            self.body(node.body)
            result = self._returned.pop()
        self.active.pop()
        first = [*node.args.posonlyargs, *node.args.args]
        after = self.frames[-1].get(first[0].arg, UNKNOWN) if first else UNKNOWN
        # Branches copy frames: the module's own is carried back.
        kept[0] = self.frames[0]
        self.frames = kept
        return result, after

    def _parameters(self, spec: ast.arguments, args: Sequence[Value], kwargs: Mapping[str, Value]) -> dict[str, Value]:
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        frame = {a.arg: UNKNOWN for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}
        for name, default in zip(reversed(names), reversed(spec.defaults), strict=False):
            frame[name] = self.eval(default)
        for arg, keyword_default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            if keyword_default is not None:
                frame[arg.arg] = self.eval(keyword_default)
        frame.update(zip(names, args, strict=False))
        frame.update({name: value for name, value in kwargs.items() if name in frame})
        if spec.vararg is not None:
            frame[spec.vararg.arg] = Value(resident=any(v.resident for v in args[len(names) :]))
        if spec.kwarg is not None:
            frame[spec.kwarg.arg] = Value(resident=any(v.resident for k, v in kwargs.items() if k not in frame))
        return frame

    def _instance(self, code: CodeFacts, given: Arguments) -> Value:
        node = code.node
        assert isinstance(node, ast.ClassDef)
        base = self._library_base(node)
        made = Value(cls=(code,), armed=bool(base), family=family_of(canonical(base)))
        if base and is_hf_trainer(canonical(base)):
            self.cue(f"a `{code.name}` moves its model to the GPU", 0.8)
            made = replace(made, resident=True)
        for method in ("__init__", "setup", "__post_init__"):
            for found in self._find_method((code,), method):
                target = found.node
                if isinstance(target, (ast.FunctionDef, ast.AsyncFunctionDef)) and len(self.active) < CALL_DEPTH_MAX:
                    if not any(c.node is target for c in self.active):
                        _, made = self._follow(found, target, given, made)
        return replace(made, resident=made.resident or given.resident, cls=(code,))

    def _library_base(self, node: ast.ClassDef) -> str:
        """The base class by which instances use the GPU when they work, by its path; empty without one."""
        for base in node.bases:
            name = dotted(base)
            first, _, rest = name.partition(".")
            value = self.name(first)
            path = ".".join(filter(None, (value.path, rest))) if value.path else ""
            rule = rule_of(path) if path else None
            if rule is not None and rule.effect in ("resident", "armed"):
                return path
            for code in value.codes:
                if isinstance(code.node, ast.ClassDef) and code.node is not node:
                    found = self._library_base(code.node)
                    if found:
                        return found
        return ""

    def _find_method(self, classes: Sequence[CodeFacts], attr: str, depth: int = 0) -> list[CodeFacts]:
        found = []
        for code in classes:
            node = code.node
            if not isinstance(node, ast.ClassDef) or depth > CALL_DEPTH_MAX:
                continue
            own = [n for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == attr]
            if own:
                found.append(_met_code(f"{code.name}.{attr}", "function", own[-1]))
                continue
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id != code.name:
                    found += self._find_method(self.name(base.id).codes, attr, depth + 1)
        return found

    def _run_methods(self, receiver: Value, attrs: Sequence[str], given: Arguments, *, name: str = "") -> Value:
        """Calls the first of `attrs` that the receiver's class has; `self` after it is what the name `name` has."""
        for attr in attrs:
            methods = self._find_method(receiver.cls, attr)
            for code in methods[:1]:
                node = code.node
                assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                static, of_class = (is_decorated(node, kind) for kind in ("staticmethod", "classmethod"))
                if len(self.active) >= CALL_DEPTH_MAX or any(c.node is node for c in self.active):
                    break
                first = None if static else Value(codes=receiver.cls) if of_class else receiver
                result, after = self._follow(code, node, given, first)
                if name and first is receiver and after.cls and name in self.frames[-1]:
                    self.frames[-1][name] = after
                return replace(result, resident=result.resident or (receiver.resident and attr != "__init__"))
        return made_of(receiver.resident or given.resident)


def is_decorated(node: ast.FunctionDef | ast.AsyncFunctionDef, decorator: str) -> bool:
    """Whether a method has the decorator of this name."""
    return any(dotted(found) == decorator for found in node.decorator_list)


def _met_code(name: str, kind: Literal["function", "class"], node: CodeNode) -> CodeFacts:
    """Code that the walk itself meets; it follows the node and needs no names."""
    none: frozenset[str] = frozenset()
    return CodeFacts(name, kind, reads=none, writes=none, imports=none, carries=none, dynamic="", node=node)
