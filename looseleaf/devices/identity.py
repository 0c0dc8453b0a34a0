"""What a virtual device tensor says about itself, and what it refuses because its bytes are "not on the host".

Imported only after torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from looseleaf.devices import functions, mismatches
from looseleaf.devices.mode import Handler, VirtualDeviceMode
from looseleaf.devices.tags import index_of, recharge_storage, retag_storage, tag_tensor
from looseleaf.errors import Unsupported

torch: Any = importlib.import_module("torch")
_tensor_str: Any = importlib.import_module("torch._tensor_str")
Tensor = torch.Tensor
_strided = torch.strided
_grad_get = torch.Tensor.grad.__get__
_BASE = torch._C.TensorBase


_MASKS = (torch.bool, torch.uint8)


class VirtualGpuAttributeError(Unsupported, AttributeError):
    """Both: a refusal of LooseLeaf, and what `hasattr` takes for a missing attribute."""


def _parts(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def passthrough(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """For what is the same on every device."""
    return func(*args, **kwargs)


class Identity:
    """Handlers of properties and conversions, over one mode."""

    def __init__(self, mode: VirtualDeviceMode) -> None:
        self.mode = mode
        self.gpus = mode.gpus
        self._devices = [torch.device("cuda", index) for index in range(64)]

    def handlers(self) -> dict[Any, Handler]:
        """By torch function."""
        table: dict[Any, Handler] = dict.fromkeys(functions.PROPERTY_GETTERS, passthrough)
        table.update(dict.fromkeys(functions.METADATA, passthrough))
        table.update(dict.fromkeys(functions.VIEWS, self.view))
        table[torch.Tensor.data.__set__] = passthrough
        table[torch.Tensor.requires_grad.__set__] = passthrough
        table.update(
            {
                _BASE.device.__get__: self.device,
                _BASE.is_cuda.__get__: self.is_cuda,
                _BASE.is_cpu.__get__: self.is_cpu,
                torch.Tensor.get_device: self.get_device,
                torch.get_device: self.get_device,
                torch.Tensor.__repr__: self.repr,
                torch.Tensor.__format__: self.format,
                torch.Tensor.numpy: self.numpy,
                torch.Tensor.__array__: self.numpy,
                torch.Tensor.__dlpack__: self.dlpack,
                torch.Tensor.__dlpack_device__: self.dlpack,
                torch.Tensor.record_stream: self.nothing,
                torch.Tensor.share_memory_: self.share_memory_,
                torch.Tensor.is_shared: self.is_shared,
                torch.Tensor.__cuda_array_interface__.__get__: self.array_interface,
                torch.Tensor.__getitem__: self.getitem,
                torch.Tensor.__setitem__: self.setitem,
                torch.Tensor.resize_: self.resize_,
                torch.Tensor.resize_as_: self.resize_,
                torch.Tensor.item: self.item,
                torch.Tensor.tolist: self.item,
                torch.Tensor.to_mkldnn: self.no_kernel,
                torch.Tensor.apply_: self.host_only,
                torch.Tensor.map_: self.host_only,
            }
        )
        return table

    def view(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A dense view carries its tag in its storage; a sparse one is new memory."""
        if args and isinstance(args[0], Tensor) and args[0].layout is _strided:
            return func(*args, **kwargs)
        return self.mode.call(func, args, kwargs)

    def device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`tensor.device`."""
        index = index_of(args[0])
        return func(*args) if index is None else self._devices[index]

    def is_cuda(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`tensor.is_cuda`."""
        return index_of(args[0]) is not None

    def is_cpu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`tensor.is_cpu`."""
        return func(*args) and index_of(args[0]) is None

    def get_device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The index, -1 for the host."""
        index = index_of(args[0])
        return func(*args, **kwargs) if index is None else index

    def repr(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """torch's own text, written with the mode on, so that it names the device."""
        if index_of(args[0]) is None:
            return func(*args, **kwargs)
        self.mode.use()
        with self.mode:
            return _tensor_str._str(args[0], **kwargs)

    def format(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A scalar's number, else the repr."""
        tensor = args[0]
        if index_of(tensor) is None or (tensor.dim() == 0 and type(tensor) is Tensor):
            return func(*args, **kwargs)
        if tensor.dim() == 0 and args[1]:
            # torch's printer formats the elements of a subclass so.
            return format(tensor.item(), args[1])
        with self.mode:
            return object.__format__(*args)

    def numpy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As CUDA tensors do, refuse to pose as host memory, unless forced."""
        index = index_of(args[0])
        if index is None:
            return func(*args, **kwargs)
        if func is torch.Tensor.numpy and (kwargs.get("force") or (len(args) > 1 and args[1])):
            return args[0].detach().clone().resolve_conj().resolve_neg().numpy()
        raise TypeError(
            f"can't convert cuda:{index} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def dlpack(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Other libraries would take the bytes for a real GPU's, or for the host's."""
        if index_of(args[0]) is None:
            return func(*args, **kwargs)
        raise Unsupported(
            "VIRTUAL_GPU_UNSUPPORTED",
            "DLPack cannot carry a tensor of a LooseLeaf virtual GPU to another library; that needs a real GPU. "
            "Nothing was changed; use .cpu() first to hand over a host copy.",
            feature="dlpack",
        )

    def nothing(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """No stream runs ahead here."""
        return None

    def share_memory_(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Device memory is shared already."""
        return func(*args, **kwargs) if index_of(args[0]) is None else args[0]

    def is_shared(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """True for device memory."""
        return index_of(args[0]) is not None or func(*args, **kwargs)

    def getitem(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A device tensor takes indices of the host; a host tensor takes none of a device."""
        tensor, key = args[0], args[1]
        index = index_of(tensor)
        if index is None:
            self._check_key(index, key)
            return func(*args, **kwargs)
        if type(key) is not int:
            self._check_key(index, key)
        result = func(*args, **kwargs)
        self.mode.use()
        tag_tensor(self.gpus, result, index)
        return result

    def setitem(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Between devices values are copied, as by `copy_`; but through index tensors only numbers are."""
        tensor, key, value = args
        index = index_of(tensor)
        other = index_of(value) if isinstance(value, Tensor) else index
        if index is None and other is None and not any(isinstance(part, Tensor) for part in _parts(key)):
            return func(*args, **kwargs)
        by_tensors = self._check_key(index, key)
        if other != index and by_tensors and value.dim():
            raise mismatches.two_devices_error(index, other)
        self.mode.write(func)
        return func(*args, **kwargs)

    def _check_key(self, index: int | None, key: Any) -> bool:
        """Raise for an index tensor of a device that is not the indexed one's; whether there are index tensors."""
        found = False
        for part in _parts(key):
            if isinstance(part, (list, range)):
                found = True
            elif isinstance(part, Tensor) and (part.dim() > 0 or part.dtype in _MASKS):
                found = True
                at = index_of(part)
                if at is not None and at != index:
                    raise mismatches.index_error(index)
        return found

    def resize_(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """New memory is the device's too, and counts."""
        if index_of(args[0]) is None:
            return func(*args, **kwargs)
        self.mode.write(func)
        result = func(*args, **kwargs)
        if args[0].layout is _strided:
            recharge_storage(self.gpus, args[0].untyped_storage())
        return result

    def array_interface(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Other libraries would take the address for a real GPU's."""
        if index_of(args[0]) is None:
            return func(*args, **kwargs)
        raise VirtualGpuAttributeError(
            "VIRTUAL_GPU_UNSUPPORTED",
            "__cuda_array_interface__ cannot hand a tensor of a LooseLeaf virtual GPU to another library; that needs a "
            "real GPU. Nothing was changed; use .cpu() first to hand over a host copy.",
            feature="__cuda_array_interface__",
        )

    def item(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Reading values waits for the device."""
        if index_of(args[0]) is not None:
            self.mode.use()
        return func(*args, **kwargs)

    def host_only(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`apply_` and `map_` exist for host tensors only."""
        if index_of(args[0]) is not None:
            raise TypeError(f"{func.__name__} is only implemented on CPU tensors")
        return func(*args, **kwargs)

    def no_kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What CUDA has no kernel for."""
        if index_of(args[0]) is not None:
            raise NotImplementedError(f"Could not run 'aten::{func.__name__}' with arguments from the 'CUDA' backend.")
        return func(*args, **kwargs)


def grad_of(mode: VirtualDeviceMode, tensor: Any) -> Any:
    """`tensor.grad`, on the tensor's device. C++ makes gradients where no mode sees it: they are tagged when read."""
    grad = _grad_get(tensor)
    if grad is None:
        return None
    index, have = index_of(tensor), index_of(grad)
    if index == have:
        return grad
    if index is not None:
        tag_tensor(mode.gpus, grad, index)
        return grad
    # The gradient of a host leaf came down from a device without a copy, for both are host memory in truth.
    own = grad.detach().clone()
    retag_storage(mode.gpus, own.untyped_storage(), None)
    tensor.grad = own
    return _grad_get(tensor)
