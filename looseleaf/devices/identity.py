"""What a virtual device tensor says about itself, and what it refuses because its bytes are "not on the host".

Imported only after torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from looseleaf.devices import functions
from looseleaf.devices.mode import Handler, VirtualDeviceMode
from looseleaf.devices.tags import index_of, retag_storage, tag_tensor
from looseleaf.errors import Unsupported

torch: Any = importlib.import_module("torch")
_tensor_str: Any = importlib.import_module("torch._tensor_str")
Tensor = torch.Tensor
_strided = torch.strided
_grad_get = torch.Tensor.grad.__get__
_BASE = torch._C.TensorBase


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
        table: dict[Any, Handler] = dict.fromkeys(functions.property_getters(), passthrough)
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
                torch.Tensor.__getitem__: self.getitem,
                torch.Tensor.item: self.item,
                torch.Tensor.tolist: self.item,
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
            for part in key if isinstance(key, tuple) else (key,):
                if isinstance(part, Tensor) and part.dim() > 0 and index_of(part) is not None:
                    raise RuntimeError(
                        "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
                    )
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        self.mode.use()
        tag_tensor(self.gpus, result, index)
        return result

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
