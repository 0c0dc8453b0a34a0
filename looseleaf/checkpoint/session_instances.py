"""Instances of the session's classes whose usual way of pickling does not bring them back as they were.

A class's own `__new__` does not run when one is made again: it ran when the person's cell did, its arguments are not
known, and it may ask the class for what is not there yet, as a singleton does. And what a library's class says of
pickling, such as `Decimal`'s, knows nothing of the attributes of a subclass.
The functions that make one are part of the format.
"""

from __future__ import annotations

import copyreg
import random
from typing import Any, Final

from looseleaf.checkpoint.by_name import is_importable
from looseleaf.checkpoint.code_reducers import plain_state
from looseleaf.checkpoint.rebuild import set_plain_state

_HEAP_TYPE: Final = 1 << 9
_PROTOCOL: Final = 5
_OWN_WAYS: Final = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")


def needs_care(kind: type) -> bool:
    """Whether `reduced` is to be asked for instances of `kind`; no code of the class runs."""
    if is_importable(kind):
        return False
    # What the session itself says of pickling stands.
    if any(not is_importable(base) for base in kind.__mro__ for way in _OWN_WAYS if way in vars(base)):
        return False
    return _has_own_new(kind) or _owner(kind, "__reduce_ex__", "__reduce__") is not object


def _owner(kind: type, *names: str) -> type:
    return next(base for base in kind.__mro__ if any(name in vars(base) for name in names))


def _has_own_new(kind: type) -> bool:
    """Whether session code makes its instances, and below it nothing but Python's own classes would."""
    makers = [base for base in kind.__mro__ if "__new__" in vars(base)]
    libraries = [base for base in makers if is_importable(base)]
    return makers[0] is not libraries[0] and not libraries[0].__flags__ & _HEAP_TYPE


def reduced(value: Any, kind: type, usual: Any) -> Any:
    """`usual`, what the pickler would do, without a call of session code and with the attributes."""
    taken = value.__reduce_ex__(_PROTOCOL) if usual is NotImplemented else usual
    if not isinstance(taken, tuple) or len(taken) not in (2, 3, 4, 5, 6):
        return usual
    make, arguments, state, items, pairs, setter = (*taken, None, None, None, None)[:6]
    if make is copyreg.__newobj__ and _has_own_new(kind):  # type: ignore[attr-defined]
        make = native_instance
    if any(base.__module__ == "numpy" and base.__name__ == "generic" for base in kind.__mro__):
        # Its own way forgets the class.
        make, arguments = native_instance, (kind, value.item())
    if isinstance(value, random.Random):
        state, setter = (state, plain_state(value)), set_state_and_attributes
    elif state is None and any(attributes := plain_state(value)):
        state, setter = attributes, set_plain_state
    return make, arguments, state, items, pairs, setter


def native_instance(cls: type, *arguments: Any) -> Any:
    """An instance as the builtin class under `cls` makes it."""
    native = next(base for base in cls.__mro__ if not base.__flags__ & _HEAP_TYPE)
    make: Any = native.__new__
    return make(cls, *arguments)


def set_state_and_attributes(made: Any, state: tuple[Any, Any]) -> None:
    """What the library's own way gave, then the attributes."""
    own, attributes = state
    made.__setstate__(own)
    set_plain_state(made, attributes)
