"""`torch.autocast("cuda")` on virtual GPUs: the dtypes of CUDA's autocast, computed on the CPU (design §8).

A function on CUDA's float32 list gets float32 arguments. Everything else runs under the CPU's autocast with CUDA's
dtype, whose list of low-precision functions is the same. Convolutions in float16 are the exception: CPUs take 40 times
as long for them as in float32, so their arguments are rounded to float16, computed in float32, and the result rounded.

Imported only after torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from looseleaf.devices import functions

torch: Any = importlib.import_module("torch")
_LOW = (torch.float16, torch.bfloat16)


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `func` as CUDA's autocast would, with the dtype that is set for CUDA in this thread."""
    if func in functions.AUTOCAST_FLOAT32:
        return func(*(_widened(value) for value in args), **{name: _widened(value) for name, value in kwargs.items()})
    dtype = torch.get_autocast_dtype("cuda")
    if dtype is torch.float16 and func in functions.CONVOLUTIONS:
        rounded = tuple(_rounded(value, dtype) for value in args)
        result = func(*rounded, **{name: _rounded(value, dtype) for name, value in kwargs.items()})
        return result.to(dtype)
    was_enabled, was_dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", dtype)
    try:
        return func(*args, **kwargs)
    finally:
        torch.set_autocast_enabled("cpu", was_enabled)
        torch.set_autocast_dtype("cpu", was_dtype)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _LOW:
        return value.float()
    return value


def _rounded(value: Any, dtype: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float32, *_LOW):
        return value.to(dtype).float()
    return value
