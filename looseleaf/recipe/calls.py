"""What calls do in the device walk: library rules, device methods, builtins."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from abc import abstractmethod
from dataclasses import replace
from typing import Final

from looseleaf.recipe.cues import Rule, canonical, is_device_word, is_hf_trainer, is_there, rule_of
from looseleaf.recipe.families import family_of
from looseleaf.recipe.follow import Arguments
from looseleaf.recipe.magics import magic_call
from looseleaf.recipe.methods import MethodRules, call_label, last_word
from looseleaf.recipe.values import UNKNOWN, Value, chooses_gpu, holds_gpu_choice, is_gpu_name, join, known, made_of

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
# Take models and train, search or combine them.
_WRAPPING_PACKAGES: Final = frozenset({"sklearn", "imblearn", "mlxtend", "optuna"})
_DICTS: Final = frozenset({"copy.copy", "copy.deepcopy"})
_DEFAULTS: Final = frozenset({"torch.set_default_device", "torch.set_default_tensor_type"})
_MAKES_TENSORS: Final = re.compile(
    r"^torch\.(tensor|zeros|ones|rand|randn|randint|randperm|arange|linspace|empty|full|eye|Tensor|nn\.(?!functional)\w+)"
)
# They hold device tensors without computing with them.
_HOLDING: Final = ("torch.optim", "torch.save", "torch.nn.utils.clip_grad", "transformers.get_", "torch.utils.data")
_WORKING_FUNCTION: Final = re.compile(r"(^|_)(train|fit|finetune|evaluate|eval|test)(_|$)", re.IGNORECASE)
_TRAINING: Final = frozenset({"train", "fit", "finetune"})
_KNOWN_PACKAGES: Final = frozenset(
    [
        "torch", "torchvision", "torchaudio", "torchtext", "transformers", "diffusers", "peft", "trl", "timm",
        "xgboost", "lightgbm", "catboost", "optax", "orbax", "haiku", "einops", "torchmetrics",
        "pytorch_lightning", "lightning",
        "fastai", "gym", "gymnasium", "torch_geometric", "dask", "ray", "ignite", "skorch", "onnx", "onnxruntime",
        "statsmodels", "shap", "networkx", "gensim", "segment_anything", "bokeh", "altair", "ipywidgets", "google",
    ]
)  # fmt: skip
# Without `map_location` they load to the device that the file's tensors were on.
_SAVES: Final = frozenset({"torch.save"})
_LOADS: Final = frozenset({"torch.load", "torch.jit.load", "torch.serialization.load"})


class CallRules(MethodRules):
    """The part of the device walk that evaluates calls."""

    @abstractmethod
    def shell(self, body: str) -> None:
        """Notes what shell lines do."""

    @abstractmethod
    def move(self, node: ast.expr) -> None:
        """What `node` begins with moves to the GPU in place."""

    @abstractmethod
    def saves(self, node: ast.Call, value: Value) -> None:
        """Notes where a saved file's tensors are."""

    @abstractmethod
    def loads(self, node: ast.Call) -> str:
        """How a load without a device uses the GPU, as a reason; empty if it does not."""

    def on_Call(self, node: ast.Call) -> Value:
        if magic_call(node) is not None:
            return self._magic(node)
        func = node.func
        if isinstance(func, ast.Attribute):
            receiver = self.eval(func.value)
            arguments = self._arguments(node)
            if not receiver.path:
                return self.method(node, func.attr, receiver, arguments)
            return self.callee(node, self.attribute(receiver, func.attr), arguments)
        if isinstance(func, ast.Name):
            callee = self.load(func.id)
            arguments = self._arguments(node)
            if callee == UNKNOWN and func.id in _BUILTINS:
                return self._builtin(func.id, arguments)
            if callee == UNKNOWN and self.star_path(func.id):
                callee = Value(path=self.star_path(func.id))
            return self.callee(node, callee, arguments)
        callee = self.eval(func)
        return self.callee(node, callee, self._arguments(node))

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
            self.shell(magic.line)
        return UNKNOWN

    def callee(self, node: ast.Call, callee: Value, given: Arguments) -> Value:
        if callee.armed:
            self.cue(f"`{call_label(node)}` runs on the GPU", 0.85)
            return made_of(True)
        if callee.codes:
            results = [self.call_code(code, given) for code in callee.codes]
            result = results[0]
            for other in results[1:]:
                result = join(result, other)
            return result
        if callee.cls:
            return self._run_methods(callee, ("__call__", "forward", "call"), given)
        if callee.resident and not callee.path:
            self.computes = True
            return Value(resident=callee.family != "pipeline")
        return self._library(node, callee.path, given)

    def _library(self, node: ast.Call, path: str, given: Arguments) -> Value:
        path = canonical(path)
        rule = rule_of(path) if path else None
        family = family_of(path) if path else ""
        if path == "functools.partial" and given.args:
            return replace(given.args[0], known=False, flag=None)
        if family == "data":
            return Value(family=family)
        if rule is not None and rule.effect in ("query", "host"):
            return self._answer(node, path, rule, given)
        if rule is not None and rule.effect == "transform":
            return self._transform(path, given)
        if path in _DEFAULTS:
            return self._set_default(node, given)
        choice = self._gpu_choice(given)
        if rule is not None and rule.effect == "armed":
            on_cpu = any(v.known and v.flag == "cpu" for v in given.kwargs.values())
            return UNKNOWN if on_cpu else Value(armed=True, family=family)
        if choice and path.partition(".")[0] in _CONFIGURED:
            if not path.rpartition(".")[2][:1].isupper():
                self.cue(f"`{call_label(node)}` is told to use the GPU", 0.9)
            return Value(armed=True)
        if rule is not None and rule.effect in ("op", "resident"):
            self.cue(f"`{call_label(node)}` uses the GPU", rule.confidence)
            if is_hf_trainer(path):
                self._move_model(node)
            return Value(resident=True, family=family)
        if choice:
            self.cue(f"`{call_label(node)}` is told to use {choice}", 0.9)
            return Value(resident=True, family=family)
        if path in _SAVES and given.args:
            self.saves(node, given.args[0])
            return UNKNOWN
        loaded = self.loads(node) if path in _LOADS and not _says_where(given) else ""
        if loaded:
            self.cue(f"`{call_label(node)}` {loaded}", 0.6)
            return made_of(True)
        if self._unknown_device(node, given):
            self.cue(f"`{call_label(node)}` is given a device", 0.6)
            return made_of(True)
        if self.default_gpu and _MAKES_TENSORS.match(path):
            self.cue(f"`{call_label(node)}` makes tensors on the default device", 0.9)
            return made_of(True)
        return self._plain_library(node, path, given)

    def _plain_library(self, node: ast.Call, path: str, given: Arguments) -> Value:
        """A call that nothing is known of but its path."""
        package, _, name = path.partition(".")
        if given.resident and not path.startswith(_HOLDING):
            self.computes = True
        word = _WORKING_FUNCTION.search(name.rpartition(".")[2]) if path and not _is_installed(package) else None
        if word is not None:
            # A module beside the notebook: its functions train and give back numbers.
            if word[2] in _TRAINING and self.uses_framework():
                self.cue(f"`{call_label(node)}` trains in a module of its own", 0.55)
            return UNKNOWN
        return Value(resident=given.resident, armed=any(v.armed for v in given.args))

    def _move_model(self, node: ast.Call) -> None:
        """A trainer moves the model that it is given."""
        model = next((k.value for k in node.keywords if k.arg == "model"), node.args[0] if node.args else None)
        if isinstance(model, ast.Name):
            self.move(model)

    def _set_default(self, node: ast.Call, given: Arguments) -> Value:
        place = next((v for v in given.all if v.known), UNKNOWN)
        self.default_gpu = is_gpu_name(place.flag) or (isinstance(place.flag, str) and "cuda" in place.flag)
        if self.default_gpu:
            self.cue(f"`{call_label(node)}` makes the GPU the default device", 0.6)
        return UNKNOWN

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
        return any(k.arg == "device" and is_device_word(last_word(k.value)) for k in node.keywords)

    def _transform(self, path: str, given: Arguments) -> Value:
        """`jit(f)`, `vmap(f)`: the result runs `f` on the GPU; `tree.map(f, x)` runs it here."""
        self.computes = self.computes or given.resident
        if "tree" not in path:
            return Value(armed=True)
        resident = given.resident
        for code in given.args[0].codes if given.args else ():
            resident = self.call_code(code, Arguments(given.args[1:], {})).resident or resident
        rule = rule_of(given.args[0].path) if given.args and given.args[0].path else None
        return Value(resident=resident and not (rule is not None and rule.effect == "host"))

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
        if name == "getattr" and first.path and len(given.args) > 1 and isinstance(given.args[1].flag, str):
            return self.attribute(first, given.args[1].flag)
        if name in ("map", "filter"):
            for code in first.codes:
                self.call_code(code, Arguments(given.args[1:], {}))
        if name not in _PASSING_BUILTINS:
            return UNKNOWN
        return Value(resident=given.resident, armed=any(v.armed for v in given.all))

    def _answer(self, node: ast.Call, path: str, rule: Rule, given: Arguments) -> Value:
        """What a question or a host library answers."""
        package, _, last = path.partition(".")[0], "", path.rpartition(".")[2]
        armed = any(v.armed for v in given.all)
        if rule.effect == "query":
            self.asks = True
            there = is_there(path)
            if there is not None:
                return known(there)
            if path == "torch.device" and given.args:
                # Devices are followed as their strings.
                first = given.args[0]
                return first if first.known else UNKNOWN
            if last == "default_backend":
                return known("gpu")
            return known(1) if last.endswith("device_count") else UNKNOWN
        if package in _WRAPPING_PACKAGES and armed:
            if last[:1].islower():
                self.cue(f"`{call_label(node)}` runs a model on the GPU", 0.85)
            return Value(armed=True)
        if path in _DICTS:
            return given.args[0] if given.args else UNKNOWN
        if package in _PASSING_PACKAGES:
            return Value(resident=given.resident, armed=armed)
        return UNKNOWN


def _says_where(given: Arguments) -> bool:
    return "map_location" in given.kwargs or len(given.args) > 1 or bool(given.spread)


def _is_installed(package: str) -> bool:
    """Known to come from elsewhere than the notebook's folder."""
    return package in sys.stdlib_module_names or package in _KNOWN_PACKAGES or rule_of(package) is not None
