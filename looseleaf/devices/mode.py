"""The mode that makes CPU tensors into tensors of virtual GPUs (design §8).

One `TorchFunctionMode`, entered in each thread, sees every call of torch's Python API. A call that asks for a CUDA
device runs on the CPU and its result's storage is tagged; a call with tagged arguments tags what it returns; a call
that mixes devices raises as CUDA does. While a call runs the mode is off, so torch's inner Python code sees plain CPU
tensors, and a composite function costs one interception.

Cost of a call, on one core of a shared 2-core machine (`python -m looseleaf.devices.overhead`): 1 µs for a property,
1.3 for a view, 4 to 6 for a computation on a device and 2 to 3 on the host, 6 for a constructor, 10 for a random draw.
A call with tensors of several devices, beyond arithmetic with a number, costs some 50 more: see mismatches.py.
Imported only after torch.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable
from typing import Any

from looseleaf.devices import functions, generators, tags
from looseleaf.devices.requests import ELSEWHERE, HOST, default_device, requested
from looseleaf.devices.tags import index_of, tag_tensor
from looseleaf.devices.virtual import VirtualGpus

torch: Any = importlib.import_module("torch")
_overrides: Any = importlib.import_module("torch.overrides")

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
_is_lazy = torch.nn.parameter.is_lazy
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled

_dispatch_stack_size = torch._C._len_torch_dispatch_stack
_dispatch_stack_at = torch._C._get_dispatch_stack_at

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
# Types of arguments that hold no tensor; checked by identity before anything slower.
_PLAIN: frozenset[type] = frozenset(
    {int, float, bool, str, complex, type(None), slice, type(Ellipsis), torch.dtype, torch.device, torch.Size, range}
)
_EMPTY: dict[str, Any] = {}


class Scan:
    """What the arguments of one call hold."""

    __slots__ = ("any", "host", "index", "other", "scalar")

    def __init__(self) -> None:
        self.any = False  # there was a tensor at all
        self.index: int | None = None  # the first virtual device met
        self.other: int | None = None  # a second one, if there is one
        self.host: Any = None  # a host tensor with dimensions, which CUDA would not take beside device tensors
        self.scalar: Any = None  # a host tensor without dimensions, which it takes nearly everywhere

    def add(self, value: Any) -> None:
        """Look at one argument, and into lists and tuples of them."""
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            self._tensor(value)
        elif kind in _PLAIN:
            return
        elif isinstance(value, Tensor):
            if not _is_lazy(value):
                self._tensor(value)
        elif isinstance(value, (list, tuple)):
            for item in value:
                kind = type(item)
                if kind is Tensor or kind is Parameter:
                    self._tensor(item)
                elif kind not in _PLAIN:
                    self.add(item)

    def _tensor(self, tensor: Any) -> None:
        self.any = True
        index = index_of(tensor)
        if index is None:
            if tensor.dim() == 0:
                self.scalar = tensor
            elif self.host is None:
                self.host = tensor
        elif self.index is None:
            self.index = index
        elif index != self.index:
            self.other = index


class VirtualDeviceMode(_overrides.TorchFunctionMode):  # type: ignore[misc]
    """See the module. One object serves all threads; after `live` is off it passes every call through."""

    def __init__(self, gpus: VirtualGpus, in_backward: Callable[[], bool]) -> None:
        super().__init__()
        self.gpus = gpus
        self.live = True
        self.handlers: dict[Any, Handler] = {}
        self._in_backward = in_backward
        # How many saved-tensor hooks are on in all threads; while there are any, `running` tells them of the call.
        self.saving_hooks = 0
        self.running = threading.local()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.live:
            return func(*args, **(kwargs or _EMPTY))
        handler = self.handlers.get(func)
        if handler is not None:
            return handler(func, args, kwargs or _EMPTY)
        return self.call(func, args, kwargs or _EMPTY)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The rule for every function without one of its own."""
        scan = Scan()
        add = scan.add
        for value in args:
            add(value)
        if kwargs:
            for value in kwargs.values():
                add(value)
            if kwargs.get("generator") is not None and kwargs.get("device") is None:
                self._check_generator(func, kwargs["generator"], scan.index)
            if kwargs.get("device") is not None:
                return self.construct(func, args, kwargs, kwargs["device"], scan.any)
            if kwargs.get("pin_memory"):
                return self.construct_pinned(func, args, kwargs)
        index = scan.index
        if index is None:
            if func in functions.CONSTRUCTORS:
                device = default_device()
                if device is not None:
                    return self.construct(func, args, kwargs, device, scan.any)
            return func(*args, **kwargs)
        self.use()
        mixed = scan.other is not None or scan.host is not None or scan.scalar is not None
        if mixed and self._must_check(func, args, scan):
            return self.run_checked(func, args, kwargs, index)
        result = self.run(func, args, kwargs, index)
        if kwargs and "out" in kwargs:
            self._recharge(kwargs["out"])
        kind = type(result)
        if kind is Tensor:
            if scan.host is None and (scan.scalar is None or func in functions.NUMBERS_ALLOWED):
                tag_tensor(self.gpus, result, index)
            else:
                self.adopt(result, index, args)
        elif kind not in _PLAIN:
            self.adopt(result, index, args)
        return result

    def _check_generator(self, func: Any, generator: Any, index: int | None) -> None:
        """A call without a device of its own draws where its tensors are, or on the default device."""
        default = default_device() if func in functions.CONSTRUCTORS else None
        generators.check_generator(generator, index is not None or (default is not None and default.type == "cuda"))

    def check_real(self) -> None:
        """Raise if new tensors are not real ones in this thread now, as under torch.export."""
        for level in range(_dispatch_stack_size()):
            if type(_dispatch_stack_at(level)).__name__ == "FakeTensorMode":
                from looseleaf.devices import unsupported

                unsupported.refuse_fake()

    def use(self) -> None:
        """A device is used now; raises in a forked child that may not."""
        if self.gpus.touched_at is None:
            self.gpus.touch()

    def write(self, func: Any) -> None:
        """A device's memory is changed in place now, by `func`."""
        self.use()

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> Any:
        """Compute on the CPU what virtual device `index` would, with its generator and under its autocast."""
        if self.saving_hooks:
            self.running.call = (index, args)
        if func in functions.RANDOM and functions.draws(func, args, kwargs):
            source = self.gpus.generators[index]
            given = kwargs.get("generator")
            if given is not None:
                generators.check_generator(given, on_device=True)
                source, kwargs = given.virtual, {**kwargs, "generator": None}
            return generators.draw(source, lambda: self._compute(func, args, kwargs, index))
        return self._compute(func, args, kwargs, index)

    def _compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> Any:
        if _is_any_autocast_enabled():
            from looseleaf.devices import autocast

            return self.guarded(autocast.run, (func, args, kwargs), _EMPTY, index)
        return self.guarded(func, args, kwargs, index)

    def guarded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> Any:
        """The call; a host without memory becomes the device's OutOfMemoryError."""
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            text = str(error)
            if text.startswith("Could not run '") and "from the 'CPU' backend" in text:
                from looseleaf.devices import unsupported

                unsupported.refuse(text.split("'")[1], advice=unsupported.ADVICE_KERNEL)
            if "DefaultCPUAllocator" not in text:
                raise
            size = re.search(r"(\d+) bytes", text)
            raise tags.out_of_memory(self.gpus, int(size[1]) if size else 0, index) from error

    def construct(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: Any, from_tensors: bool = True
    ) -> Any:
        """A call that says on which device its result shall be; `from_tensors`: it has tensors as arguments."""
        target = requested(self.gpus, device)
        if target == ELSEWHERE:
            return func(*args, **kwargs)
        kwargs = {**kwargs, "device": "cpu"}
        pinned = bool(kwargs.pop("pin_memory", False))
        if target == HOST:
            generators.check_generator(kwargs.get("generator"), on_device=False)
            result = func(*args, **kwargs)
        else:
            self.use()
            if _dispatch_stack_size():
                self.check_real()
            result = self.run(func, args, kwargs, target)
            if type(result) is Tensor and not from_tensors and not pinned:
                tag_tensor(self.gpus, result, target)
                return result
        return self._settle(result, target, args, kwargs, pinned)

    def construct_pinned(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As `construct`, for a call with `pin_memory` and no device."""
        device = default_device() if func in functions.CONSTRUCTORS else None
        if device is not None:
            return self.construct(func, args, kwargs, device)
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        return self._settle(func(*args, **kwargs), HOST, args, kwargs, True)

    def _settle(self, result: Any, target: int, args: tuple[Any, ...], kwargs: dict[str, Any], pinned: bool) -> Any:
        """Make `result` live on `target`; it is copied if it shares an argument's memory on another device."""
        if not isinstance(result, Tensor):
            return result
        index = None if target == HOST else target
        have = index_of(result)
        if have != index:
            taken = {id(storage) for value in (*args, *kwargs.values()) for storage in _argument_storages(value)}
            if have is not None or any(id(storage) in taken for storage in tags.storages_of(result)):
                result = result.clone()
            if index is not None:
                tag_tensor(self.gpus, result, index)
        if pinned:
            result.untyped_storage()._looseleaf_pinned = True
        return result

    def _recharge(self, out: Any) -> None:
        """An `out=` tensor may have got more memory."""
        for one in out if isinstance(out, (list, tuple)) else (out,):
            if isinstance(one, Tensor) and one.layout is torch.strided:
                tags.recharge_storage(self.gpus, one.untyped_storage())

    def adopt(self, result: Any, index: int, args: tuple[Any, ...] = ()) -> None:
        """Tag every new tensor in `result`; one that is, or shares memory with, a host argument stays the host's."""
        if isinstance(result, Tensor):
            for value in args:
                if value is result:
                    return
            if index_of(result) is None and not self._shares_host(result, args):
                tag_tensor(self.gpus, result, index)
        elif isinstance(result, (list, tuple)):
            for item in result:
                if isinstance(item, (Tensor, list, tuple)):
                    self.adopt(item, index, args)

    def _shares_host(self, result: Any, args: tuple[Any, ...]) -> bool:
        mine = {id(storage) for storage in tags.storages_of(result)}
        return any(id(storage) in mine for value in args for storage in _argument_storages(value))

    def _must_check(self, func: Any, args: tuple[Any, ...], scan: Scan) -> bool:
        """Whether CUDA's checks may have something to say about this call with tensors of several devices."""
        if func in functions.MIXED_ALLOWED or self._in_backward():
            # Inside a backward pass C++ hands out gradients that no mode has seen; they count as the device's.
            return False
        if scan.other is not None:
            return True
        if scan.host is not None:
            return bool(scan.host.device.type == "cpu")
        if func not in functions.NUMBERS_ALLOWED:
            return True
        return func in functions.NUMBERS_WRITTEN and index_of(args[0]) is None

    def run_checked(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> Any:
        """Compute with tensors of several devices, operator by operator; raises where CUDA does."""
        from looseleaf.devices import argument_checks, mismatches

        argument_checks.check_arguments(func, args, kwargs)
        with mismatches.DeviceCheck(self.adopt) as check:
            result = self.run(func, args, kwargs, index)
        check.settle(result, index)
        return result


def _argument_storages(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return tags.storages_of(value)
    if isinstance(value, (list, tuple)):
        return [storage for item in value for storage in _argument_storages(item)]
    return []
