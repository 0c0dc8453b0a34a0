"""What a unit's header tells of a value: type, shape, a short text. Never runs code of the person's classes."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any, Final

from looseleaf.checkpoint.manifest import PREVIEW_CHARS_MAX, Flag
from looseleaf.checkpoint.memory import device_of
from looseleaf.checkpoint.stub import is_stub

_ITEMS_SHOWN_MAX: Final = 5
_DEPTH_MAX: Final = 2
_FLAG_INT_BITS_MAX: Final = 62
_FLAG_CHARS_MAX: Final = 200
_NUMBERS: Final = (bool, int, float, complex, type(None))
_BRACKETS: Final[dict[Any, tuple[str, str]]] = {
    list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}"), set: ("{", "}"), frozenset: ("{", "}"),
}  # fmt: skip
_SIZED: Final = (list, tuple, dict, set, frozenset, str, bytes, bytearray)


def plain_flag(value: Any) -> tuple[bool, Flag]:
    """(True, value) for a small plain value that a recipe may evaluate, else (False, None)."""
    kind = type(value)
    if kind is int and value.bit_length() > _FLAG_INT_BITS_MAX:
        return False, None
    if kind is str:
        return (True, value) if len(value) <= _FLAG_CHARS_MAX and is_encodable(value) else (False, None)
    if kind.__name__ == "device" and kind.__module__ == "torch":
        # Recipes follow devices as their strings: `.to(device)` decides where a cell runs.
        return True, str(value)
    return (True, value) if kind in (bool, int, float, type(None)) else (False, None)


def is_encodable(text: str) -> bool:
    """False for a text with lone surrogates, which no manifest can hold."""
    return text.isascii() or text.encode("utf-8", "replace") == text.encode("utf-8", "surrogatepass")


def kind_of(value: Any) -> str:
    """"module", "class", "function", "value" for builtin data, "instance" for the rest."""
    # By type: isinstance asks an object for its class.
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        return "module"
    if issubclass(kind, type):
        return "class"
    if issubclass(kind, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return "function"
    return "value" if kind in (*_NUMBERS, *_SIZED) else "instance"


def sizes_of(value: Any) -> dict[str, Any]:
    """length, shape, dtype and device, as far as `value` has them and tells them."""
    try:
        return _sizes_of(value)
    except Exception:
        # Such as a nested tensor, which has no shape, or a subclass that has none yet.
        return {}


def _sizes_of(value: Any) -> dict[str, Any]:
    kind = type(value)
    torch, numpy, pandas = sys.modules.get("torch"), sys.modules.get("numpy"), sys.modules.get("pandas")
    if kind in _SIZED:
        return {"length": len(value)}
    if torch is not None and hasattr(torch, "Tensor") and issubclass(kind, torch.Tensor):
        return _tensor_sizes(value)
    if numpy is not None and hasattr(numpy, "ndarray") and issubclass(kind, numpy.ndarray):
        length = {"length": value.shape[0]} if value.ndim else {}
        return {"shape": tuple(value.shape), "dtype": str(value.dtype), **length}
    if pandas is not None and hasattr(pandas, "DataFrame") and kind in (pandas.DataFrame, pandas.Series):
        dtype = {"dtype": str(value.dtype)} if kind is pandas.Series else {}
        return {"length": len(value.index), "shape": tuple(int(n) for n in value.shape), **dtype}
    return {}


def _tensor_sizes(value: Any) -> dict[str, Any]:
    # A class of the person's may have a `__torch_function__`, which even a shape would call.
    with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
        return _plain_tensor_sizes(value)


def _plain_tensor_sizes(value: Any) -> dict[str, Any]:
    shape = tuple(int(n) for n in value.shape)
    try:
        device = device_of(value.untyped_storage())
    except (RuntimeError, NotImplementedError):
        device = str(value.device)
    length = {"length": shape[0]} if shape else {}
    return {"shape": shape, "dtype": str(value.dtype), "device": device, **length}


def preview_of(value: Any) -> str:
    """A text of at most PREVIEW_CHARS_MAX characters."""
    text = _preview(value, _DEPTH_MAX)
    if not is_encodable(text):
        text = text.encode("ascii", "backslashreplace").decode("ascii")
    return text if len(text) <= PREVIEW_CHARS_MAX else text[: PREVIEW_CHARS_MAX - 1] + "…"


def _preview(value: Any, depth: int) -> str:
    kind = type(value)
    if is_stub(value):
        return repr(value)
    if kind is int and value.bit_length() > 4 * PREVIEW_CHARS_MAX:
        return f"int of {value.bit_length()} bits"
    if kind in _NUMBERS:
        return repr(value)
    if kind in (str, bytes, bytearray):
        return repr(value[:PREVIEW_CHARS_MAX])
    if kind in (list, tuple, set, frozenset, dict):
        return _preview_container(value, depth)
    if issubclass(kind, types.ModuleType):
        return f"module {value.__name__}"
    if issubclass(kind, type):
        return f"class {value.__name__}"
    if issubclass(kind, types.FunctionType):
        if depth < 0:
            return f"function {value.__name__}(…)"
        return f"function {value.__name__}({_parameters(value, depth)})"
    sizes = sizes_of(value)
    details = ", ".join(str(sizes[key]) for key in ("shape", "dtype", "device") if key in sizes)
    return f"{kind.__name__}({details})" if details else f"{kind.__name__} object"


def _parameters(function: types.FunctionType, depth: int) -> str:
    """As in the function's text, without annotations; a default may hold the function itself."""
    code, given = function.__code__, function.__kwdefaults__ or {}
    count = code.co_argcount
    names = list(code.co_varnames)
    positional, only = names[:count], names[count : count + code.co_kwonlyargcount]
    stars = names[count + len(only) :]
    defaults = function.__defaults__ or ()
    first = count - len(defaults)
    parts = [
        name if index < first else f"{name}={_preview(defaults[index - first], depth - 1)}"
        for index, name in enumerate(positional)
    ]
    if code.co_posonlyargcount > 0:
        parts.insert(code.co_posonlyargcount, "/")
    if code.co_flags & inspect.CO_VARARGS:
        parts.append(f"*{stars.pop(0)}")
    elif only:
        parts.append("*")
    parts += [f"{name}={_preview(given[name], depth - 1)}" if name in given else name for name in only]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append(f"**{stars.pop(0)}")
    return ", ".join(parts)


def _preview_container(value: Any, depth: int) -> str:
    if depth <= 0:
        return f"{type(value).__name__} of {len(value)}"
    shown = []
    items = value.items() if isinstance(value, dict) else value
    for index, item in enumerate(items):
        if index == _ITEMS_SHOWN_MAX:
            shown.append("…")
            break
        if isinstance(value, dict):
            shown.append(f"{_preview(item[0], depth - 1)}: {_preview(item[1], depth - 1)}")
        else:
            shown.append(_preview(item, depth - 1))
    opening, closing = _BRACKETS[type(value)]
    return opening + ", ".join(shown) + closing
