"""The parts of torch that work behind the modes' back: optimizers' grouping, TorchScript, compile, DataParallel.

Imported only after torch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from looseleaf.devices.mode import Scan, VirtualDeviceMode
from looseleaf.devices.patches import PatchSet
from looseleaf.devices.queries import standing_in
from looseleaf.devices.stack import on_stack
from looseleaf.devices.tags import index_of
from looseleaf.errors import Unsupported

torch: Any = importlib.import_module("torch")
Tensor = torch.Tensor


def patch_wrappers(mode: VirtualDeviceMode, patches: PatchSet) -> None:
    """Patch all of them."""
    _patch_grouping(patches)
    _patch_parse_to(mode, patches)
    _patch_scripts(mode, patches)
    _patch_compile(patches)
    _patch_data_parallel(mode, patches)
    _patch_nested(mode, patches)
    _patch_profiler(patches)
    patches.set(torch.cuda.nvtx, "_nvtx", _NoRanges())
    for name in ("CUDAGraph", "graph", "make_graphed_callables", "cudart", "MemPool", "CUDAPluggableAllocator"):
        if hasattr(torch.cuda, name):
            stand_in = standing_in(getattr(torch.cuda, name), name, _refusal(f"torch.cuda.{name}"))
            patches.set(torch.cuda, name, stand_in)


def _patch_grouping(patches: PatchSet) -> None:
    """Optimizers group tensors by device in C++, which knows the host only."""
    original = torch._C._group_tensors_by_device_and_dtype

    def group(lists: Any, with_indices: bool = False) -> Any:
        groups = original(lists, True)
        made: dict[Any, Any] = {}
        for (device, dtype), (columns, indices) in groups.items():
            for row, position in enumerate(indices):
                lead = columns[0][row]
                index = None if lead is None else index_of(lead)
                key = (device if index is None else torch.device("cuda", index), dtype)
                to_columns, to_indices = made.setdefault(key, ([[] for _ in columns], []))
                for column, to_column in zip(columns, to_columns, strict=True):
                    if column:
                        to_column.append(column[row])
                to_indices.append(position)
        return made if with_indices else {key: (columns, []) for key, (columns, _) in made.items()}

    patches.set(torch._C, "_group_tensors_by_device_and_dtype", group)


def _patch_parse_to(mode: VirtualDeviceMode, patches: PatchSet) -> None:
    """`Module.to(0)`: an int is a device only where C++ knows an accelerator."""
    original = torch._C._nn._parse_to

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], int) and not isinstance(args[0], bool):
            args = (torch.device("cuda", args[0]), *args[1:])
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        if args and isinstance(args[0], Tensor) and (index := index_of(args[0])) is not None:
            args = (torch.device("cuda", index), args[0].dtype, *args[1:])
        return original(*args, **kwargs)

    patches.set(torch._C._nn, "_parse_to", parse_to)


def _patch_scripts(mode: VirtualDeviceMode, patches: PatchSet) -> None:
    """A TorchScript call is one opaque function: its results live where its tensors do."""

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not on_stack(mode):
                return original(self, *args, **kwargs)
            scan = Scan()
            for value in (*args, *kwargs.values()):
                scan.add(value)
            if scan.index is None and isinstance(self, torch.nn.Module):
                for parameter in self.parameters():
                    scan.add(parameter)
                    break
            result = original(self, *args, **kwargs)
            if scan.index is not None:
                mode.use()
                mode.adopt(result, scan.index, args)
            return result

        return call

    patches.set(torch._C.ScriptFunction, "__call__", wrapped(torch._C.ScriptFunction.__call__))
    for module in (torch.jit.ScriptModule, torch.jit.RecursiveScriptModule):
        patches.set(module, "__call__", wrapped(module.__call__))


def _patch_compile(patches: PatchSet) -> None:
    """Compiled code would be compiled for the host; what it computes is the same uncompiled."""
    original = torch.compile

    @functools.wraps(original)
    def compile_eagerly(*args: Any, **kwargs: Any) -> Any:
        torch.compiler.set_stance("force_eager")
        return original(*args, **kwargs)

    patches.set(torch, "compile", compile_eagerly)


def _patch_data_parallel(mode: VirtualDeviceMode, patches: PatchSet) -> None:
    """`nn.DataParallel` runs its module once, on its first device: virtual GPUs share the same cores."""

    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not self.device_ids:
            return self.module(*inputs, **kwargs)
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            if tensor.device != self.src_device_obj:
                raise RuntimeError(
                    "module must have its parameters and buffers "
                    f"on device {self.src_device_obj} (device_ids[0]) but found one of them on device: {tensor.device}"
                )
        moved = _moved((inputs, kwargs), self.src_device_obj)
        return self.module(*moved[0], **moved[1])

    patches.set(torch.nn.DataParallel, "forward", forward)


def _patch_nested(mode: VirtualDeviceMode, patches: PatchSet) -> None:
    """Nested tensors are made by a C++ function that asks no mode."""
    nested = torch._C._nested
    original = nested.nested_tensor

    def nested_tensor(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or not on_stack(mode):
            return original(*args, **kwargs)
        host = [value.cpu() if isinstance(value, Tensor) else value for value in args[0]]
        return mode.construct(original, (host, *args[1:]), kwargs, device)

    patches.set(nested, "nested_tensor", nested_tensor)


def _patch_profiler(patches: PatchSet) -> None:
    """The profiler counts a virtual device's work as the CPU's, which it is; asked for CUDA, it finds none."""
    recorder, session = torch.autograd.profiler.profile, torch.profiler.profiler._KinetoProfile
    original_recorder, original_session = recorder.__init__, session.__init__

    def start_recorder(self: Any, enabled: bool = True, *, use_device: Any = None, **kwargs: Any) -> None:
        kwargs.pop("use_cuda", None)
        original_recorder(self, enabled, use_device=None if use_device == "cuda" else use_device, **kwargs)

    def start_session(self: Any, *, activities: Any = None, **kwargs: Any) -> None:
        cuda = torch.profiler.ProfilerActivity.CUDA
        wanted = None if activities is None else [one for one in activities if one != cuda]
        original_session(self, activities=wanted, **kwargs)

    patches.set(recorder, "__init__", start_recorder)
    patches.set(session, "__init__", start_session)


class _NoRanges:
    """NVTX marks for a profiler that cannot be there."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *args, **kwargs: 0


def _moved(value: Any, device: Any) -> Any:
    """All tensors of nested lists, tuples and dicts on `device`."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, device) for item in value)
    return value


def _refusal(feature: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported(
            "VIRTUAL_GPU_UNSUPPORTED",
            f"{feature} needs a real GPU; this is a LooseLeaf virtual GPU, which computes on the CPU. "
            "Nothing was changed; run without it, or where LooseLeaf has GPUs.",
            feature=feature,
        )

    return refuse
