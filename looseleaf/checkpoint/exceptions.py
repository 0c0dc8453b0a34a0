"""Exceptions as objects: type, arguments, attributes, notes, cause and context move; the traceback stays (design §3).

A class's own `__init__` does not run when one is made again: its arguments are seldom `args`, and what it set is state.
The functions that make one are part of the format.
"""

from __future__ import annotations

import types
from typing import Any, Final

_HEAP_TYPE: Final = 1 << 9
# `args` is told apart, the rest is made again or has no meaning in another process.
_NOT_STATE: Final = frozenset({"__dict__", "__weakref__", "__traceback__", "args"})
_DESCRIPTORS: Final = (types.MemberDescriptorType, types.GetSetDescriptorType)
# What a group is made from cannot be set later.
_OF_A_GROUP: Final = frozenset({"message", "exceptions"})


def parts(error: BaseException) -> list[Any]:
    """The objects that an exception refers to."""
    return [type(error), error.args, *_attributes(error).values(), *getattr(error, "__dict__", {}).values()]


def reduce_exception(error: BaseException) -> tuple[Any, ...]:
    """What a unit's pickle says of an exception, whatever its class says of pickling."""
    attributes = _attributes(error)
    made_from: tuple[Any, ...] = ()
    if isinstance(error, BaseExceptionGroup):
        made_from = attributes.pop("message"), list(attributes.pop("exceptions"))
    own = {"".join(name): value for name, value in vars(error).items()}
    state = (error.args, attributes, own)
    return exception, (type(error), made_from), state, None, None, set_exception


def _attributes(error: BaseException) -> dict[str, Any]:
    """What is kept outside the attribute dict: by builtin exceptions, and in `__slots__`; set values only."""
    found: dict[str, Any] = {}
    for cls in type(error).__mro__[:-1]:  # without `object`
        for name, descriptor in vars(cls).items():
            if isinstance(descriptor, _DESCRIPTORS) and name not in _NOT_STATE and name not in found:
                try:
                    value = descriptor.__get__(error, type(error))
                except AttributeError:
                    continue  # an empty slot
                # A builtin exception shows None for what it does not have, and would print one that is set.
                if value is not None and value is not False:
                    found[name] = value
    return found


def exception(cls: type[BaseException], made_from: tuple[Any, ...]) -> BaseException:
    """An exception without arguments, or a group of the given ones; no code of a session's class runs."""
    native = next(base for base in cls.__mro__ if not base.__flags__ & _HEAP_TYPE)
    made: BaseException = native.__new__(cls, *made_from)
    return made


def set_exception(made: BaseException, state: tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]) -> None:
    """Arguments and attributes; a cause first, as setting it hides the context."""
    args, attributes, own = state
    made.args = args
    hides_context = attributes.pop("__suppress_context__", False)
    for name, value in attributes.items():
        BaseException.__setattr__(made, name, value)
    made.__suppress_context__ = hides_context
    made.__dict__.update(own)
