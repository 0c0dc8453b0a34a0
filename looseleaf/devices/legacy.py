"""torch's older ways to a device: `torch.cuda.FloatTensor`, `torch.set_default_tensor_type`.

Imported only after torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from looseleaf.devices.device_type import real_type
from looseleaf.devices.patches import PatchSet
from looseleaf.devices.requests import DTYPES
from looseleaf.devices.tags import index_of

torch: Any = importlib.import_module("torch")


class CudaTensorType(type):
    """The type of `torch.cuda.FloatTensor` and its kin: makes tensors, and knows them by dtype and device."""

    dtype: Any
    is_cuda = True
    make: Callable[..., Any]

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.dtype is cls.dtype and index_of(instance) is not None

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.make(cls.dtype, *args, **kwargs)


def make_tensor(dtype: Any, *args: Any, device: Any = "cuda") -> Any:
    """As the old constructors: sizes give memory of any content, a sequence or a tensor gives its values."""
    if args and isinstance(args[0], torch.Size):
        args = tuple(args[0])
    if all(isinstance(value, int) for value in args):
        return torch.empty(*args, dtype=dtype, device=device) if args else torch.empty(0, dtype=dtype, device=device)
    return torch.tensor(args[0], dtype=dtype, device=device)


def patch_legacy(patches: PatchSet, make: Callable[..., Any]) -> None:
    """Replace the classes; `make(dtype, *args)` constructs, or refuses to."""
    for name, dtype in DTYPES.items():
        if hasattr(torch.cuda, name):
            namespace = {"dtype": dtype, "make": staticmethod(make), "__module__": "torch.cuda"}
            patches.set(torch.cuda, name, CudaTensorType(name, (), namespace))
    original = torch.set_default_tensor_type

    def set_default_tensor_type(t: Any) -> None:
        name = t if isinstance(t, str) else f"{t.__module__}.{t.__name__}"
        if not name.startswith("torch.cuda."):
            torch.set_default_device(None)
            original(real_type(getattr(torch, name.rpartition(".")[2])))
            return
        torch.set_default_dtype(DTYPES[name.rpartition(".")[2]])
        torch.set_default_device("cuda")

    patches.set(torch, "set_default_tensor_type", set_default_tensor_type)
