"""The bytes of one unit: one mode byte, then one or two pickles that share a memo.

- `V`: one pickle, the value itself.
- `L`, `D`, `E`: a list, dict or set; the pickle holds its items. The empty object exists before they are read.
- `O`: a pickle of (callable, arguments), then one of (state, list items, dict items, state setter). The object exists
  before the second is read.

All but `V` serve units on a cycle of references: their objects can be referred to before they are complete.
"""

from __future__ import annotations

import copyreg
import pickle
from typing import Any, Final

from looseleaf.checkpoint._native import canonical
from looseleaf.checkpoint.bundles import Bundle
from looseleaf.checkpoint.pickle_file import PickleFile
from looseleaf.checkpoint.pickler import PROTOCOL, UnitPickler
from looseleaf.ids import UnitId

MODE_VALUE: Final = b"V"
MODE_LIST: Final = b"L"
MODE_DICT: Final = b"D"
MODE_SET: Final = b"E"
MODE_OBJECT: Final = b"O"
_BUILTIN_MODES: Final[dict[type, bytes]] = {list: MODE_LIST, dict: MODE_DICT, set: MODE_SET}


def write_plain(value: Any) -> bytes:
    """A `V` unit of builtin values that refer to no other unit."""
    file = PickleFile()
    pickle.Pickler(file, PROTOCOL).dump(value)
    return MODE_VALUE + canonical(file.getvalue())


def write_value(pickler: UnitPickler, value: Any, unit_id: UnitId) -> bytes:
    """A `V` unit; references of the value to itself stay inside its pickle."""
    ids = pickler.scope.persistent_ids
    own = ids.get(id(value))
    if own == unit_id:
        del ids[id(value)]
    payload_id = pickler.scope.payload_of_head.get(id(value))
    if payload_id is not None:
        ids[id(value)] = payload_id
    try:
        pickler.dump(value)
    finally:
        ids.pop(id(value), None)
        if own is not None:
            ids[id(value)] = own
    return MODE_VALUE + canonical(pickler.file.getvalue())


def write_bundle(pickler: UnitPickler, bundle: Bundle) -> bytes:
    """A `V` unit: the list of a bundle's members, which refer to each other inside its pickle."""
    ids = pickler.scope.persistent_ids
    own = {id(member): ids.pop(id(member)) for member in bundle.members if id(member) in ids and member is not None}
    try:
        pickler.dump(bundle.members)
    finally:
        ids.update(own)
    return MODE_VALUE + canonical(pickler.file.getvalue())


def write_in_two_steps(pickler: UnitPickler, value: Any) -> tuple[bytes, frozenset[int | str]] | None:
    """A unit whose object exists before its contents, and the ids that its construction names.

    The value's own id must be a persistent id. None if the value cannot be made in two steps.
    """
    mode = _BUILTIN_MODES.get(type(value))
    if mode is not None:
        pickler.dump(list(value.items()) if mode is MODE_DICT else list(value))
        return mode + canonical(pickler.file.getvalue()), frozenset()
    reduced = _reduced(pickler, value)
    if not isinstance(reduced, tuple):
        return None
    make, arguments, state, list_items, dict_items, setter = (*reduced, None, None, None, None)[:6]
    pickler.dump((make, tuple(arguments)))
    construction = frozenset(pickler.used)
    items = (None if list_items is None else list(list_items), None if dict_items is None else list(dict_items))
    pickler.dump((state, *items, setter))
    return MODE_OBJECT + canonical(pickler.file.getvalue()), construction


def _reduced(pickler: UnitPickler, value: Any) -> Any:
    """What the pickler itself would ask the value, in the same order."""
    kind = type(value)
    if kind in (Bundle, tuple, frozenset, bytes, bytearray, str, int, float, complex, bool, type(None)):
        return None
    reduced = pickler.reducer_override(value)
    if reduced is not NotImplemented:
        return reduced
    reducer = pickler.dispatch_table.get(kind) or copyreg.dispatch_table.get(kind)
    if reducer is not None:
        return reducer(value)
    return None if issubclass(kind, type) else value.__reduce_ex__(PROTOCOL)


def make_empty(mode: bytes, read: Any) -> Any:
    """The object of a two-step unit, without its contents; `read()` gives the next pickle."""
    if mode == MODE_LIST:
        return []
    if mode == MODE_DICT:
        return {}
    if mode == MODE_SET:
        return set()
    make, arguments = read()
    return make(*arguments)


def fill(mode: bytes, made: Any, read: Any) -> None:
    """Gives the object its contents, as unpickling does."""
    contents = read()
    if mode == MODE_LIST:
        made.extend(contents)
    elif mode in (MODE_DICT, MODE_SET):
        made.update(contents)
    else:
        _fill_object(made, *contents)


def _fill_object(made: Any, state: Any, list_items: Any, dict_items: Any, setter: Any) -> None:
    if list_items is not None:
        made.extend(list_items) if hasattr(made, "extend") else [made.append(item) for item in list_items]
    for key, value in dict_items or ():
        made[key] = value
    if state is None:
        return
    if setter is not None:
        setter(made, state)
    elif hasattr(made, "__setstate__"):
        made.__setstate__(state)
    else:
        slots = None
        if isinstance(state, tuple) and len(state) == 2:
            state, slots = state
        for name, value in (state or {}).items():
            made.__dict__[name] = value
        for name, value in (slots or {}).items():
            setattr(made, name, value)
