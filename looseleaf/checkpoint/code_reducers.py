"""How functions, classes and other things that code made are taken apart for a unit's pickle (design §3).

A function's globals are the session's live namespace and never a copy; its cells, and the class that it belongs to, are
objects of their own, shared by identity. Texts that Python interns are copied, so that equal state gives equal bytes.
"""

from __future__ import annotations

import _collections_abc
import abc
import builtins
import collections
import collections.abc
import contextvars
import copyreg
import decimal
import enum
import functools
import gc
import io
import logging
import marshal
import numbers
import random
import struct
import sys
import types
import typing
import weakref
from collections.abc import Callable, Container
from typing import Any, Final

from looseleaf.checkpoint import rebuild
from looseleaf.checkpoint.by_name import SESSION_MODULE, is_importable
from looseleaf.checkpoint.refusals import LOCK_TYPES

# What `object.__reduce_ex__` may return, and the pickler's own "save it as usual".
Reduced = Any
# Without references between equal constants, so that the bytes do not depend on who else holds them.
MARSHAL_VERSION: Final = 2


def _text(value: str | None) -> str | None:
    return None if value is None else "".join(value)


def _module_text(value: Any) -> Any:
    # None stands for the session's module: then its name in a pickle always means a reference by name. False is none.
    return None if value == SESSION_MODULE else _text(value) if isinstance(value, str) else False


def reduce_function(function: types.FunctionType, shared: Container[int] = ()) -> Reduced:
    """By name if an import brings it back, else by value. `shared`: ids of objects that others may hold, too."""
    if is_importable(function):
        return NotImplemented
    code = marshal.dumps(function.__code__, MARSHAL_VERSION)
    annotations, attributes = function.__annotations__, function.__dict__
    state = (
        _text(function.__name__), _text(function.__qualname__), _module_text(function.__module__), function.__doc__,
        function.__defaults__, function.__kwdefaults__,
        annotations if id(annotations) in shared else dict(annotations), function.__closure__,
        attributes if id(attributes) in shared else {"".join(key): value for key, value in attributes.items()},
    )  # fmt: skip
    return rebuild.function, (code, function.__globals__), state, None, None, rebuild.set_function


def place_of_nameless(cls: type) -> tuple[str, str] | None:
    """Where a builtin type is found that has no name among the builtins, such as that of a list's iterator."""
    if getattr(builtins, cls.__name__, None) is cls:
        return None
    return next((("_collections_abc", name) for name, value in vars(_collections_abc).items() if value is cls), None)


def reduce_builtin(function: types.BuiltinFunctionType) -> Reduced:
    """By name also if session code has put something else in its place."""
    owner = function.__self__
    if type(owner) is not types.ModuleType or getattr(owner, function.__name__, function) is function:
        return NotImplemented
    place = (owner.__name__, function.__name__)
    rebuild.keep_original(*place, function)
    return rebuild.original, place


def reduce_cell(cell: types.CellType) -> Reduced:
    """Empty first, its contents as state: a function may hold itself through one."""
    try:
        return rebuild.cell, (), (cell.cell_contents,), None, None, rebuild.set_cell
    except ValueError:
        return rebuild.cell, ()


def reduce_class(cls: type) -> Reduced:
    """A class defined in the session, attribute by attribute; its layout first, the rest as state."""
    attributes = {"".join(name): value for name, value in vars(cls).items() if not _is_made_again(cls, name, value)}
    slots = attributes.get("__slots__")
    if isinstance(cls, abc.ABCMeta):
        attributes.pop("_abc_impl", None)
    if attributes.get("__module__") == SESSION_MODULE:
        attributes["__module__"] = None
    # What stands in the class statement need not be a class: `NamedTuple` makes one that has `tuple` as its base.
    bases, written = cls.__bases__, vars(cls).get("__orig_bases__")
    layout = (tuple("".join(name) for name in attributes), slots, written)
    names = (_text(cls.__name__), _text(cls.__qualname__), _module_text(cls.__module__))
    state = (attributes, registered_with(cls), _abstract_bases(cls))
    return rebuild.class_, (type(cls), *names, bases, layout), state, None, None, rebuild.set_class


def _is_made_again(cls: type, name: str, value: Any) -> bool:
    # The last is a cache that pickling itself leaves on a class.
    if name in ("__dict__", "__weakref__", "__slotnames__"):
        return True
    return isinstance(value, types.MemberDescriptorType) and value.__objclass__ is cls


def registered_with(cls: type) -> list[type]:
    """Virtual subclasses of an abstract base class, sorted; none of any other class."""
    if not isinstance(cls, abc.ABCMeta):
        return []
    found = [reference() for reference in abc._get_dump(cls)[0]]  # type: ignore[attr-defined]
    return sorted((c for c in found if c is not None), key=lambda c: (c.__module__, c.__qualname__))


def _abstract_bases(cls: type) -> list[type]:
    """The abstract classes of the standard library with which the class was registered."""
    return [base for base in _library_bases() if cls in registered_with(base)]


@functools.lru_cache(maxsize=1)
def _library_bases() -> tuple[type, ...]:
    modules = (collections.abc, numbers, io)
    found = [value for module in modules for value in vars(module).values() if isinstance(value, abc.ABCMeta)]
    return tuple(dict.fromkeys(found))


def reduce_enum_member(member: enum.Enum) -> Reduced:
    """A member of an enumeration defined in the session: the class is shared, the attributes are state."""
    cls = type(member)
    member_type = getattr(cls, "_member_type_", object)
    value: Any = member
    plain: Any = None
    if member_type is not object:
        plain = member_type.__new__(member_type, value) if member_type in (int, float, bytes) else member._value_
    if member_type is str:
        plain = str.__str__(value)
    return rebuild.enum_member, (cls, member_type, plain), dict(vars(member)), None, None, rebuild.set_attributes


def reduce_weak_reference(reference: weakref.ref[Any]) -> Reduced:
    """Its target is saved with it, and lives after a restore only if somebody else holds it."""
    kind, target = type(reference), weakref.ref.__call__(reference)
    if kind is weakref.ref:
        return rebuild.weak_reference, (target, reference.__callback__)
    if issubclass(kind, weakref.WeakMethod):
        method = reference()
        return rebuild.weak_method, (target, _text(method.__name__) if method is not None else None)
    state = plain_state(reference)
    return rebuild.weak_reference, (target, reference.__callback__, kind), state, None, None, rebuild.set_plain_state


def plain_state(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attributes, and those in slots, as `set_plain_state` takes them."""
    names = copyreg._slotnames(type(value))  # type: ignore[attr-defined]
    slots = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return dict(getattr(value, "__dict__", {})), slots


def reduce_dict_view(view: Any) -> Reduced:
    """A view of the very dict that it shows."""
    (shown,) = gc.get_referents(view)
    return rebuild.dict_view, (shown, type(view).__name__.rpartition("_")[2])


def reduce_type_parameter(parameter: Any) -> Reduced:
    """A `typing.ParamSpec` or `TypeVarTuple` of the session; others are found by name."""
    module, name = parameter.__module__, parameter.__name__
    if module != SESSION_MODULE and getattr(sys.modules.get(module), name, None) is parameter:
        return NotImplemented
    attributes = {**getattr(parameter, "__dict__", {}), "__module__": _module_text(module)}
    return rebuild.type_parameter, (type(parameter), _text(name)), attributes, None, None, rebuild.set_type_parameter


def reduce_counter(counter: collections.Counter[Any]) -> Reduced:
    """With its attributes, which its own way leaves out."""
    items = iter(list(dict.items(counter)))
    return copyreg.__newobj__, (type(counter),), vars(counter) or None, None, items  # type: ignore[attr-defined]


def proxied(proxy: Any) -> Any:
    """What a weak proxy stands for, None if that is gone."""
    try:
        return proxy.__reduce_ex__.__self__
    except ReferenceError:
        return None


def reduce_weak_proxy(proxy: Any) -> Reduced:
    """As a weak reference; left to itself it would be saved as a copy of what it stands for."""
    return rebuild.weak_proxy, (proxied(proxy),)


def reduce_weak_dict(mapping: Any) -> Reduced:
    """Entries whose weak side is alive."""
    keys = isinstance(mapping, weakref.WeakKeyDictionary)
    return rebuild.weak_dict, (keys, []), list(mapping.items()), None, None, rebuild.set_weak_dict


def reduce_lock(lock: Any) -> Reduced:
    """A free lock comes back as a new free one, shared as it was; a held one was refused before."""
    return rebuild.free_lock, (type(lock) is not LOCK_TYPES[0],)


def reduce_logger(logger: logging.Logger) -> Reduced:
    """By name, with the level, flags, handlers and filters that it has."""
    name = "" if isinstance(logger, logging.RootLogger) else logger.name
    state = (logger.level, logger.propagate, logger.disabled, list(logger.handlers), list(logger.filters))
    return rebuild.logger, (name,), state, None, None, rebuild.set_logger


def reduce_lru_cache(cached: Any) -> Reduced:
    """A cached function of the session, with its cache empty: the results are computed again."""
    wrapped = getattr(cached, "__wrapped__", None)
    if wrapped is None or is_importable(cached):
        return NotImplemented
    parameters = cached.cache_parameters()
    state = dict(vars(cached))
    return rebuild.lru_cached, (parameters["maxsize"], parameters["typed"]), state, None, None, rebuild.set_lru_cached


def reduce_new_type(alias: typing.NewType) -> Reduced:
    """A `typing.NewType` of the session; others are found by name."""
    if is_importable(alias):
        return NotImplemented
    arguments = (_text(alias.__name__), alias.__supertype__)
    return rebuild.new_type, arguments, dict(vars(alias)), None, None, rebuild.set_attributes


def is_delegating(cls: type) -> bool:
    """Whether instances pass on what they lack, and nothing says how to pickle them.

    Asked for `__setstate__` before they have the object that they pass it on to, they would ask for ever.
    """
    ways: set[Any] = {cls.__reduce_ex__, cls.__reduce__}
    if ways != {object.__reduce_ex__, object.__reduce__}:
        return False
    return any("__getattr__" in vars(base) for base in cls.__mro__) and not hasattr(cls, "__setstate__")


def reduce_delegating(value: Any) -> Reduced:
    """As Python takes it apart, put together without a question to the object."""
    reduced = value.__reduce_ex__(5)
    if len(reduced) < 3 or reduced[2] is None:
        return NotImplemented
    return (*reduced[:3], *(*reduced[3:5], None, None)[:2], rebuild.set_plain_state)


def reduce_memory_view(view: memoryview) -> Reduced:
    """A view of a whole object; None for any other: it would silently become a copy."""
    owner = view.obj
    if owner is None or not view.c_contiguous or view.nbytes != memoryview(owner).nbytes:
        return None
    return rebuild.memory_view, (owner, view.readonly, view.format, list(view.shape or ()))


def context_variable_parts(variable: contextvars.ContextVar[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(default, value in this context), each in a tuple that is empty if there is none."""
    found: list[tuple[Any, ...]] = []
    for context in (contextvars.Context(), contextvars.copy_context()):
        try:
            found.append((context.run(variable.get),))
        except LookupError:
            found.append(())
    return found[0], found[1]


def reduce_context_variable(variable: contextvars.ContextVar[Any]) -> Reduced:
    """By name, with its default and the value that it has for cells."""
    default, value = context_variable_parts(variable)
    return rebuild.context_variable, (_text(variable.name), default), value, None, None, rebuild.set_context_variable


def reduce_decimal_context(context: decimal.Context) -> Reduced:
    """The one in use as what is in use there, which has its settings already; others by value."""
    return (decimal.getcontext, ()) if context is decimal.getcontext() else NotImplemented


LRU_CACHE_TYPE: Final = type(functools.lru_cache(lambda: None))


def reduce_mapping_proxy(proxy: types.MappingProxyType[Any, Any]) -> Reduced:
    """A view of the very mapping that it shows; of a class's own mapping, a view of that class."""
    (mapping,) = gc.get_referents(proxy)
    attributes = type(mapping) is dict and mapping.get("__dict__")
    owner = getattr(attributes, "__objclass__", None) if isinstance(attributes, types.GetSetDescriptorType) else None
    if isinstance(owner, type) and gc.get_referents(vars(owner))[0] is mapping:
        return vars, (owner,)
    return types.MappingProxyType, (mapping,)


REDUCERS: Final[dict[type, Callable[[Any], Reduced]]] = {
    types.CellType: reduce_cell,
    weakref.ref: reduce_weak_reference,
    weakref.ProxyType: reduce_weak_proxy,
    weakref.CallableProxyType: reduce_weak_proxy,
    weakref.WeakKeyDictionary: reduce_weak_dict,
    weakref.WeakValueDictionary: reduce_weak_dict,
    LOCK_TYPES[0]: reduce_lock,
    LOCK_TYPES[1]: reduce_lock,
    LRU_CACHE_TYPE: reduce_lru_cache,
    typing.NewType: reduce_new_type,
    contextvars.ContextVar: reduce_context_variable,
    type({}.keys()): reduce_dict_view,
    type({}.values()): reduce_dict_view,
    type({}.items()): reduce_dict_view,
    type(collections.OrderedDict().keys()): reduce_dict_view,
    type(collections.OrderedDict().values()): reduce_dict_view,
    type(collections.OrderedDict().items()): reduce_dict_view,
    typing.ParamSpec: reduce_type_parameter,
    typing.TypeVarTuple: reduce_type_parameter,
    typing.ParamSpecArgs: lambda value: (typing.ParamSpecArgs, (value.__origin__,)),
    typing.ParamSpecKwargs: lambda value: (typing.ParamSpecKwargs, (value.__origin__,)),
    struct.Struct: lambda value: (struct.Struct, (value.format,)),
    random.SystemRandom: lambda value: (random.SystemRandom, ()),
    super: lambda value: (super, (value.__thisclass__, value.__self__)),
    collections.Counter: reduce_counter,
    decimal.Context: reduce_decimal_context,
    types.MappingProxyType: reduce_mapping_proxy,
}
