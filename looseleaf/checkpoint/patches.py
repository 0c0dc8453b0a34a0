"""Attributes of modules that session code replaced, as `math.sqrt = fake`: they belong to the session (design §3)."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any

from looseleaf.checkpoint.by_name import SESSION_MODULE, is_importable

Patches = dict[tuple[str, str], Any]


def find_patches(namespace: Mapping[str, Any]) -> Patches:
    """Functions and classes defined in the session that sit in modules which the session's variables name."""
    found: Patches = {}
    modules = {id(value): value for value in list(namespace.values()) if isinstance(value, types.ModuleType)}
    for module in modules.values():
        name = module.__name__
        if name == SESSION_MODULE or sys.modules.get(name) is not module:
            continue
        for attribute, value in list(vars(module).items()):
            if _is_of_session(value, namespace):
                found[name, attribute] = value
    return dict(sorted(found.items()))


def _is_of_session(value: Any, namespace: Mapping[str, Any]) -> bool:
    if type(value) is types.FunctionType:
        return value.__globals__ is namespace
    return isinstance(value, type) and value.__module__ == SESSION_MODULE and not is_importable(value)


def apply_patches(patches: Patches) -> None:
    """Sets them again, in modules that are imported or can be."""
    for (module_name, attribute), value in patches.items():
        __import__(module_name)
        setattr(sys.modules[module_name], attribute, value)
