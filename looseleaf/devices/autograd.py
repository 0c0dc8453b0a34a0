"""Backward passes on virtual devices: C++ computes gradients where no mode looks; here they get their device.

The engine's Python callbacks (hooks, custom functions, checkpointing) run with the mode on, and inside a backward pass
a gradient that no mode has seen counts as the device's. A `.grad` is tagged when it is read.
Imported only after torch.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from looseleaf.devices.identity import grad_of
from looseleaf.devices.mismatches import device_name
from looseleaf.devices.mode import Handler, VirtualDeviceMode
from looseleaf.devices.patches import PatchSet
from looseleaf.devices.requests import cuda_type_name
from looseleaf.devices.stack import on_stack
from looseleaf.devices.tags import index_of, retag_storage, tag_tensor

torch: Any = importlib.import_module("torch")
_autograd: Any = importlib.import_module("torch.autograd")
_graph: Any = importlib.import_module("torch.autograd.graph")
_function: Any = importlib.import_module("torch.autograd.function")
Tensor = torch.Tensor
_CONTEXT_DEVICES = "_looseleaf_devices"
_MARK = "_looseleaf_tagged"

_depth = threading.local()
# The mode of this process's virtual devices, for callbacks that came here with the state of the session.
mode_here: VirtualDeviceMode | None = None


def in_backward() -> bool:
    """Whether this thread is inside the autograd engine."""
    return getattr(_depth, "count", 0) > 0


def handlers(mode: VirtualDeviceMode) -> dict[Any, Handler]:
    """Handlers of the calls that meet gradients."""

    def get_grad(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return grad_of(mode, args[0])

    def set_grad(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, grad = args
        if isinstance(grad, Tensor):
            index, have = index_of(tensor), index_of(grad)
            if index is not None and have is None and in_backward():
                tag_tensor(mode.gpus, grad, index)
            elif index != have:
                raise RuntimeError("assigned grad has data located on a different device")
        return func(*args, **kwargs)

    def grad(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(("outputs", "inputs", "grad_outputs"), args, strict=False)) | kwargs
        _check_roots(given.get("outputs"), given.get("grad_outputs"))
        result = func(*args, **kwargs)
        inputs = kwargs.get("inputs", args[1] if len(args) > 1 else ())
        inputs = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
        return tuple(_placed(mode, one, _edge_index(of)) for one, of in zip(result, inputs, strict=True))

    def register_hook(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, hook = args[0], kwargs.get("hook", args[1] if len(args) > 1 else None)
        return func(tensor, placing_hook(tensor, hook))

    def grad_fn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        node, index = func(*args), index_of(args[0])
        if node is not None and index is not None and not isinstance(node, _function.BackwardCFunction):
            _tag_at(mode, node, index)
        return node

    def backward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if index_of(args[0]) is not None:
            mode.use()
        _check_roots(args[0], kwargs.get("gradient", args[1] if len(args) > 1 else None))
        return func(*args, **kwargs)

    return {
        torch._C.TensorBase.grad_fn.__get__: grad_fn,
        torch.Tensor.backward: backward,
        torch.Tensor.grad.__get__: get_grad,
        torch.Tensor.grad.__set__: set_grad,
        torch._C.TensorBase.grad.__get__: get_grad,
        _autograd.grad: grad,
        torch.Tensor.register_hook: register_hook,
    }


def placing_hook(tensor: Any, hook: Any) -> Any:
    """`hook`, so that it gets the gradients of `tensor` where the tensor is."""
    if not callable(hook):
        return hook
    return functools.partial(run_hook, hook, weakref.ref(tensor), index_of(tensor))


def run_hook(hook: Callable[[Any], Any], of: weakref.ref[Any], index: int | None, gradient: Any) -> Any:
    """`hook` of the tensor `of`, which was on device `index`, with the gradient where the tensor is by now.

    It is saved as part of the tensor, and may come to run where there are no virtual devices.
    """
    tensor = of()
    if mode_here is None or not isinstance(gradient, Tensor):
        return hook(gradient)
    place = index if tensor is None else index_of(tensor)
    gradient = _placed(mode_here, gradient, place)
    result = hook(gradient)
    if isinstance(result, Tensor) and index_of(result) != place:
        raise RuntimeError(
            f"hook '{getattr(hook, '__name__', '<unknown>')}' has changed the type of value "
            f"(was {_type_name(gradient)} got {_type_name(result)})"
        )
    return result


def _type_name(tensor: Any) -> str:
    """As C++ names a tensor's type, such as "CUDAFloatType"."""
    name = cuda_type_name(tensor.dtype, None).removeprefix("torch.").removesuffix("Tensor")
    return f"{'CPU' if index_of(tensor) is None else 'CUDA'}{name}Type"


def _tag_at(mode: VirtualDeviceMode, node: Any, index: int) -> None:
    """Let hooks on a node that a person looks at see gradients on the device. Before theirs, so that they run after."""
    if _MARK in node.metadata:
        return
    node.metadata[_MARK] = True
    for following, _ in node.next_functions:
        leaf = getattr(following, "variable", None)
        if isinstance(leaf, Tensor) and (at := index_of(leaf)) is not None:
            _tag_at(mode, following, at)

    def tag(*groups: Any) -> None:
        for gradient in (one for group in groups for one in group):
            if isinstance(gradient, Tensor) and index_of(gradient) is None:
                tag_tensor(mode.gpus, gradient, index)

    node.register_prehook(tag)
    node.register_hook(tag)


def _check_roots(roots: Any, gradients: Any) -> None:
    """Raise for a gradient that a person gave and that is not where its root is."""
    if gradients is None or in_backward():
        return
    roots, gradients = ((one,) if isinstance(one, Tensor) else one for one in (roots, gradients))
    for place, (root, gradient) in enumerate(zip(roots, gradients, strict=False)):
        if not isinstance(root, Tensor) or not isinstance(gradient, Tensor) or not gradient.dim():
            continue  # a gradient without dimensions is moved
        if index_of(root) != index_of(gradient):
            raise RuntimeError(
                f"invalid gradient at index {place} - expected device {device_name(index_of(root))} "
                f"but got {device_name(index_of(gradient))}"
            )


def _edge_index(edge: Any) -> int | None:
    return index_of(edge) if isinstance(edge, Tensor) else None


def _placed(mode: VirtualDeviceMode, gradient: Any, index: int | None) -> Any:
    """A gradient on the device of what it belongs to."""
    if not isinstance(gradient, Tensor):
        return gradient
    have = index_of(gradient)
    if have is None and index is not None:
        tag_tensor(mode.gpus, gradient, index)
    elif have is not None and index is None:
        gradient = gradient.clone()
        retag_storage(mode.gpus, gradient.untyped_storage(), None)
    return gradient


def patch(mode: VirtualDeviceMode, patches: PatchSet) -> None:
    """Let the engine call back into Python with the mode on, and custom functions see their gradients' device."""
    original = _graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if torch._C._is_torch_function_all_disabled() or not mode.live:
            return original(*args, **kwargs)
        _depth.count = getattr(_depth, "count", 0) + 1
        try:
            if on_stack(mode):
                return original(*args, **kwargs)
            with mode:
                return original(*args, **kwargs)
        finally:
            _depth.count -= 1

    patches.set(sys.modules[__name__], "mode_here", mode)
    original_backward = _autograd.backward

    @functools.wraps(original_backward)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if on_stack(mode):
            _check_roots(tensors, grad_tensors)
        return original_backward(tensors, grad_tensors, *args, **kwargs)

    patches.set(_autograd, "backward", backward)
    patches.set(_graph, "_engine_run_backward", run_backward)
    patches.set(_autograd, "_engine_run_backward", run_backward)
    _patch_functions(mode, patches)
    _patch_saving_hooks(mode, patches)


def _patch_saving_hooks(mode: VirtualDeviceMode, patches: PatchSet) -> None:
    """C++ calls a pack hook in the middle of a call: with the mode off, and before the call's results are tagged."""
    hooks = _graph.saved_tensors_hooks
    original_enter, original_exit = hooks.__enter__, hooks.__exit__

    def packing(pack: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(tensor: Any) -> Any:
            if on_stack(mode) or not mode.live or torch._C._is_torch_function_all_disabled():
                return pack(tensor)
            index, args = getattr(mode.running, "call", (None, ()))
            if index is not None:
                mode.adopt(tensor, index, args)
            with mode:
                return pack(tensor)

        return call

    def enter(self: Any) -> Any:
        mode.saving_hooks += 1
        pack = self.pack_hook
        self.pack_hook = packing(pack)
        try:
            return original_enter(self)
        finally:
            self.pack_hook = pack

    def leave(self: Any, *exc: Any) -> Any:
        mode.saving_hooks -= 1
        mode.running.call = (None, ())
        return original_exit(self, *exc)

    patches.set(hooks, "__enter__", enter)
    patches.set(hooks, "__exit__", leave)


def _patch_functions(mode: VirtualDeviceMode, patches: PatchSet) -> None:
    inherited = _function.Function.__dict__["apply"].__func__

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        result = inherited(cls, *args, **kwargs)
        outputs = result if isinstance(result, tuple) else (result,)
        devices = [index_of(one) if isinstance(one, Tensor) else None for one in outputs]
        if any(index is not None for index in devices):
            for one in outputs:
                context = one.grad_fn if isinstance(one, Tensor) else None
                if isinstance(context, _function.BackwardCFunction):
                    setattr(context, _CONTEXT_DEVICES, devices)
                    break
        return result

    patches.set(_function.Function, "apply", classmethod(apply))
    for name in ("apply", "apply_boxed"):
        if name in vars(_function.BackwardCFunction):
            patches.set(_function.BackwardCFunction, name, _tagging(mode, getattr(_function.BackwardCFunction, name)))


def _tagging(mode: VirtualDeviceMode, original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, *args: Any) -> Any:
        devices = getattr(self, _CONTEXT_DEVICES, None)
        if devices is not None:
            boxed = args[0] if len(args) == 1 and isinstance(args[0], list) else args
            for gradient, index in zip(boxed, devices, strict=False):
                if index is not None and isinstance(gradient, Tensor) and index_of(gradient) is None:
                    tag_tensor(mode.gpus, gradient, index)
        return original(self, *args)

    return apply
