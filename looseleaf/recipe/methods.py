"""What method calls do in the device walk: device methods, methods of the session's classes, of library objects."""

from __future__ import annotations

import ast
import re
from abc import abstractmethod
from dataclasses import replace
from typing import Final

from looseleaf.recipe.cues import HOST_METHODS, is_device_word
from looseleaf.recipe.dynamic import dotted, root_name
from looseleaf.recipe.families import QUIET_METHODS, REPORTING_METHODS, STORING_METHODS, host_result
from looseleaf.recipe.follow import Arguments, CodeFollower, is_decorated
from looseleaf.recipe.values import UNKNOWN, Value, chooses_gpu, is_gpu_name, made_of

# A call's name in a reason.
LABEL_CHARS_MAX: Final = 40

_WORKING_METHOD: Final = re.compile(
    r"^(fit|train|predict|evaluate|eval|test|validate|prepare|score|transform|generate|encode|run|tune|lr_find|learn|"
    r"adapt)"
)
_CALLING_METHODS: Final = frozenset(
    ["apply", "map", "applymap", "optimize", "submit", "starmap", "minimize", "run", "start", "launch", "timeit"]
)


class MethodRules(CodeFollower):
    """The part of the device walk that evaluates calls of methods."""

    @abstractmethod
    def callee(self, node: ast.Call, callee: Value, given: Arguments) -> Value:
        """The result of calling `callee`."""

    def method(self, node: ast.Call, attr: str, receiver: Value, given: Arguments) -> Value:
        """The result of `receiver.attr(...)` for a receiver that is no module."""
        if attr == "cuda":
            self.cue(f"`{call_label(node)}` moves data to the GPU", 0.97)
            return receiver.on_device()
        if attr in ("to", "to_device"):
            return self._to(node, receiver, given)
        if attr == "update" and (receiver == UNKNOWN or isinstance(receiver.flag, dict)):
            self._update(node, receiver, given)
            return UNKNOWN
        if attr == "copy" and isinstance(receiver.flag, dict):
            return receiver
        # A module's `train` sets a mode, a trainer's trains.
        quiet = attr in QUIET_METHODS and receiver.family != "trainer"
        if (receiver.resident or given.resident) and not quiet and attr not in HOST_METHODS:
            self.computes = True
        if attr in HOST_METHODS:
            return replace(receiver, resident=False, known=False, flag=None)
        if receiver.armed and _WORKING_METHOD.match(attr):
            self.cue(f"`{call_label(node)}` runs on the GPU", 0.85)
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
            return self.callee(node, owned, given)
        return self._library_method(node, attr, receiver, given)

    def _library_method(self, node: ast.Call, attr: str, receiver: Value, given: Arguments) -> Value:
        if attr in STORING_METHODS and (given.resident or any(v.armed for v in given.all)):
            assert isinstance(node.func, ast.Attribute)
            self._store(node.func.value, given)
        if receiver.family == "data":
            # Its functions run in a graph on the host.
            return receiver
        if attr in _CALLING_METHODS:
            for value in given.args:
                for code in value.codes:
                    self.call_code(code, Arguments((), {}))
        for key, value in given.kwargs.items():
            if value.known and chooses_gpu(key, value.flag):
                self.cue(f"`{call_label(node)}` is told to use `{key}={value.flag!r}`", 0.85)
                return made_of(True)
        if host_result(receiver.family, attr):
            return UNKNOWN
        if not receiver.resident and attr in REPORTING_METHODS:
            return Value(armed=receiver.armed, cls=receiver.cls)
        return Value(
            resident=receiver.resident or given.resident,
            armed=receiver.armed,
            cls=receiver.cls,
            family=receiver.family,
        )

    def _store(self, owner: ast.expr, given: Arguments) -> None:
        """`owner.append(x)`: the list then holds what `x` is."""
        if isinstance(owner, (ast.Name, ast.Subscript)):
            name = root_name(owner)
            old = self.name(name)
            armed = old.armed or any(v.armed for v in given.all)
            if not old.path:
                self.rebind(name, replace(old, resident=old.resident or given.resident, armed=armed))

    def _update(self, node: ast.Call, receiver: Value, given: Arguments) -> None:
        """`parameters.update(...)`: what is known of either."""
        entries = {key: value.flag for key, value in given.kwargs.items() if value.known}
        for value in given.args:
            if value.known and isinstance(value.flag, dict):
                entries.update(value.flag)
        if entries and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            old = receiver.flag if isinstance(receiver.flag, dict) else {}
            self.rebind(node.func.value.id, replace(receiver, known=True, flag={**old, **entries}))

    def _to(self, node: ast.Call, receiver: Value, given: Arguments) -> Value:
        where = given.kwargs.get("device", given.args[0] if given.args else UNKNOWN)
        place = next((k.value for k in node.keywords if k.arg == "device"), node.args[0] if node.args else None)
        if where.resident or (where.known and (is_gpu_name(where.flag) or type(where.flag) is int)):
            self.cue(f"`{call_label(node)}` moves data to the GPU", 0.95)
            return receiver.on_device()
        if where.known:
            return replace(receiver, resident=False, known=False, flag=None)
        if place is not None and not where.path and is_device_word(last_word(place)):
            self.cue(f"`{call_label(node)}` moves data to a device", 0.6)
            return receiver.on_device()
        return receiver


def call_label(node: ast.Call) -> str:
    """The call as people would name it, at most a few words."""
    name = " ".join((dotted(node.func) or ast.unparse(node.func)).split())
    return f"{name}()" if len(name) <= LABEL_CHARS_MAX else f"…{name[-LABEL_CHARS_MAX:]}()"


def last_word(node: ast.expr) -> str:
    """`device` of `self.device`; empty if the expression ends otherwise."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _root(node: ast.expr) -> str:
    return node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
