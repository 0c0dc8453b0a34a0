"""A header of a live value without walking it, for recipes between two saves."""

from __future__ import annotations

import types
from dataclasses import replace
from typing import Any

from looseleaf.checkpoint.by_name import is_importable
from looseleaf.checkpoint.code_names import names_read_by
from looseleaf.checkpoint.manifest import UnitHeader
from looseleaf.checkpoint.previews import kind_of, plain_flag, preview_of, sizes_of


def light_header(value: Any, saved: UnitHeader | None) -> UnitHeader:
    """What `value` shows of itself; `saved`: the last version's header, if the name was bound to this object then."""
    kind = type(value)
    has_flag, flag = plain_flag(value)
    fresh = UnitHeader(
        kind=kind_of(value), type_name=kind.__qualname__,
        type_module=kind.__module__ if type(kind.__module__) is str else "",
        preview=preview_of(value), flag=flag, has_flag=has_flag, **sizes_of(value),
    )  # fmt: skip
    if saved is not None:
        return replace(
            fresh, refs=saved.refs, payloads=saved.payloads, modules=saved.modules, global_names=saved.global_names,
            device_bytes=saved.device_bytes, session_classes=saved.session_classes, notes=saved.notes,
        )  # fmt: skip
    return replace(fresh, modules=_modules(value), global_names=_names(value), device_bytes=_device_bytes(value, fresh))


def _modules(value: Any) -> tuple[str, ...]:
    kind = type(value)
    owner = value if issubclass(kind, (type, types.FunctionType)) else kind
    module = value.__name__ if issubclass(kind, types.ModuleType) else owner.__module__
    known = issubclass(kind, types.ModuleType) or is_importable(owner)
    return (module,) if known and type(module) is str and module != "builtins" else ()


def _names(value: Any) -> tuple[str, ...]:
    functions = [value]
    if type(value) is types.MethodType:
        functions = [value.__func__]
    elif issubclass(type(value), type) and not is_importable(value):
        members = list(vars(value).values())
        functions = [m.__func__ if type(m) in (staticmethod, classmethod) else m for m in members]
    found: set[str] = set()
    for function in functions:
        if type(function) is types.FunctionType and not is_importable(function):
            found.update(names_read_by(function.__code__))
    return tuple(sorted(found))


def _device_bytes(value: Any, header: UnitHeader) -> dict[str, int]:
    if header.device is None:
        return {}
    return {header.device: int(value.untyped_storage().nbytes())}
