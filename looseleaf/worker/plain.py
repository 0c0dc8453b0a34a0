"""Values of display messages as plain values, by the rules that Jupyter's own JSON encoder uses."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any, Final

_DEPTH_MAX: Final = 200


def plain(value: Any, depth: int = 0) -> Any:
    """`value` with text keys and nothing but None, bool, int, float, str, bytes, list and dict in it.

    Numbers of other libraries become int or float, dates ISO text, other iterables lists, lone surrogates "?"; keys
    become text as JSON would make them. Raises ValueError for anything else and for nesting beyond 200.
    """
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind is int:
        # msgpack ends at 64 bits; a larger number is a float for a front end anyway.
        return value if -(1 << 63) <= value < 1 << 64 else _as_float(value)
    if kind is float or kind is bytes:
        return value
    if depth > _DEPTH_MAX:
        raise ValueError("an output is nested too deeply to be shown")
    if isinstance(value, Mapping):
        return {_key(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    return _other(value, depth)


def _other(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _text(str(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, numbers.Integral):
        return plain(int(value), depth)
    if isinstance(value, numbers.Real):
        return _as_float(value)
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, Iterable):
        return [plain(item, depth + 1) for item in value]
    raise ValueError(f"an object of type {type(value).__name__} cannot be part of a display message")


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError("a number beyond 1e308 cannot be part of a display message") from None


def _key(key: Any) -> str:
    if isinstance(key, str):
        return _text(str(key))
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, (int, float)):
        return repr(key)
    raise ValueError(f"a key of type {type(key).__name__} cannot be part of a display message")


def _text(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text
