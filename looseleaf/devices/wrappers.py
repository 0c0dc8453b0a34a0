"""The parts of torch that work behind the modes' back: optimizers' grouping, TorchScript, compile, DataParallel.

Imported only after torch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from looseleaf.devices import autocast, mismatches
from looseleaf.devices.autograd import in_backward
from looseleaf.devices.comm import comm_answers
from looseleaf.devices.mode import Scan, VirtualDeviceMode
from looseleaf.devices.patches import PatchSet, named
from looseleaf.devices.requests import HOST, requested
from looseleaf.devices.stack import on_stack
from looseleaf.devices.tags import index_of
from looseleaf.devices.unsupported import refuse

torch: Any = importlib.import_module("torch")
Tensor = torch.Tensor


def patch_wrappers(mode: VirtualDeviceMode, patches: PatchSet) -> None:
    """Patch all of them."""
    _patch_grouping(patches)
    _patch_parse_to(mode, patches)
    _patch_scripts(mode, patches)
    _patch_compile(patches)
    _patch_attention(mode, patches)
    _patch_nested(mode, patches)
    _patch_profiler(patches)
    patches.set(torch.cuda.nvtx, "_nvtx", _NoRanges())
    for name, answer in comm_answers().items():
        patches.set(torch._C, name, answer)
    # Streams that torch keeps for scattering belong to the devices that there were when it made them.
    patches.set(importlib.import_module("torch.nn.parallel._functions"), "_streams", None)
    for name in ("start", "stop"):
        patches.set(torch.cuda.profiler, name, named(lambda: None, name))


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

    # Its `device=` is what to read, not where to make something.
    mode.handlers[original] = mode.handlers[parse_to] = lambda func, args, kwargs: func(*args, **kwargs)
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
            if isinstance(self, torch.nn.Module):
                for parameter in self.parameters():
                    scan.add(parameter)
            if scan.index is None:
                return _refusing_devices(original, (self, *args), kwargs)
            mode.use()
            run = _under_autocast(original)
            if scan.other is not None or (scan.host is not None and not in_backward()):
                run = _checked(mode, run)
            result = _refusing_devices(run, (self, *args), kwargs)
            mode.adopt(result, scan.index, args)
            return result

        return call

    patches.set(torch._C.ScriptFunction, "__call__", wrapped(torch._C.ScriptFunction.__call__))
    for module in (torch.jit.ScriptModule, torch.jit.RecursiveScriptModule):
        patches.set(module, "__call__", wrapped(module.__call__))
    original_load = torch.jit.load

    @functools.wraps(original_load)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        target = HOST if map_location is None else requested(mode.gpus, map_location)
        if target < 0:
            return original_load(f, map_location, *args, **kwargs)
        return original_load(f, "cpu", *args, **kwargs).to(torch.device("cuda", target))

    patches.set(torch.jit, "load", load)


def _under_autocast(original: Callable[..., Any]) -> Callable[..., Any]:
    """A script is made of many operators: all of it runs under one autocast."""
    if not torch.is_autocast_enabled("cuda"):
        return original
    return lambda *args, **kwargs: autocast.within(original, args, kwargs, torch.get_autocast_dtype("cuda"))


def _checked(mode: VirtualDeviceMode, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, whose operators meet tensors of several devices."""

    def call(*args: Any, **kwargs: Any) -> Any:
        check = mismatches.DeviceCheck(mode.adopt)
        try:
            with check:
                return run(*args, **kwargs)
        except RuntimeError as error:
            if check.raised is None:
                raise
            raise RuntimeError(f"{str(error).rstrip()} {check.raised}") from None

    return call


# What C++ says where torch was built without CUDA.
_NO_CUDA = (
    "support for cuda devices", "from the 'CUDA' backend", "Torch not compiled with CUDA",
    "The CUDA library MUST be loaded",
)


def _refusing_devices(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A script that names a CUDA device itself asks C++ for it."""
    try:
        return original(*args, **kwargs)
    except RuntimeError as error:
        if not any(text in str(error) for text in _NO_CUDA):
            raise
        refuse(
            "torchscript_device",
            "This TorchScript names a CUDA device in its own text, and LooseLeaf virtual GPUs exist in Python only.",
            "Nothing was changed; let it take the device from an argument (x.device), or run where LooseLeaf has GPUs.",
        )


def _patch_attention(mode: VirtualDeviceMode, patches: PatchSet) -> None:
    """Any of CUDA's attention kernels may be chosen; the CPU has one of them and the plain computation."""

    def attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch._C._get_math_sdp_enabled():
            return mode.call(func, args, kwargs)
        torch._C._set_sdp_use_math(True)
        try:
            return mode.call(func, args, kwargs)
        finally:
            torch._C._set_sdp_use_math(False)

    mode.handlers[torch.nn.functional.scaled_dot_product_attention] = attention


def _patch_compile(patches: PatchSet) -> None:
    """Compiled code would be compiled for the host; what it computes is the same uncompiled."""
    original = torch.compile

    @functools.wraps(original)
    def compile_eagerly(*args: Any, **kwargs: Any) -> Any:
        torch.compiler.set_stance("force_eager")
        return original(*args, **kwargs)

    patches.set(torch, "compile", compile_eagerly)


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
        host = torch.profiler.ProfilerActivity.CPU
        wanted = None if activities is None else [one for one in activities if one != cuda] or [host]
        original_session(self, activities=wanted, **kwargs)

    patches.set(recorder, "__init__", start_recorder)
    patches.set(session, "__init__", start_session)


class _NoRanges:
    """NVTX marks for a profiler that cannot be there."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *args, **kwargs: 0
