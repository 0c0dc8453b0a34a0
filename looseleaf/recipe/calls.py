"""What calls do in the device walk: library rules, device methods, builtins."""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import replace
from typing import Final

from looseleaf.recipe.cues import HOST_METHODS, Rule, is_device_word, rule_of, shell_cue
from looseleaf.recipe.dynamic import dotted
from looseleaf.recipe.follow import Arguments, CodeFollower, is_decorated
from looseleaf.recipe.magics import magic_call
from looseleaf.recipe.values import UNKNOWN, Value, chooses_gpu, holds_gpu_choice, is_gpu_name, join, known

# A call's name in a reason.
LABEL_CHARS_MAX: Final = 40

_BUILTINS: Final = frozenset(dir(builtins))
# Builtins and packages whose result holds what they are given.
_PASSING_BUILTINS: Final = frozenset(
    [
        "zip",
        "enumerate",
        "list",
        "tuple",
        "set",
        "dict",
        "next",
        "iter",
        "reversed",
        "sorted",
        "max",
        "min",
        "abs",
        "sum",
        "map",
        "filter",
        "getattr",
        "vars",
        "frozenset",
    ]
)
_PASSING_PACKAGES: Final = frozenset({"copy", "functools", "itertools", "tqdm", "collections", "random"})
# Libraries that take their device from parameters and use it when they train.
_CONFIGURED: Final = frozenset({"xgboost", "lightgbm", "catboost", "pytorch_lightning", "lightning", "cuml"})
# Without `map_location` they load to the device that the file's tensors were on.
_LOADS: Final = frozenset({"torch.load", "torch.jit.load", "torch.serialization.load"})
_WORKING_METHOD: Final = re.compile(
    r"^(fit|train|predict|evaluate|eval|test|validate|prepare|score|transform|generate|encode|run|tune|lr_find|learn)"
)
_CALLING_METHODS: Final = frozenset(
    ["apply", "map", "applymap", "optimize", "submit", "starmap", "minimize", "run", "start", "launch", "timeit"]
)


class CallRules(CodeFollower):
    """The part of the device walk that evaluates calls."""

    # Calls.

    def on_Call(self, node: ast.Call) -> Value:
        if magic_call(node) is not None:
            return self._magic(node)
        func = node.func
        if isinstance(func, ast.Attribute):
            receiver = self.eval(func.value)
            arguments = self._arguments(node)
            if not receiver.path:
                return self._method(node, func.attr, receiver, arguments)
            return self._callee(node, self.attribute(receiver, func.attr), arguments)
        if isinstance(func, ast.Name):
            callee = self.load(func.id)
            arguments = self._arguments(node)
            if callee == UNKNOWN and func.id in _BUILTINS:
                return self._builtin(func.id, arguments)
            if callee == UNKNOWN and self.star_path(func.id):
                callee = Value(path=self.star_path(func.id))
            return self._callee(node, callee, arguments)
        callee = self.eval(func)
        return self._callee(node, callee, self._arguments(node))

    def _arguments(self, node: ast.Call) -> Arguments:
        kwargs: dict[str, Value] = {}
        spread: list[Value] = []
        for keyword in node.keywords:
            value = self.eval(keyword.value)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif value.known and isinstance(value.flag, dict):
                kwargs.update({str(k): known(v) for k, v in value.flag.items()})
            else:
                spread.append(value)
        return Arguments(tuple(self.eval(a) for a in node.args), kwargs, tuple(node.args), tuple(spread))

    def _magic(self, node: ast.Call) -> Value:
        magic = magic_call(node)
        assert magic is not None
        if magic.name == "!":
            rule = shell_cue(magic.line)
            if rule is not None:
                self.cue("a shell line starts GPU work", rule.confidence)
        return UNKNOWN

    def _callee(self, node: ast.Call, callee: Value, given: Arguments) -> Value:
        if callee.armed:
            self.cue(f"`{_label(node)}` runs on the GPU", 0.85)
            return Value(resident=True)
        if callee.codes:
            results = [self.call_code(code, given) for code in callee.codes]
            result = results[0]
            for other in results[1:]:
                result = join(result, other)
            return result
        if callee.cls:
            return self._run_methods(callee, ("__call__", "forward", "call"), given)
        if callee.resident and not callee.path:
            return Value(resident=True)
        return self._library(node, callee.path, given)

    def _library(self, node: ast.Call, path: str, given: Arguments) -> Value:
        rule = rule_of(path) if path else None
        if path == "functools.partial" and given.args:
            return replace(given.args[0], known=False, flag=None)
        if rule is not None and rule.effect in ("query", "host"):
            return _answer(path, rule, given)
        if rule is not None and rule.effect == "transform":
            return self._transform(path, given)
        configured = path.partition(".")[0] in _CONFIGURED
        choice = self._gpu_choice(given)
        if rule is not None and rule.effect == "armed":
            on_cpu = any(v.known and v.flag == "cpu" for v in given.kwargs.values())
            return UNKNOWN if on_cpu else Value(armed=True)
        if configured and choice:
            if path.rpartition(".")[2][:1].isupper():
                return Value(armed=True)
            self.cue(f"`{_label(node)}` is told to use the GPU", 0.9)
            return UNKNOWN
        if rule is not None and rule.effect in ("op", "resident"):
            self.cue(f"`{_label(node)}` uses the GPU", rule.confidence)
            return Value(resident=True)
        if choice:
            self.cue(f"`{_label(node)}` is told to use {choice}", 0.9)
            return Value(resident=True)
        if path in _LOADS and not _says_where(given) and self.uses_gpu():
            self.cue(f"`{_label(node)}` loads to the device that was saved from", 0.6)
            return Value(resident=True)
        if self._unknown_device(node, given):
            self.cue(f"`{_label(node)}` is given a device", 0.6)
            return Value(resident=True)
        return Value(resident=given.resident, armed=any(v.armed for v in given.args))

    def _gpu_choice(self, given: Arguments) -> str:
        """The argument that asks for a GPU, as text for people; empty without one."""
        for key, value in given.kwargs.items():
            if value.known and (chooses_gpu(key, value.flag) or holds_gpu_choice(value.flag)):
                return f"`{key}={value.flag!r}`" if isinstance(value.flag, (str, bool)) else f"`{key}`"
        for value in given.args:
            if value.known and (is_gpu_name(value.flag) or holds_gpu_choice(value.flag)):
                return f"`{value.flag!r}`" if isinstance(value.flag, str) else "its parameters"
        return ""

    def _unknown_device(self, node: ast.Call, given: Arguments) -> bool:
        device = given.kwargs.get("device")
        if device is None or device.known:
            return False
        return any(k.arg == "device" and is_device_word(_last_word(k.value)) for k in node.keywords)

    def _transform(self, path: str, given: Arguments) -> Value:
        """`jit(f)`, `vmap(f)`: the result runs `f` on the GPU; `tree.map(f, x)` runs it here."""
        if "tree" not in path:
            return Value(armed=True)
        resident = given.resident
        for code in given.args[0].codes if given.args else ():
            resident = self.call_code(code, Arguments(given.args[1:], {})).resident or resident
        rule = rule_of(given.args[0].path) if given.args and given.args[0].path else None
        return Value(resident=resident and not (rule is not None and rule.effect == "host"))

    # Methods.

    def _method(self, node: ast.Call, attr: str, receiver: Value, given: Arguments) -> Value:
        if attr == "cuda":
            self.cue(f"`{_label(node)}` moves data to the GPU", 0.97)
            return receiver.on_device()
        if attr in ("to", "to_device"):
            return self._to(node, receiver, given)
        if attr == "update" and receiver.known and isinstance(receiver.flag, dict):
            return UNKNOWN
        if attr in HOST_METHODS:
            return replace(receiver, resident=False, known=False, flag=None)
        if receiver.armed and _WORKING_METHOD.match(attr):
            self.cue(f"`{_label(node)}` runs on the GPU", 0.85)
            return Value(resident=attr.startswith("prepare"))
        if receiver.cls:
            found = self._find_method(receiver.cls, attr)
            if found:
                return self._run_methods(receiver, (attr,), given, name=_root(node.func))
        classes = tuple(code for code in receiver.codes if isinstance(code.node, ast.ClassDef))
        for code in self._find_method(classes, attr)[:1]:
            # `Model.make()`: a classmethod gets the class, a plain function its arguments alone.
            assert isinstance(code.node, (ast.FunctionDef, ast.AsyncFunctionDef))
            owner = (Value(codes=classes),) if is_decorated(code.node, "classmethod") else ()
            return self.call_code(code, replace(given, args=(*owner, *given.args)))
        owned = receiver.attrs.get(attr)
        if owned is not None and (owned.codes or owned.cls or owned.armed):
            return self._callee(node, owned, given)
        if attr in _CALLING_METHODS:
            for value in given.args:
                for code in value.codes:
                    self.call_code(code, Arguments((), {}))
        for key, value in given.kwargs.items():
            if value.known and chooses_gpu(key, value.flag):
                self.cue(f"`{_label(node)}` is told to use `{key}={value.flag!r}`", 0.85)
                return Value(resident=True)
        return Value(resident=receiver.resident or given.resident, armed=receiver.armed, cls=receiver.cls)

    def _to(self, node: ast.Call, receiver: Value, given: Arguments) -> Value:
        where = given.kwargs.get("device", given.args[0] if given.args else UNKNOWN)
        place = next((k.value for k in node.keywords if k.arg == "device"), node.args[0] if node.args else None)
        if where.resident or (where.known and (is_gpu_name(where.flag) or type(where.flag) is int)):
            self.cue(f"`{_label(node)}` moves data to the GPU", 0.95)
            return receiver.on_device()
        if where.known:
            return replace(receiver, resident=False, known=False, flag=None)
        if place is not None and not where.path and is_device_word(_last_word(place)):
            self.cue(f"`{_label(node)}` moves data to a device", 0.6)
            return receiver.on_device()
        return receiver

    def _builtin(self, name: str, given: Arguments) -> Value:
        first = given.args[0] if given.args else UNKNOWN
        if name == "dict" and all(v.known for v in given.kwargs.values()):
            base = first.flag if first.known and isinstance(first.flag, dict) else {}
            return known({**base, **{k: v.flag for k, v in given.kwargs.items()}})
        if name in ("str", "bool", "int") and first.known and len(given.args) == 1:
            try:
                return known({"str": str, "bool": bool, "int": int}[name](first.flag))
            except (TypeError, ValueError):
                return UNKNOWN
        if name in ("map", "filter"):
            for code in first.codes:
                self.call_code(code, Arguments(given.args[1:], {}))
        return Value(resident=given.resident) if name in _PASSING_BUILTINS else UNKNOWN


def _answer(path: str, rule: Rule, given: Arguments) -> Value:
    """What a question or a host library answers."""
    last = path.rpartition(".")[2]
    if rule.effect == "query":
        if last in ("is_available", "is_bf16_supported"):
            return known(True)
        if path == "torch.device" and given.args:
            # Devices are followed as their strings.
            first = given.args[0]
            return first if first.known else UNKNOWN
        if last == "default_backend":
            return known("gpu")
        return known(1) if last.endswith("device_count") else UNKNOWN
    if path.partition(".")[0] in _PASSING_PACKAGES:
        return Value(resident=given.resident)
    return UNKNOWN


def _says_where(given: Arguments) -> bool:
    return "map_location" in given.kwargs or len(given.args) > 1 or bool(given.spread)


def _label(node: ast.Call) -> str:
    """The call as people would name it, at most a few words."""
    name = " ".join((dotted(node.func) or ast.unparse(node.func)).split())
    return f"{name}()" if len(name) <= LABEL_CHARS_MAX else f"…{name[-LABEL_CHARS_MAX:]}()"


def _last_word(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _root(node: ast.expr) -> str:
    return node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
