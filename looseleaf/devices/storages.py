"""Storages of virtual devices, and how `torch.save`, `torch.load` and pickle keep their device.

Imported only after torch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from looseleaf.devices.mismatches import device_name
from looseleaf.devices.patches import PatchSet
from looseleaf.devices.requests import HOST, requested
from looseleaf.devices.stack import on_stack
from looseleaf.devices.tags import CLASS_DEFAULTS, index_of, recharge_storage, retag_storage, storage_index
from looseleaf.devices.virtual import VirtualGpus
from looseleaf.errors import Unsupported

torch: Any = importlib.import_module("torch")
_serialization: Any = importlib.import_module("torch.serialization")
_UntypedStorage = torch.UntypedStorage
raw_device = torch._C.StorageBase.device.__get__
# Before torch's own entries, whose first is 10.
_PRIORITY = 5


def patch_class_defaults(patches: PatchSet) -> None:
    """Give every storage the attributes that tags use."""
    for name, value in CLASS_DEFAULTS.items():
        patches.set(_UntypedStorage, name, value)


def patch_storages(gpus: VirtualGpus, mode: Any, patches: PatchSet) -> None:
    """Let a storage say and change its device, wherever `mode` sees the caller; torch's inner code sees the host."""

    def device(storage: Any) -> Any:
        tag = storage._looseleaf_tag
        if tag is None or not on_stack(mode):
            return raw_device(storage)
        return torch.device("cuda", tag.index)

    def copied(storage: Any, index: int | None) -> Any:
        made = _UntypedStorage(storage.nbytes())
        made.copy_(storage)
        if index is not None:
            gpus.touch()
            retag_storage(gpus, made, index)
        return made

    original_to, original_clone = _UntypedStorage.to, _UntypedStorage.clone

    def to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        target = requested(gpus, device)
        if target < HOST:
            return original_to(self, device=device, non_blocking=non_blocking)
        index = None if target == HOST else target
        return self if storage_index(self) == index else copied(self, index)

    def clone(self: Any) -> Any:
        index = storage_index(self)
        return original_clone(self) if index is None else copied(self, index)

    patches.set(_UntypedStorage, "device", property(device))
    patches.set(_UntypedStorage, "to", to)
    patches.set(_UntypedStorage, "clone", clone)
    patches.set(_UntypedStorage, "_share_cuda_", _refuse_sharing)


def patch_storage_making(gpus: VirtualGpus, mode: Any, patches: PatchSet) -> None:
    """`torch.UntypedStorage(10, device="cuda")`, `torch.cuda.FloatStorage(10)`, and memory that grows in place."""
    original, original_resize = _UntypedStorage.__new__, _UntypedStorage.resize_

    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        target = HOST if device is None else requested(gpus, device)
        if target == HOST:
            return original(cls, *args, **kwargs)
        if target < HOST:
            return original(cls, *args, device=device, **kwargs)
        gpus.touch()
        made = original(cls, *args, **kwargs)
        retag_storage(gpus, made, target)
        return made

    def resize_(self: Any, size: int) -> Any:
        result = original_resize(self, size)
        recharge_storage(gpus, self)
        return result

    original_set = torch.Tensor.set_

    @functools.wraps(original_set)
    def set_(self: Any, source: Any = None, *args: Any, **kwargs: Any) -> Any:
        # torch tells no mode of this call.
        if source is not None and on_stack(mode):
            at = index_of(source) if isinstance(source, torch.Tensor) else storage_index(_untyped(source))
            if at != index_of(self):
                raise RuntimeError(
                    f'Attempted to set the storage of a tensor on device "{device_name(index_of(self))}" to a storage '
                    f'on different device "{device_name(at)}".  This is no longer allowed; the devices must match.'
                )
        return original_set(self) if source is None else original_set(self, source, *args, **kwargs)

    patches.set(torch.Tensor, "set_", set_)
    patches.set(_UntypedStorage, "__new__", staticmethod(new))
    patches.set(_UntypedStorage, "resize_", resize_)


def _untyped(storage: Any) -> Any:
    return getattr(storage, "_untyped_storage", storage)


def _refuse_sharing(storage: Any, *args: Any, **kwargs: Any) -> Any:
    raise Unsupported(
        "VIRTUAL_GPU_UNSUPPORTED",
        "A tensor of a LooseLeaf virtual GPU cannot be shared with another process; that needs a real GPU. "
        "Nothing was changed; send a host copy (.cpu()) instead.",
        feature="cuda_ipc",
    )


def patch_serialization(place: Callable[[Any, int], Any], gpus: VirtualGpus, patches: PatchSet) -> None:
    """Save tagged storages with their CUDA location, and restore such locations with `place(storage, index)`.

    A location whose device is not here raises RuntimeError, as on CUDA.
    """

    def tag(storage: Any) -> str | None:
        untyped = _untyped(storage)
        index = storage_index(untyped)
        return None if index is None else f"cuda:{index}"

    def restore(storage: Any, location: str) -> Any:
        if not location.startswith("cuda"):
            return None
        index = torch.device(location).index
        index = gpus.current if index is None else index
        if index >= gpus.count:
            raise RuntimeError(
                f"Attempting to deserialize object on CUDA device {index} but torch.cuda.device_count() is "
                f"{gpus.count}. Please use torch.load with map_location to map your storages to an existing device."
            )
        return place(storage, index)

    entry = (_PRIORITY, tag, restore)
    patches.set(_serialization, "_package_registry", [entry, *_serialization._package_registry])


def restored_on(gpus: VirtualGpus) -> Callable[[Any, int], Any]:
    """Places a freshly loaded storage, whose bytes nobody else sees yet."""

    def place(storage: Any, index: int) -> Any:
        gpus.touch()
        untyped = _untyped(storage)
        retag_storage(gpus, untyped, index)
        gpus.copied(untyped.nbytes())
        return storage

    return place
