"""Whether a value is an object of its own, or one that is equal wherever it is made again."""

from __future__ import annotations

import enum
import types
from typing import Any

from looseleaf.checkpoint import by_name
from looseleaf.checkpoint.edges import ATOMS, BYTES_PAYLOAD_MIN


def has_identity(value: Any) -> bool:
    """False for atoms and for what is found again by name; those are stored by variable, not by object."""
    kind = type(value)
    if kind in ATOMS or (kind is bytes and len(value) < BYTES_PAYLOAD_MIN):
        return False
    if issubclass(kind, (type, types.FunctionType)):
        return not by_name.is_importable(value)
    if issubclass(kind, types.ModuleType):
        return not by_name.is_importable_module(value)
    if kind is types.BuiltinFunctionType:
        return value.__self__ is not None and not isinstance(value.__self__, types.ModuleType)
    return not (issubclass(kind, enum.Enum) and by_name.is_importable(kind))
