"""`torch.device(0)`, and types of tensors that tell a host tensor from a device's: `torch.FloatTensor` (design §8).

torch's own types are built in and cannot be changed; what stands in their places makes the same objects and knows them.
Imported only after torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from looseleaf.devices.patches import PatchSet
from looseleaf.devices.requests import DTYPES
from looseleaf.devices.tags import index_of

torch: Any = importlib.import_module("torch")


class _StandIn(type):
    """The type of a stand-in: equal to the real type, as a key too, and knowing its instances."""

    real: Any

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.real)

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return subclass is cls or issubclass(subclass, cls.real)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.real

    def __hash__(cls) -> int:
        return hash(cls.real)


class _DeviceType(_StandIn):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        given = args[0] if len(args) == 1 else kwargs.get("device") if len(kwargs) == 1 and not args else None
        if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
            return cls.real("cuda", given)
        return cls.real(*args, **kwargs)


class _HostTensorType(_StandIn):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.real) and index_of(instance) is None

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.real(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.real, name)


def real_type(kind: Any) -> Any:
    """torch's own type where `kind` stands for it; else `kind`."""
    return kind.real if isinstance(kind, _StandIn) else kind


def patch_device_type(patches: PatchSet) -> None:
    """An int is a CUDA device's index wherever torch has CUDA."""
    real = torch.device
    names = {"real": real, "__module__": "torch", "__doc__": real.__doc__}
    patches.set(torch, "device", _DeviceType("device", (), names))


def patch_host_tensor_types(patches: PatchSet) -> None:
    """`isinstance(tensor, torch.FloatTensor)` is about the host."""
    for name in DTYPES:
        if hasattr(torch, name):
            names = {"real": getattr(torch, name), "__module__": "torch"}
            patches.set(torch, name, _HostTensorType(name, (), names))
