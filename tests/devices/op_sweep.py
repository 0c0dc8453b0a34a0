"""Sweep over torch's own samples of its operators, and over the other functions of its API, on device 0.

`python op_sweep.py KIND` with KIND "emulated" or "cuda" prints one JSON object. A process of its own, because importing
torch's samples changes settings of the whole process. See test_conformance_sweep.py for what is asserted.
"""

from __future__ import annotations

import inspect
import itertools
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, get_testing_overrides
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from looseleaf import devices
from looseleaf.errors import Unsupported

SAMPLES_MAX = 2
ELEMENTS_MAX = 100_000
_DTYPES = (
    torch.float32, torch.int64, torch.bool, torch.complex64, torch.float64, torch.uint8, torch.float16, torch.int8,
)
# Compiled for CUDA at run time: virtual devices refuse them.
NEEDS_CUDA = ("jiterator_", "torch.ops.aten._flash_attention", "torch.ops.aten._efficient_attention")
# Values that the device's own generator draws.
DRAWS = (
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "nn.functional.alpha_dropout",
    "nn.functional.dropout", "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool",
    "nn.functional.multi_head_attention_forward", "nn.functional.rrelu", "normal", "pca_lowrank", "rand", "svd_lowrank",
    "uniform",
)
# Values of memory that nobody wrote.
NO_VALUES = ("empty", "new_empty")
# The sample names a device itself, so that a host copy of it is no host call.
NAMES_DEVICE = {"linspace.tensor_overload", "logspace.tensor_overload", "to"}
# Its view reaches beyond what a host copy of the tensor holds.
REACHES_BEYOND = {"as_strided.partial_views"}

seen: set[Any] = set()
# Functions that drew from the host's generator for a tensor of the device.
disturbing: set[str] = set()


class Log(TorchFunctionMode):
    """Notes which functions of torch's API were called, and which of them disturbed the host's random numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.add(func)
        before = torch.default_generator.get_state()
        result = func(*args, **(kwargs or {}))
        drew = not torch.equal(torch.default_generator.get_state(), before)
        if drew and any(one.is_cuda for one in _tensors(result)):
            disturbing.add(getattr(func, "__name__", str(func)))
        return result


class Sweep:
    """One device kind. `failures`: one line each; `counts`: how often what was checked."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.device = torch.device("cuda", 0)
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        self.mixed_allowed: set[str] = set()
        self.refused: set[str] = set()

    def fail(self, name: str, text: str) -> None:
        self.failures.append(f"{name}: {text}"[:400])

    def on_device(self, name: str, value: Any) -> bool:
        wrong = {str(one.device) for one in _tensors(value) if one.device != self.device}
        if wrong:
            self.fail(name, f"a result is on {sorted(wrong)}")
        return not wrong

    def operators(self) -> None:
        for op in op_db:
            name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
            self.counts["operators"] += 1
            try:
                for sample in self.samples(op):
                    self.one(op, name, sample)
            except Unsupported as error:
                self.refused.add(op.name)
                if not op.name.startswith(NEEDS_CUDA):
                    self.fail(name, f"refused: {error}")
            except Exception as error:
                self.fail(name, f"{type(error).__name__}: {error}")

    def samples(self, op: Any) -> Iterator[Any]:
        computes = "cpu" if self.kind == "emulated" else "cuda"
        dtype = next((one for one in _DTYPES if op.supports_dtype(one, computes)), None)
        made = op.sample_inputs("cuda", dtype, requires_grad=False) if dtype is not None else ()
        small = (one for one in made if 0 < _elements((one.input, one.args, one.kwargs)) < ELEMENTS_MAX)
        yield from itertools.islice(small, SAMPLES_MAX)

    def one(self, op: Any, name: str, sample: Any) -> None:
        self.counts["samples"] += 1
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        if not self.function(name, op.op, args, kwargs):
            return
        for variant in (op.method_variant, *op.aliases):
            if callable(variant):
                self.same(name, variant, args, kwargs)
        if op.inplace_variant is not None and not sample.broadcasts_input:
            self.in_place(name, op.inplace_variant, args, kwargs)
        if op.supports_out:
            self.out(name, op.op, args, kwargs)
        if name not in NAMES_DEVICE:
            self.mixed(name, op.op, args, kwargs)
        if op.supports_autograd and not name.startswith(NO_VALUES):
            self.backward(name, op, args, kwargs)

    def function(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> bool:
        """On the device; on virtual ones with the values that the host computes. False if even the host refuses."""
        before = [one.device for one in _tensors((args, kwargs))]
        try:
            with Log():
                got = call(*args, **kwargs)
        except RuntimeError as error:
            if isinstance(error, Unsupported) or self.works_on_host(call, args, kwargs):
                raise
            self.counts["samples that the CPU has no kernel for"] += 1
            return False
        self.on_device(name, got)
        if before != [one.device for one in _tensors((args, kwargs))]:
            self.fail(name, "an argument changed its device")
        if self.kind != "emulated" or name in NAMES_DEVICE | REACHES_BEYOND or name.startswith(NO_VALUES + DRAWS):
            # Real kernels round differently: their values are torch's own matter.
            return True
        expected = call(*_host(args), **_host(kwargs))
        if (text := _differ(_host(got), expected)) is not None:
            self.fail(name, f"other values than on the host: {text}")
        self.counts["values compared"] += 1
        return True

    def same(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> None:
        try:
            with Log():
                got = call(*args, **kwargs)
        except (TypeError, RuntimeError, AttributeError, ValueError) as error:
            if self.works_on_host(call, args, kwargs):
                self.fail(name, f"a variant fails on the device: {error}")
            return
        self.on_device(f"{name} (variant)", got)
        self.counts["variants"] += 1

    def in_place(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> None:
        target = args[0].clone()
        try:
            with Log():
                got = call(target, *args[1:], **kwargs)
        except (TypeError, RuntimeError, ValueError) as error:
            if self.works_on_host(call, (args[0].clone(), *args[1:]), kwargs):
                self.fail(name, f"in place it fails on the device: {error}")
            return
        if got is not target or not self.on_device(f"{name} (in place)", got):
            self.fail(name, "in place it gives another tensor")
        self.counts["in place"] += 1

    def out(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> None:
        expected = call(*args, **kwargs)
        parts = expected if isinstance(expected, (tuple, list)) else (expected,)
        if not all(isinstance(one, torch.Tensor) for one in parts):
            return
        given = [torch.empty_like(one) for one in parts]
        try:
            with Log():
                got = call(*args, **kwargs, out=given[0] if isinstance(expected, torch.Tensor) else tuple(given))
        except (TypeError, RuntimeError) as error:
            host = _host(given)
            host_out = {"out": host[0] if isinstance(expected, torch.Tensor) else tuple(host)}
            if self.works_on_host(call, args, {**kwargs, **host_out}):
                self.fail(name, f"out= fails on the device: {error}")
            return
        self.on_device(f"{name} (out=)", got)
        pairs = zip(_tensors(got), given, strict=False)
        if name not in REACHES_BEYOND and any(one is not other for one, other in pairs):
            self.fail(name, "out= gives another tensor")
        self.counts["out="] += 1

    def mixed(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """With any one tensor that has dimensions on the host: refused, or an operator that is known to take it."""
        places = [place for place, one in enumerate(args) if isinstance(one, torch.Tensor) and one.dim()]
        if len([one for one in _tensors((args, kwargs)) if one.dim()]) < 2:
            return
        for place in places[1:]:
            moved = (*args[:place], args[place].cpu(), *args[place + 1 :])
            try:
                call(*moved, **kwargs)
            except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
                self.counts["mixes refused"] += 1
            else:
                self.mixed_allowed.add(name)

    def backward(self, name: str, op: Any, args: Any, kwargs: Any) -> None:
        inputs = tree_map(_leaf, args)
        leaves = [one for one in _tensors(inputs) if one.requires_grad]
        if not leaves:
            return
        try:
            outputs = [one for one in _tensors(op.op(*inputs, **kwargs)) if one.requires_grad]
            if not outputs:
                return
            torch.autograd.backward([one.abs().sum() for one in outputs])
        except (RuntimeError, NotImplementedError) as error:
            if self.kind == "emulated" and self.differentiable_on_host(op, args, kwargs):
                self.fail(name, f"backward fails on the device only: {error}")
            return
        self.on_device(f"{name} (backward)", [one.grad for one in leaves if one.grad is not None])
        self.counts["backward"] += 1

    def works_on_host(self, call: Callable[..., Any], args: Any, kwargs: Any) -> bool:
        try:
            call(*_host(args), **_host(kwargs))
        except (TypeError, RuntimeError, AttributeError, ValueError):
            return False
        return True

    def differentiable_on_host(self, op: Any, args: Any, kwargs: Any) -> bool:
        try:
            outputs = _tensors(op.op(*tree_map(_leaf, _host(args)), **_host(kwargs)))
            torch.autograd.backward([one.abs().sum() for one in outputs if one.requires_grad])
        except (RuntimeError, NotImplementedError):
            return False
        return True

    def other_functions(self) -> None:
        """Every overridable function that no sample called, with plain arguments made from its parameters' names."""
        for function, stand_in in get_testing_overrides().items():
            if function in seen or getattr(function, "__name__", "") in _NOT_CALLED:
                continue
            for args in _guesses(stand_in):
                try:
                    expected = function(*_made(args, "cpu"))
                except Exception:  # noqa: S112 - a guess that fits no signature; the next one may
                    continue
                self.guess(function, args, expected)
                break

    def guess(self, function: Any, args: tuple[Any, ...], expected: Any) -> None:
        name = getattr(function, "__name__", str(function))
        try:
            with Log():
                got = function(*_made(args, "cuda"))
        except Unsupported:
            self.refused.add(name)
            return
        except Exception as error:
            # Real CUDA lacks kernels that CPUs have; which ones is torch's own matter.
            if self.kind == "emulated" and name not in _HOST_ONLY:
                self.fail(name, f"works on the host, not on the device: {type(error).__name__}: {error}")
            return
        self.counts["functions by guessed arguments"] += 1
        if name not in _HOST_RESULTS and "tensor" in map(str, args):
            self.on_device(name, got)
        if not isinstance(expected, torch.Tensor) or not isinstance(got, torch.Tensor):
            return
        if expected.shape != got.shape and expected.layout == torch.strided:
            self.fail(name, f"shape {tuple(got.shape)} on the device, {tuple(expected.shape)} on the host")


class Count(TorchFunctionMode):
    """How many calls any mode was told of."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def untold() -> list[str]:
    """Functions that make a tensor from a tensor and tell no mode of it: no virtual device can follow there."""
    guesses = [("tensor",), ("tensor", "tensor"), ("tensor", 0), ("tensor", "index"), ("tensor", 0, 1), ("tensor", 0.5)]
    found = []
    for owner in (torch.Tensor, torch.nn.functional, torch._C._nn, torch.linalg, torch.fft, torch.special):
        for name in dir(owner):
            function = getattr(owner, name, None)
            if name.startswith("_") or isinstance(function, type) or not callable(function):
                continue
            for args in guesses:
                mode, given = Count(), _made(args, "cpu")
                try:
                    with mode:
                        made = function(*given)
                except Exception:  # noqa: S112 - a guess that fits no signature; the next one may
                    continue
                if mode.calls == 0 and isinstance(made, torch.Tensor):
                    found.append(name)
                break
    return found


def _tensors(value: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


def _elements(value: Any) -> int:
    return sum(one.numel() for one in _tensors(value))


def _host(value: Any) -> Any:
    return tree_map(lambda one: one.detach().cpu() if isinstance(one, torch.Tensor) else one, value)


def _leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout == torch.strided:
        return value.detach().clone().requires_grad_()
    return value


def _differ(one: Any, other: Any) -> str | None:
    """How the tensors in two results differ, None if they do not."""
    for left, right in zip(_tensors(one), _tensors(other), strict=True):
        try:
            torch.testing.assert_close(left.detach(), right.detach(), equal_nan=True, check_stride=False)
        except AssertionError as error:
            return str(error).splitlines()[0]
    return None


_NOT_CALLED = frozenset(
    # These change the process or the tensor for what follows, or wait for a person.
    {"set_default_device", "_disable_dynamo", "use_deterministic_algorithms", "save", "compile"}
)
# Functions that CUDA tensors do not have.
_HOST_ONLY = frozenset(
    {
        "__array__", "__dlpack__", "__dlpack_device__", "apply_", "map2_", "map_", "numpy", "pin_memory", "to_mkldnn",
    }
)
# Results that live on the host on CUDA too; and `set_()`, of which torch tells no mode: what it leaves is empty.
_HOST_RESULTS = frozenset({"cpu", "get_rng_state", "_pack_padded_sequence", "set_"})
_BY_NAME: dict[str, Any] = {
    "dim": 0, "dims": (0,), "dim0": 0, "dim1": 1, "size": (3, 3), "sizes": (3, 3), "shape": (3, 3), "p": 0.5, "k": 1,
    "n": 1, "alpha": 1.0, "value": 1.0, "eps": 1e-5, "dtype": torch.float32, "chunks": 1, "split_size": 1,
    "index": "index", "indices": "index", "mask": "mask", "tensors": "tensors", "num_classes": 3, "q": 0.5, "start": 0,
    "end": 3, "steps": 3, "length": 1, "repeats": 2, "device": "cuda", "low": 0, "high": 3, "training": False,
    "inplace": False, "kernel_size": 1, "normalized_shape": (3,), "upper": False, "diagonal": 0, "offset": 0,
    "descending": False, "keepdim": False, "times": 1,
}


def _guesses(stand_in: Any) -> Iterator[tuple[Any, ...]]:
    """Argument lists: required parameters by name, unknown ones as a tensor or a number; then one or two tensors."""
    try:
        parameters = list(inspect.signature(stand_in).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    required = [one for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    for unknown in ("tensor", 1, 0.5):
        yield tuple(
            "tensor" if place == 0 and one.name != "tensors" else _BY_NAME.get(one.name, unknown)
            for place, one in enumerate(required)
        )
    yield ("tensor",)
    yield ("tensor", "tensor")
    yield ("tensors",)


def _made(args: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """The arguments for one call, with new tensors."""
    square = torch.tensor([[1.0, 0.25, 0.5], [0.25, 1.0, 0.5], [0.5, 0.25, 2.0]], device=device)
    words: dict[str, Callable[[], Any]] = {
        "tensor": square.clone,
        "tensors": lambda: [square.clone(), square.clone()],
        "index": lambda: torch.tensor([0, 1, 2], device=device),
        "mask": lambda: square > 0.3,
        "cuda": lambda: torch.device(device),
    }
    return tuple(words[one]() if isinstance(one, str) else one for one in args)


def main() -> None:
    kind = sys.argv[1]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unseen = untold()
    devices.install("worker", kind, 1)  # type: ignore[arg-type]
    sweep = Sweep(kind)
    sweep.operators()
    by_samples = len(seen & set(get_testing_overrides()))
    sweep.other_functions()
    overridable = set(get_testing_overrides())
    print(
        json.dumps(
            {
                "counts": dict(sweep.counts),
                "overridable": len(overridable),
                "functions by samples": by_samples,
                "functions": len(seen & overridable),
                "failures": sweep.failures,
                "disturbing": sorted(disturbing),
                "untold": unseen,
                "mixed_allowed": sorted(sweep.mixed_allowed),
                "refused": sorted(sweep.refused),
            }
        )
    )


if __name__ == "__main__":
    main()
