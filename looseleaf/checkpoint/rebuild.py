"""What stored pickles call to make functions, classes and other code again. The names here are part of the format."""

from __future__ import annotations

import abc
import contextvars
import ctypes
import enum
import functools
import importlib
import logging
import marshal
import sys
import threading
import types
import typing
import weakref
from typing import Any

from looseleaf.checkpoint.by_name import SESSION_MODULE, is_importable
from looseleaf.errors import PreconditionFailed

_set_closure = ctypes.pythonapi.PyFunction_SetClosure
_set_closure.argtypes = [ctypes.py_object, ctypes.py_object]
_set_closure.restype = ctypes.c_int


def function(code: bytes, namespace: dict[str, Any]) -> types.FunctionType:
    """A function whose globals are `namespace` itself; its cells arrive with `set_function`, so that cycles work."""
    code_object = marshal.loads(code)
    cells = tuple(types.CellType() for _ in code_object.co_freevars)
    return types.FunctionType(code_object, namespace, None, None, cells or None)


def set_function(made: types.FunctionType, state: tuple[Any, ...]) -> None:
    """Fills what `reduce_function` took apart; the closure's cells are the shared ones."""
    name, qualified_name, module, doc, defaults, keyword_defaults, annotations, closure, attributes = state
    made.__name__, made.__qualname__, made.__module__, made.__doc__ = name, qualified_name, _module(module), doc
    made.__defaults__, made.__kwdefaults__ = defaults, keyword_defaults
    if annotations:
        made.__annotations__ = annotations
    if closure:
        _set_closure(made, closure)
    if attributes:
        # The very dict: a variable may hold it.
        made.__dict__ = attributes


def _module(name: Any) -> Any:
    # The session's module is stored as None, so that its name in a pickle always means a reference by name.
    return SESSION_MODULE if name is None else name or None


def cell() -> types.CellType:
    """An empty cell of a closure."""
    return types.CellType()


def set_cell(made: types.CellType, state: tuple[Any]) -> None:
    """Its contents."""
    (made.cell_contents,) = state


def class_(
    meta: type, name: str, qualified_name: str, module: str | None, bases: tuple[Any, ...], layout: tuple[Any, ...]
) -> type:
    """A class whose attributes arrive with `set_class`; no hook of its bases or of a session metaclass runs.

    `layout`: (attribute names in order, `__slots__` or None, the bases as written if they are others). The hooks ran
    when the person's cell did.
    """
    names, slots, written = layout
    maker = _maker(meta)
    # Hooks of libraries run again, and may look at the attributes: then there are none yet, instead of empty ones.
    is_looked_at = _has_library_hook(bases) or maker.__module__ not in _PLAIN_MAKERS
    namespace: dict[str, Any] = {} if is_looked_at else dict.fromkeys(names)
    namespace["__module__"] = _module(module)
    if written is not None:
        namespace["__orig_bases__"] = written
    if slots is not None:
        namespace["__slots__"] = slots
    hooks = [(base, vars(base)["__init_subclass__"]) for base in _session_hooks(bases)]
    for base, _ in hooks:
        type.__setattr__(base, "__init_subclass__", classmethod(_no_hook))
    try:
        made: type = maker.__new__(meta, name, bases, namespace)
    finally:
        for base, hook in hooks:
            type.__setattr__(base, "__init_subclass__", hook)
    type.__setattr__(made, "__qualname__", qualified_name)
    return made


# Where the metaclasses are that take no attribute for more than its value.
_PLAIN_MAKERS = ("builtins", "abc", "typing", "typing_extensions")


def _maker(meta: type) -> Any:
    """The metaclass that makes the class: of a library, and none that makes attributes which the class has already."""
    maker = next(base for base in meta.__mro__ if base is type or (is_importable(base) and issubclass(base, type)))
    # typing and typing_extensions have a metaclass each.
    if issubclass(maker, enum.EnumMeta) or maker.__name__ == "_TypedDictMeta":
        return type
    return abc.ABCMeta if maker.__module__.startswith("pydantic.") else maker


def _has_library_hook(bases: tuple[type, ...]) -> bool:
    lines = {ancestor for base in bases for ancestor in base.__mro__ if "__init_subclass__" in vars(ancestor)}
    lines -= {base for base in lines if base is object or base.__module__ in ("typing", "enum")}
    return any(is_importable(base) for base in lines)


def _session_hooks(bases: tuple[type, ...]) -> list[type]:
    lines = {ancestor: None for base in bases for ancestor in base.__mro__}
    return [base for base in lines if "__init_subclass__" in vars(base) and not is_importable(base)]


def _no_hook(cls: type, /, **_: Any) -> None:
    return None


def set_class(made: type, state: tuple[dict[str, Any], list[type], list[Any]]) -> None:
    """Sets attributes as they were, past any metaclass; registers virtual subclasses, and the class as one."""
    attributes, registered, abstract_bases = state
    for name, value in attributes.items():
        if name not in ("__slots__", "__module__"):
            type.__setattr__(made, name, value)
    for subclass in registered:
        abc.ABCMeta.register(made, subclass)  # type: ignore[arg-type]
    for base in abstract_bases:
        abc.ABCMeta.register(base, made)


def enum_member(cls: type, member_type: type, plain: Any) -> Any:
    """A member of an enumeration defined in the session; its attributes arrive as state."""
    make: Any = member_type.__new__
    return object.__new__(cls) if make is object.__new__ else make(cls, plain)


def set_plain_state(made: Any, state: Any) -> None:
    """What `object.__getstate__` gave, set past any `__setattr__` and `__getattr__` of the class."""
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    if attributes:
        object.__getattribute__(made, "__dict__").update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(made, name, value)


def set_attributes(made: Any, state: dict[str, Any]) -> None:
    """Attributes past any `__setattr__` of the class."""
    made.__dict__.update(state)


def adopt_dict(made: Any, state: dict[str, Any]) -> None:
    """Makes `state` itself the attributes of `made`: others may hold the same dict."""
    object.__setattr__(made, "__dict__", state)


def module_attribute(module: str, name: str) -> Any:
    """What `name` is in `module`."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


# What stood in a module before session code set the attribute: a patch often calls it.
_originals: dict[tuple[str, str], Any] = {}


def keep_original(module: str, name: str, value: Any) -> None:
    """Remembers what the attribute was; the first time counts."""
    _originals.setdefault((module, name), value)


def original(module: str, name: str) -> Any:
    """What the attribute of the module was before session code set it."""
    found = _originals.get((module, name))
    return module_attribute(module, name) if found is None else found


def free_lock(reentrant: bool) -> Any:
    """A lock that nobody holds."""
    return threading.RLock() if reentrant else threading.Lock()


def weak_proxy(target: Any) -> Any:
    """A proxy of `target`; of something that is gone if it is None."""
    return weakref.proxy(_Dead() if target is None else target)


def weak_reference(target: Any, callback: Any, kind: type[weakref.ref[Any]] = weakref.ref) -> Any:
    """A weak reference; dead if the target died before the save."""
    return weakref.ref.__new__(kind, target if target is not None else _Dead(), callback)


def weak_method(target: Any, name: str | None) -> Any:
    """A weak reference to a method of `target`; dead if that died before the save."""
    return weakref.WeakMethod(_Dead().gone if name is None else getattr(target, name))


def dict_view(shown: dict[Any, Any], name: str) -> Any:
    """Its keys, values or items."""
    return getattr(shown, name)()


def type_parameter(kind: Any, name: str) -> Any:
    """A `typing.ParamSpec` or `TypeVarTuple`; its attributes follow."""
    return kind(name)


def set_type_parameter(made: Any, state: dict[str, Any]) -> None:
    """The module that it says it is of, and its other attributes."""
    module = state.pop("__module__")
    if hasattr(made, "__dict__"):
        made.__dict__.update(state)
    made.__module__ = _module(module)


class _Dead:
    """Gone as soon as a weak reference to it was made."""

    __slots__ = ("__weakref__",)

    def gone(self) -> None:
        """Such a method."""


def weak_dict(keys: bool, items: list[tuple[Any, Any]]) -> Any:
    """A WeakKeyDictionary or WeakValueDictionary."""
    made: Any = weakref.WeakKeyDictionary() if keys else weakref.WeakValueDictionary()
    for key, value in items:
        made[key] = value
    return made


def set_weak_dict(made: Any, items: list[tuple[Any, Any]]) -> None:
    """Entries of a weak dictionary, once their keys and values exist."""
    for key, value in items:
        made[key] = value


def lru_cached(maxsize: int | None, typed: bool) -> Any:
    """An empty `functools.lru_cache` around a function that arrives with `set_lru_cached`."""
    holder = _Late()
    made = functools.lru_cache(maxsize=maxsize, typed=typed)(holder)
    made.__dict__["__looseleaf_late__"] = holder
    return made


class _Late:
    """A callable whose function is set later."""

    __name__ = "late"
    __qualname__ = "late"

    def __init__(self) -> None:
        self.function: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def set_lru_cached(made: Any, state: dict[str, Any]) -> None:
    """The wrapped function and the attributes of a cached one."""
    holder = made.__dict__.pop("__looseleaf_late__")
    holder.function = state["__wrapped__"]
    made.__dict__.clear()
    made.__dict__.update(state)


def new_type(name: str, supertype: Any) -> Any:
    """A distinct type for checkers only; its attributes follow."""
    return typing.NewType(name, supertype)


def context_variable(name: str, default: tuple[Any, ...]) -> contextvars.ContextVar[Any]:
    """A context variable with its default, if it has one."""
    return contextvars.ContextVar(name, default=default[0]) if default else contextvars.ContextVar(name)


def set_context_variable(made: contextvars.ContextVar[Any], value: tuple[Any, ...]) -> None:
    """Its value in the context of cells, if it has one."""
    if value:
        made.set(value[0])


def logger(name: str) -> logging.Logger:
    """The logger of this name; "" for the root."""
    return logging.getLogger(name or None)


def set_logger(made: logging.Logger, state: tuple[int, bool, bool, list[Any], list[Any]]) -> None:
    """Level, flags, handlers and filters as they were."""
    level, propagate, disabled, handlers, filters = state
    made.setLevel(level)
    made.propagate, made.disabled = propagate, disabled
    made.handlers[:] = handlers
    made.filters[:] = filters


def stream(name: str) -> Any:
    """A standard stream of this process."""
    return getattr(sys, name)


def shell() -> Any:
    """The IPython shell of this process."""
    found = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if found is None:
        raise PreconditionFailed("NO_SHELL", "the value refers to the IPython shell, and this process has none")
    return found


def memory_view(owner: Any, readonly: bool, form: str, shape: list[int]) -> memoryview:
    """A view of all of `owner`'s bytes."""
    view = memoryview(owner).cast("B")
    if form != "B" or len(shape) != 1:
        view = view.cast(form, shape)  # type: ignore[call-overload]
    return view.toreadonly() if readonly else view
