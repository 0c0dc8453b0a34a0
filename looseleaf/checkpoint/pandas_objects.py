"""Frames, series and indexes of pandas: who shares memory with whom, so that a write copies first (design §3).

Each block of a frame has an object in common with all blocks over the same memory. Pandas itself leaves that out of a
pickle, as it copies the memory. `reduce_object` at save, the other public functions at restore; their names are part of
the format.
"""

from __future__ import annotations

from typing import Any, Final

import pandas as pd
from pandas._libs.internals import BlockValuesRefs
from pandas.core.arrays import ArrowExtensionArray
from pandas.core.generic import NDFrame
from pandas.core.internals.managers import BaseBlockManager

from looseleaf.checkpoint.rebuild import set_attributes

# Whose instances `reduce_object` may take apart.
KINDS: Final = (BaseBlockManager, pd.Index, NDFrame, BlockValuesRefs, ArrowExtensionArray)


def reduce_object(value: Any, kind: type) -> Any:
    """What a unit's pickle says of a part of pandas; None: what it says itself."""
    if issubclass(kind, BlockValuesRefs):
        return BlockValuesRefs, ()
    if issubclass(kind, BaseBlockManager):
        return _reduce_manager(value)
    if issubclass(kind, ArrowExtensionArray):
        return _reduce_arrow_array(value, kind)
    if issubclass(kind, pd.Index):
        return _reduce_index(value)
    return _reduce_frame(value, kind) if issubclass(kind, NDFrame) else None


def _reduce_manager(value: Any) -> Any:
    make, arguments, state = (*value.__reduce_ex__(5), None)[:3]
    sharing = [block.refs for block in value.blocks]
    return made_by, (make, arguments), (state, sharing), None, None, set_manager


def made_by(make: Any, arguments: tuple[Any, ...]) -> Any:
    """An object made pandas' own way."""
    return make(*arguments)


def set_manager(made: Any, state: tuple[Any, list[Any]]) -> None:
    """Its contents, and with whom its blocks share their memory."""
    contents, sharing = state
    if contents is not None:
        made.__setstate__(contents)
    for block, references in zip(made.blocks, sharing, strict=True):
        block.refs = references
        references.add_reference(block)


def _reduce_arrow_array(value: Any, kind: type) -> Any:
    """With Arrow's array as it is: pandas' own way copies it, and who shares its memory would not any more."""
    if kind.__getstate__ is not ArrowExtensionArray.__getstate__:
        return None
    state = {name: one for name, one in vars(value).items() if name != "_cache"}
    return object.__new__, (kind,), state, None, None, set_arrow_array


def set_arrow_array(made: Any, state: dict[str, Any]) -> None:
    """Its attributes; what pandas keeps beside them is computed again."""
    vars(made).update(state, _cache={})


def _reduce_index(value: Any) -> Any:
    references = vars(value).get("_references")
    reduced = value.__reduce_ex__(5)
    if references is None or len(reduced) < 2 or any(part is not None for part in reduced[2:]):
        return None
    return made_by, reduced[:2], references, None, None, set_index


def set_index(made: Any, references: Any) -> None:
    """With whom it shares its memory."""
    made._references = references
    references.add_index_reference(made)


def _reduce_frame(value: Any, kind: type) -> Any:
    """With the attributes that a person gave to the very frame; of a class with a way of its own, None."""
    own = {name: one for name, one in vars(value).items() if not name.startswith("_") and not hasattr(kind, name)}
    reduced = value.__reduce_ex__(5)
    if not own or len(reduced) < 3 or any(part is not None for part in reduced[3:]):
        return None
    return made_by, reduced[:2], (reduced[2], own), None, None, set_frame


def set_frame(made: Any, state: tuple[Any, dict[str, Any]]) -> None:
    """What pandas keeps of it, and attributes of its own."""
    contents, own = state
    made.__setstate__(contents)
    set_attributes(made, own)
