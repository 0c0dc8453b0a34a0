"""Moving tensors between the host and virtual devices: `to`, `cuda`, `cpu`, `type`, `copy_`, `pin_memory`, `tensor`.

A move to another device always makes new memory, as on CUDA; a move to the same device never does unless asked to.
Imported only after torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from looseleaf.devices.mode import Handler, VirtualDeviceMode
from looseleaf.devices.requests import (
    DTYPES,
    ELSEWHERE,
    HOST,
    checked,
    cuda_type_name,
    default_device,
    is_device,
    requested,
)
from looseleaf.devices.tags import index_of, tag_tensor

torch: Any = importlib.import_module("torch")
Tensor = torch.Tensor
_to = torch.Tensor.to
_dispatch_stack_size = torch._C._len_torch_dispatch_stack


class Moves:
    """Handlers of the calls that move data, over one mode."""

    def __init__(self, mode: VirtualDeviceMode) -> None:
        self.mode = mode
        self.gpus = mode.gpus

    def handlers(self) -> dict[Any, Handler]:
        """By torch function."""
        return {
            torch.Tensor.to: self.to,
            torch.Tensor.cuda: self.cuda,
            torch.Tensor.cpu: self.cpu,
            torch.Tensor.type: self.type,
            torch.Tensor.type_as: self.type_as,
            torch.Tensor.copy_: self.copy_,
            torch.Tensor.pin_memory: self.pin_memory,
            torch.Tensor.is_pinned: self.is_pinned,
            torch.Tensor.__deepcopy__: self.deepcopy,
            torch.tensor: self.tensor,
            torch.as_tensor: self.as_tensor,
            torch.asarray: self.as_tensor,
        }

    def move(self, func: Any, tensor: Any, target: int, kwargs: dict[str, Any]) -> Any:
        """`tensor.to(**kwargs)` on device `target` (an index or HOST); `kwargs` without a device."""
        have = index_of(tensor)
        want = None if target == HOST else target
        if have == want:
            return self._same_device(func, tensor, have, kwargs)
        self.mode.use()
        if _dispatch_stack_size():
            self.mode.check_real()
        kwargs = {**kwargs, "copy": True}
        result = self.mode.guarded(_to, (tensor, "cpu"), kwargs, (have if want is None else want) or 0)
        if want is not None:
            tag_tensor(self.gpus, result, want)
        if have is None or want is None:
            self.gpus.copied(_bytes_of(result))
        return result

    def _same_device(self, func: Any, tensor: Any, index: int | None, kwargs: dict[str, Any]) -> Any:
        result = _to(tensor, "cpu", **kwargs)
        if index is not None and result is not tensor:
            self.mode.use()
            tag_tensor(self.gpus, result, index)
        return result

    def to(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Every signature of `Tensor.to`."""
        tensor, rest = args[0], args[1:]
        given = dict(kwargs)
        device: Any = given.pop("device", None)
        if rest and isinstance(rest[0], Tensor):
            given["other"], rest = rest[0], rest[1:]
        elif rest and (rest[0] is None or is_device(rest[0])):
            device, rest = rest[0], rest[1:]
            if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
                given["dtype"], rest = rest[0], rest[1:]
        elif rest and isinstance(rest[0], torch.dtype):
            given["dtype"], rest = rest[0], rest[1:]
        given.update(zip(("non_blocking", "copy"), rest, strict=False))
        other = given.pop("other", None)
        have = index_of(tensor)
        if other is not None:
            index = index_of(other)
            if index is None and other.device.type != "cpu":
                return func(*args, **kwargs)
            target = HOST if index is None else index
            given["dtype"] = other.dtype
        elif device is not None:
            target = requested(self.gpus, device)
        else:
            target = HOST if have is None else have
            if have is None and tensor.device.type != "cpu":
                return func(*args, **kwargs)
        if target == ELSEWHERE:
            return func(*args, **kwargs)
        if tensor.is_meta:
            raise NotImplementedError(
                "Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of "
                "torch.nn.Module.to() when moving module from meta to a different device."
            )
        return self.move(func, tensor, target, {name: value for name, value in given.items() if value is not None})

    def cuda(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`Tensor.cuda(device=None, non_blocking=False, memory_format=...)`."""
        given = {**dict(zip(("device", "non_blocking"), args[1:], strict=False)), **kwargs}
        device = given.pop("device", None)
        target = self.gpus.current if device is None else requested(self.gpus, device)
        if target < 0:
            raise RuntimeError("Invalid device, must be cuda device")
        return self.move(func, args[0], checked(self.gpus, target), given)

    def cpu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`Tensor.cpu(memory_format=...)`."""
        if index_of(args[0]) is None:
            return func(*args, **kwargs)
        return self.move(func, args[0], HOST, kwargs)

    def type(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The type's name, or a conversion to a dtype or to a type that names a device too."""
        tensor = args[0]
        have = index_of(tensor)
        wanted = kwargs.get("dtype", args[1] if len(args) > 1 else None)
        if wanted is None:
            return func(*args, **kwargs) if have is None else cuda_type_name(tensor.dtype, have)
        if isinstance(wanted, torch.dtype):
            return self.move(func, tensor, HOST if have is None else have, {"dtype": wanted})
        name = wanted if isinstance(wanted, str) else f"{wanted.__module__}.{wanted.__name__}"
        on_device = name.startswith("torch.cuda.")
        dtype = DTYPES.get(name.rpartition(".")[2])
        if dtype is None:
            raise ValueError(f"invalid type: '{name}'")
        target = (self.gpus.current if have is None else have) if on_device else HOST
        return self.move(func, tensor, target, {"dtype": dtype})

    def type_as(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Dtype and device of the other tensor."""
        other = kwargs.get("other", args[1] if len(args) > 1 else None)
        return self.to(_to, (args[0], other), {})

    def copy_(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """In place, across any two devices."""
        source = kwargs.get("src", args[1] if len(args) > 1 else None)
        here, there = index_of(args[0]), index_of(source) if isinstance(source, Tensor) else None
        if here is not None or there is not None:
            self.mode.use()
            if here is None or there is None:
                self.gpus.copied(_bytes_of(args[0]))
        return func(*args, **kwargs)

    def pin_memory(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A copy that says it is pinned; nothing is locked, for no hardware reads it."""
        tensor = args[0]
        if index_of(tensor) is not None:
            name = cuda_type_name(tensor.dtype, 0)
            raise RuntimeError(f"cannot pin '{name}' only dense CPU tensors can be pinned")
        storage = tensor.untyped_storage()
        if storage._looseleaf_pinned:
            return tensor
        result = tensor.clone()
        result.untyped_storage()._looseleaf_pinned = True
        return result

    def is_pinned(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Whether `pin_memory` or `pin_memory=True` made this memory."""
        return args[0].layout is torch.strided and bool(args[0].untyped_storage()._looseleaf_pinned)

    def deepcopy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """On the device of the original."""
        result = func(*args, **kwargs)
        index = index_of(args[0])
        if index is not None and index_of(result) is None:
            self.mode.use()
            tag_tensor(self.gpus, result, index)
        return result

    def tensor(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`torch.tensor`: a tensor keeps its device; a list gives a host tensor, whatever is in it."""
        device = kwargs.get("device")
        if device is None:
            index = self._data_index(args, kwargs)
            device = default_device() if index is None else torch.device("cuda", index)
        if device is not None:
            return self.mode.construct(func, args, kwargs, device)
        if kwargs.get("pin_memory"):
            return self.mode.construct_pinned(func, args, kwargs)
        return func(*args, **kwargs)

    def as_tensor(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`torch.as_tensor` and `asarray`: as `tensor`, sharing memory where the device allows it."""
        data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
        result = self.tensor(func, args, kwargs)
        index = index_of(result)
        if index is not None and not isinstance(data, (Tensor, list, tuple, int, float, complex)):
            # It shares the memory of an array of the host, which no device can.
            result = result.clone(memory_format=torch.preserve_format)
            tag_tensor(self.gpus, result, index)
        return result

    def _data_index(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
        return index_of(data) if isinstance(data, Tensor) else None


def _bytes_of(tensor: Any) -> int:
    if torch.nn.parameter.is_lazy(tensor):
        return 0
    return int(tensor.numel() * tensor.element_size())
