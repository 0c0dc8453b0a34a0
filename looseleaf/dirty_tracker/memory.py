"""Shared segments, private mappings of their slots, and copies that release the GIL (design §7)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from looseleaf.dirty_tracker import _core
from looseleaf.dirty_tracker._core import MappedRegions, Memfd
from looseleaf.errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["MappedRegions", "Memfd", "copy_into", "map_many"]


def copy_into(dst: Buffer, dst_offset: int, src: Buffer, src_offset: int, length: int) -> None:
    """Copies `src[src_offset : src_offset+length]` to `dst` at `dst_offset`, all in bytes; the ranges may overlap.

    The GIL is released. Raises InvalidArgument for a range outside its buffer (`RANGE_OUTSIDE_BUFFER`), for a `dst`
    that cannot be written (`BUFFER_NOT_WRITABLE`) and for objects that are no C-contiguous buffers; nothing is copied
    then.
    """
    if not all(0 <= number <= sys.maxsize for number in (dst_offset, src_offset, length)):
        text = f"offsets and lengths lie between 0 and {sys.maxsize}"
        raise InvalidArgument("RANGE_OUTSIDE_BUFFER", text)
    _core.copy_into(dst, dst_offset, src, src_offset, length)


def map_many(parts: Sequence[tuple[int, int, int]], counts: Sequence[int]) -> list[MappedRegions]:
    """A MappedRegions of the first `counts[0]` parts, one of the next `counts[1]`, and so on, at the price of one call.

    Raises as MappedRegions does, and InvalidArgument (`PARTS_MISCOUNTED`) unless the counts add up to all parts; then
    nothing is mapped.
    """
    return _core.map_many(parts, counts)
