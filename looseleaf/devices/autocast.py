"""`torch.autocast("cuda")` on virtual GPUs: the dtypes of CUDA's autocast, computed on the CPU (design §8).

CUDA's lists decide (torch's `ATen/autocast_mode.h`): functions of one list get float32 arguments, of another the low
dtype, of a third the widest that they were given; all others run as they are. Convolutions in float16 and recurrent
layers are the exception: CPUs take up to 40 times as long for them as in float32, or cannot, so their arguments are
rounded to the low dtype, computed in float32, and the result rounded.

Imported only after torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from looseleaf.devices import functions

torch: Any = importlib.import_module("torch")
_LOW = (torch.float16, torch.bfloat16)
_CASTABLE = (torch.float32, *_LOW)
_WIDTHS = {torch.float16: 0, torch.bfloat16: 0, torch.float32: 1, torch.float64: 2}


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `func` as CUDA's autocast would, with what this thread has set for CUDA; the host's does not concern it."""
    if torch.is_autocast_enabled("cpu"):
        torch.set_autocast_enabled("cpu", False)
        try:
            return _run(func, args, kwargs)
        finally:
            torch.set_autocast_enabled("cpu", True)
    return _run(func, args, kwargs)


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not torch.is_autocast_enabled("cuda"):
        return func(*args, **kwargs)
    if func in functions.AUTOCAST_FLOAT32:
        return _call(func, args, kwargs, _widened)
    dtype = torch.get_autocast_dtype("cuda")
    if func in functions.RECURRENT or (dtype is torch.float16 and func in functions.CONVOLUTIONS):
        result = _call(func, args, kwargs, lambda value: _rounded(value, dtype))
        return _mapped(result, lambda value: value.to(dtype) if value.is_floating_point() else value)
    if func in functions.AUTOCAST_LOW:
        return _call(func, args, kwargs, lambda value: value.to(dtype) if value.dtype in _CASTABLE else value)
    if func in functions.AUTOCAST_WIDEST:
        widest = _widest((*args, *kwargs.values()))
        return _call(func, args, kwargs, lambda value: value.to(widest) if value.dtype in _WIDTHS else value)
    if func in functions.AUTOCAST_WITHIN:
        return within(func, args, kwargs, dtype)
    if func in functions.AUTOCAST_UNSAFE:
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
            "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
            "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
            "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
            "safe to autocast."
        )
    return func(*args, **kwargs)


def within(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: Any) -> Any:
    """Call what is made of many operators with the CPU's autocast, whose low-precision list is much the same."""
    was_enabled, was_dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", dtype)
    try:
        return func(*args, **kwargs)
    finally:
        torch.set_autocast_enabled("cpu", was_enabled)
        torch.set_autocast_dtype("cpu", was_dtype)


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], cast: Any) -> Any:
    return func(*(_mapped(value, cast) for value in args), **{name: _mapped(kwargs[name], cast) for name in kwargs})


def _mapped(value: Any, cast: Any) -> Any:
    """`cast` of each tensor in a value, and in the lists and tuples of it."""
    if isinstance(value, torch.Tensor):
        return cast(value)
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, cast) for item in value)
    return value


def _widest(values: tuple[Any, ...]) -> Any:
    found = [one.dtype for value in values for one in (value if isinstance(value, (list, tuple)) else (value,))
             if isinstance(one, torch.Tensor) and one.dtype in _WIDTHS]
    return max(found, key=_WIDTHS.__getitem__, default=torch.float32)


def _widened(value: Any) -> Any:
    return value.float() if value.dtype in _LOW else value


def _rounded(value: Any, dtype: Any) -> Any:
    return value.to(dtype).float() if value.dtype in _CASTABLE else value
