"""Attributes of modules that session code replaced, as `math.sqrt = fake`: they belong to the session (design §3)."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from looseleaf.checkpoint.by_name import SESSION_MODULE, is_importable, is_library_module
from looseleaf.devices.hook import PostImportHook

# What sets the settings of a module when it is imported.
_waiting: dict[str, PostImportHook] = {}
_PLAIN: Final = frozenset({bool, int, float, str, type(None)})
Patches = dict[tuple[str, str], Any]


def find_patches(namespace: Mapping[str, Any], last: Patches) -> Patches:
    """Functions and classes defined in the session that sit in modules which the session's variables name.

    Of modules that are no library, such as a `config.py` beside the notebook, plain values too: they are settings.
    `last`: those of the newest version, which stand for modules that are not here.
    """
    # By type: isinstance asks an object for its class, and a dead proxy raises.
    values = list(namespace.values())
    modules = {value.__name__: value for value in values if issubclass(type(value), types.ModuleType)}
    found: Patches = {place: value for place, value in last.items() if place[0] not in modules}
    for name, module in modules.items():
        if name == SESSION_MODULE or sys.modules.get(name) is not module:
            continue
        is_persons = not is_library_module(name)
        for attribute, value in list(vars(module).items()):
            is_setting = is_persons and type(value) in _PLAIN and not attribute.startswith("__")
            if is_setting or _is_of_session(value, namespace):
                found[name, attribute] = value
    return dict(sorted(found.items()))


def _is_of_session(value: Any, namespace: Mapping[str, Any]) -> bool:
    if type(value) is types.FunctionType:
        return value.__globals__ is namespace
    return isinstance(value, type) and value.__module__ == SESSION_MODULE and not is_importable(value)


def apply_patches(patches: Patches) -> list[str]:
    """Sets them again; returns what could not be, as of a module that a cell made itself and no import finds.

    Settings never import their module: they wait until a cell does.
    """
    problems: list[str] = []
    settings: dict[str, dict[str, Any]] = {}
    for (module_name, attribute), value in patches.items():
        if type(value) in _PLAIN:
            settings.setdefault(module_name, {})[attribute] = value
        else:
            try:
                __import__(module_name)
                setattr(sys.modules[module_name], attribute, value)
            except (Exception, SystemExit) as error:
                problems.append(f"{module_name}.{attribute} could not be set ({type(error).__name__})")
    for hook in _waiting.values():
        hook.stop()
    _waiting.clear()
    for module_name, values in settings.items():
        _waiting[module_name] = PostImportHook(module_name, partial(_set, module_name, values))
        _waiting[module_name].start()
    return problems


def _set(module_name: str, values: dict[str, Any]) -> None:
    vars(sys.modules[module_name]).update(values)
