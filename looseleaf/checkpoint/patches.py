"""Attributes of modules and classes that session code set, as `math.sqrt = fake`: part of the session (design §3).

A place is (module, attribute), the attribute of a class with the class before it: ("json", "JSONEncoder.default").
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from looseleaf.checkpoint import rebuild
from looseleaf.checkpoint.by_name import SESSION_MODULE, is_importable, is_library_module
from looseleaf.checkpoint.loaded_files import LOADED_FILES
from looseleaf.checkpoint.looked import Looked
from looseleaf.checkpoint.module_code import BASELINE, PLAIN
from looseleaf.devices.hook import PostImportHook

# What sets the settings of a module when it is imported.
_waiting: dict[str, PostImportHook] = {}
# What is looked at if a module's own code did not set it. Libraries put functions of their own in the place of others.
_SET: Final = PLAIN | {list, dict, set, tuple, frozenset, functools.partial, types.MethodType}
_ADDED: Final = _SET | {types.FunctionType, types.BuiltinFunctionType}
# Stands among the settings of a person's module for its file as it was loaded: they are settings of that text only.
FILE_STATE: Final = "__file__ as loaded"
# Attributes of library classes that one save looks at; what is beyond is not found.
CLASS_ATTRIBUTES_MAX: Final = 200_000
Patches = dict[tuple[str, str], Any]


class PatchFinder:
    """Finds them for one namespace, save by save: only modules and classes in which something was set since the last
    save are looked at anew."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        # What was found in those that the last save looked at; a class is kept, as its id alone may be used again.
        self._modules: dict[str, Looked[Patches]] = {}
        self._classes: dict[int, tuple[type, Looked[list[tuple[str, Any]]]]] = {}

    def find(self, last: Patches) -> Patches:
        """What session code set in modules that the session's variables name, and in classes of these modules.

        In a library: functions, classes and objects of the session, and plain values and containers that its own code
        did not set. In other modules, such as a `config.py` beside the notebook, all plain values: they are settings.
        `last`: those of the newest version, which stand for modules that are not here.
        """
        namespace = self._namespace
        # By type: isinstance asks an object for its class, and a dead proxy raises.
        values = list(namespace.values())
        modules: dict[str, types.ModuleType] = {
            value.__name__: value for value in values if issubclass(type(value), types.ModuleType)
        }
        here = {name: module for name, module in modules.items() if sys.modules.get(name) is module}
        here.pop(SESSION_MODULE, None)
        found: Patches = {place: value for place, value in last.items() if place[0] not in modules}
        self._modules = {name: self._modules.get(name) or Looked() for name in here}
        for name, module in here.items():
            found.update(self._modules[name].of(vars(module), partial(_in_module, name, module, namespace)))
        for (name, attribute), value in self._in_classes(_classes(values, here)):
            found[name, attribute] = value
        return dict(sorted(found.items()))

    def _in_classes(self, classes: set[type]) -> Iterator[tuple[tuple[str, str], Any]]:
        left = CLASS_ATTRIBUTES_MAX
        known, self._classes = self._classes, {}
        for cls in classes:
            left -= len(vars(cls))
            if left < 0:
                return
            _, looked = self._classes[id(cls)] = known.get(id(cls)) or (cls, Looked())
            found = looked.of(vars(cls), partial(_of_session_in, cls, self._namespace))
            if found and cls.__module__ != SESSION_MODULE and is_importable(cls):
                for name, value in found:
                    yield (cls.__module__, f"{cls.__qualname__}.{name}"), value


def _in_module(name: str, module: types.ModuleType, namespace: Mapping[str, Any]) -> Patches:
    found: Patches = {}
    is_persons = not is_library_module(name)
    for attribute, value in list(vars(module).items()):
        is_setting = is_persons and type(value) in PLAIN and not attribute.startswith("__")
        if is_setting or _is_of_session(value, namespace):
            found[name, attribute] = value
    if found and is_persons and (state := LOADED_FILES.state_of(name, module)):
        found[name, FILE_STATE] = state
    if not is_persons:
        for attribute, is_new in BASELINE.set_by_others(name, module):
            value = vars(module).get(attribute)
            if type(value) in (_ADDED if is_new else _SET) and not _is_of_shell(value):
                found[name, attribute] = value
    return found


def _is_of_session(value: Any, namespace: Mapping[str, Any]) -> bool:
    kind = type(value)
    if kind is types.FunctionType:
        return value.__globals__ is namespace
    if issubclass(kind, type):
        return value.__module__ == SESSION_MODULE and not is_importable(value)
    return kind.__module__ == SESSION_MODULE and not issubclass(kind, types.ModuleType) and not is_importable(kind)


def _is_of_shell(value: Any) -> bool:
    """What a shell puts into `builtins`, `getpass` and others while a cell runs: every process has its own."""
    owner = type(value.__self__) if type(value) is types.MethodType else value
    module = getattr(owner, "__module__", None) if type(owner) is types.FunctionType or owner is not value else None
    return type(module) is str and module.partition(".")[0] in _SHELLS


_SHELLS: Final = frozenset({"IPython", "ipykernel", "looseleaf"})


def _classes(values: list[Any], modules: Mapping[str, types.ModuleType]) -> set[type]:
    """Library classes that variables name, or that are attributes of modules which they name."""
    named = [value for value in values if type(value) is type or issubclass(type(value), type)]
    for module in modules.values():
        named += [value for value in list(vars(module).values()) if issubclass(type(value), type)]
    return {cls for cls in named if cls.__flags__ & _HEAP_TYPE and type(cls.__module__) is str}


_HEAP_TYPE: Final = 1 << 9


def _of_session_in(cls: type, namespace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        (name, value) for name, value in list(vars(cls).items())
        if (type(value) is types.FunctionType and value.__globals__ is namespace)
        or (type(value) not in _NEVER_OF_SESSION and _is_member_of_session(value, namespace))
    ]  # fmt: skip


# Most attributes are of these types.
_NEVER_OF_SESSION: Final = frozenset({
    types.FunctionType, types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.BuiltinFunctionType, types.ClassMethodDescriptorType, type, dict, list, tuple,
    frozenset, set, bytes, *PLAIN,
})  # fmt: skip


def _is_member_of_session(value: Any, namespace: Mapping[str, Any]) -> bool:
    kind = type(value)
    if kind is types.FunctionType:
        return value.__globals__ is namespace
    if kind is property:
        return any(_is_member_of_session(one, namespace) for one in (value.fget, value.fset, value.fdel))
    if kind is staticmethod or kind is classmethod:
        return _is_member_of_session(value.__func__, namespace)
    if kind.__module__ == "pandas.core.accessor":
        # What `register_dataframe_accessor` leaves in the class.
        return any(_is_of_session(one, namespace) for one in vars(value).values())
    return kind.__module__ == SESSION_MODULE and _is_of_session(value, namespace)


def apply_patches(patches: Patches) -> list[str]:
    """Sets them again, and takes back those set before that are none any more; returns what could not be, as of a
    module that a cell made itself and no import finds.

    Settings never import their module: they wait until a cell does.
    """
    problems: list[str] = []
    settings: dict[str, dict[str, Any]] = {}
    for place in _replaced.keys() - patches.keys():
        try:
            _take_back(place, _replaced.pop(place))
        except Exception as error:
            problems.append(f"{place[0]}.{place[1]} could not be taken back ({type(error).__name__})")
    for (module_name, attribute), value in patches.items():
        if type(value) in PLAIN:
            settings.setdefault(module_name, {})[attribute] = value
        else:
            try:
                _set_one(module_name, attribute, value)
            except (Exception, SystemExit) as error:
                problems.append(f"{module_name}.{attribute} could not be set ({type(error).__name__})")
    for hook in _waiting.values():
        hook.stop()
    _waiting.clear()
    for module_name, values in settings.items():
        _waiting[module_name] = PostImportHook(module_name, partial(_set, module_name, values))
        _waiting[module_name].start()
    return problems


# What was at a place before it was set here; `_NOTHING` if nothing was.
_replaced: Patches = {}
_NOTHING: Final = object()


def _owner_of(module_name: str, attribute: str) -> tuple[Any, str]:
    owner: Any = sys.modules[module_name]
    *way, name = attribute.split(".")
    for part in way:
        owner = getattr(owner, part)
    return owner, name


def _set_one(module_name: str, attribute: str, value: Any) -> None:
    __import__(module_name)
    owner, name = _owner_of(module_name, attribute)
    if owner is sys.modules[module_name] and isinstance(vars(owner).get(name), types.BuiltinFunctionType):
        rebuild.keep_original(module_name, name, vars(owner)[name])
    _replaced.setdefault((module_name, attribute), vars(owner).get(name, _NOTHING))
    if isinstance(owner, type):
        type.__setattr__(owner, name, value)
    else:
        setattr(owner, name, value)


def _take_back(place: tuple[str, str], before: Any) -> None:
    if place[0] not in sys.modules:
        return
    owner, name = _owner_of(*place)
    if before is not _NOTHING:
        (type.__setattr__ if isinstance(owner, type) else setattr)(owner, name, before)
    elif name in vars(owner):
        (type.__delattr__ if isinstance(owner, type) else delattr)(owner, name)


def _set(module_name: str, values: dict[str, Any]) -> None:
    module = vars(sys.modules[module_name])
    wanted = values.get(FILE_STATE, "")
    if wanted and wanted != LOADED_FILES.state_of(module_name, sys.modules[module_name]):
        # Another text with values of its own: the file was changed after one of both processes had loaded it.
        return
    for name, value in values.items():
        if name == FILE_STATE:
            continue
        _replaced.setdefault((module_name, name), module.get(name, _NOTHING))
        module[name] = value
