"""Which virtual device a storage lives on (design §8).

The tag is an attribute of the `torch.UntypedStorage` object. torch keeps that object's identity and attributes for as
long as the C++ storage lives, whoever holds it, and drops them with it: a storage allocated at a freed address starts
untagged. Every view, alias, `detach`, `.data` and saved tensor shares the storage and so the tag.

Imported only after torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from looseleaf.devices.virtual import Ledger, VirtualGpus, charged_bytes
from looseleaf.units import GIB, MIB

torch: Any = importlib.import_module("torch")

TAG = "_looseleaf_tag"
PINNED = "_looseleaf_pinned"
# Attributes of the class while virtual devices are on, so that reading a storage without a tag costs no exception.
CLASS_DEFAULTS: dict[str, Any] = {TAG: None, PINNED: False}

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
UntypedStorage = torch.UntypedStorage
_untyped_storage = torch._C.TensorBase.untyped_storage
_no_subclass = torch._C.DisableTorchFunctionSubclass
_strided = torch.strided


class Tag:
    """Dies with its storage, and then takes the storage's bytes off the device's ledger."""

    __slots__ = ("_ledger", "charged_bytes", "index")

    def __init__(self, index: int, ledger: Ledger, charged_bytes: int) -> None:
        self.index = index
        self._ledger = ledger
        self.charged_bytes = charged_bytes

    def __del__(self) -> None:
        self._ledger.free(self.charged_bytes)


def storage_index(storage: Any) -> int | None:
    """The virtual device of a storage, None if it is the host's."""
    tag = getattr(storage, TAG, None)
    return None if tag is None else tag.index


def index_of(tensor: Any) -> int | None:
    """The virtual device of any tensor, None if it is the host's (or of another real device)."""
    kind = type(tensor)
    if kind is Tensor or kind is Parameter:
        try:
            tag = tensor.untyped_storage()._looseleaf_tag
        except (RuntimeError, NotImplementedError):
            return _index_of_unusual(tensor)
        return None if tag is None else tag.index
    with _no_subclass():
        return _index_of_unusual(tensor)


def _index_of_unusual(tensor: Any) -> int | None:
    for part in storage_tensors(tensor):
        index = storage_index(_untyped_storage(part))
        if index is not None:
            return index
    return None


def storage_tensors(tensor: Any) -> list[Any]:
    """The tensors with a storage of their own in `tensor`: itself, or the parts of a sparse or wrapped one."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return storage_tensors(torch._C._functorch.get_unwrapped(tensor))
    layout = tensor.layout
    if layout is _strided or layout is torch.jagged:
        return [] if tensor.is_meta else [tensor]
    if layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def tag_storage(gpus: VirtualGpus, storage: Any, index: int) -> None:
    """Put an untagged storage on virtual device `index`; raises torch.OutOfMemoryError when it does not fit."""
    _charge(gpus, storage, index)


def _charge(gpus: VirtualGpus, storage: Any, index: int) -> None:
    size = storage.nbytes()
    ledger = gpus.ledgers[index]
    charged = ledger.add(size)
    if charged is None:
        raise out_of_memory(gpus, size, index)
    storage._looseleaf_tag = Tag(index, ledger, charged)


def retag_storage(gpus: VirtualGpus, storage: Any, index: int | None) -> None:
    """Put a storage on `index` (None: the host) whatever it was; for bytes that nobody else sees yet."""
    storage._looseleaf_tag = None
    if index is not None:
        tag_storage(gpus, storage, index)


def recharge_storage(gpus: VirtualGpus, storage: Any) -> None:
    """Count a storage that may have grown or shrunk with the bytes that it has now."""
    tag = getattr(storage, TAG, None)
    if tag is not None and tag.charged_bytes != charged_bytes(storage.nbytes()):
        # As the allocator would: new memory first, then the old is given back.
        _charge(gpus, storage, tag.index)


def tag_tensor(gpus: VirtualGpus, tensor: Any, index: int) -> None:
    """Put every untagged storage of `tensor` on `index`."""
    kind = type(tensor)
    if kind is Tensor or kind is Parameter:
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):
            pass
        else:
            if storage._looseleaf_tag is None:
                tag_storage(gpus, storage, index)
            return
    with _no_subclass():
        for part in storage_tensors(tensor):
            storage = _untyped_storage(part)
            if storage._looseleaf_tag is None:
                tag_storage(gpus, storage, index)


def storages_of(tensor: Any) -> list[Any]:
    """The storage objects of a tensor, so that two tensors can be compared by identity of memory."""
    with _no_subclass():
        return [_untyped_storage(part) for part in storage_tensors(tensor)]


def out_of_memory(gpus: VirtualGpus, size_bytes: int, index: int) -> Any:
    """The error of an allocation that does not fit, counted; its text is that of CUDA's caching allocator."""
    gpus.ledgers[index].refusals += 1
    return torch.OutOfMemoryError(_out_of_memory_text(gpus, size_bytes, index))


def _out_of_memory_text(gpus: VirtualGpus, size_bytes: int, index: int) -> str:
    ledger = gpus.ledgers[index]
    live, reserved = ledger.live_bytes(), ledger.reserved_bytes()
    free = max(ledger.capacity_bytes - reserved, 0)
    allowed = f"{_size(ledger.limit_bytes)} allowed; " if ledger.limit_bytes < ledger.capacity_bytes else ""
    return (
        f"CUDA out of memory. Tried to allocate {_size(size_bytes)}. GPU {index} has a total capacity of "
        f"{_size(ledger.capacity_bytes)} of which {_size(free)} is free. "
        f"Including non-PyTorch memory, this process has {_size(reserved)} memory in use. "
        f"{allowed}Of the allocated memory {_size(live)} is allocated by PyTorch, and "
        f"{_size(max(reserved - live, 0))} is reserved by PyTorch but unallocated. "
        "(This is a LooseLeaf virtual GPU; its size is a setting.)"
    )


def _size(size_bytes: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if size_bytes > unit:
            return f"{size_bytes / unit:.2f} {name}"
    return f"{size_bytes} bytes"
