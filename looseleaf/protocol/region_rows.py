"""Regions and their places as flat bytes: a restore names hundreds, and a row for each would cost more than the rest.

`map_regions` asks with `{ids, lengths}` and is answered with `{places}` (docs/protocol.md: Session state).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from looseleaf.errors import InvalidArgument
from looseleaf.protocol import fields
from looseleaf.units import REGION_BYTES

ID_BYTES: Final = 16
_NUMBER_BYTES: Final = 4


def pack_regions(rows: Sequence[tuple[bytes, int]]) -> dict[str, bytes]:
    """`ids`, 16 bytes each, and `lengths` of at most 2 MiB, u32 each, of (id, length in bytes)."""
    return {"ids": b"".join([row[0] for row in rows]), "lengths": _pack([row[1] for row in rows])}


def unpack_regions(message: Mapping[str, Any], *, count_max: int) -> list[tuple[bytes, int]]:
    """What `pack_regions` packed. Raises InvalidArgument `FIELD_MALFORMED` or `MESSAGE_TOO_LONG`."""
    ids, lengths = fields.data(message, "ids"), _unpack(message, "lengths")
    if len(ids) != len(lengths) * ID_BYTES:
        raise InvalidArgument("FIELD_MALFORMED", f"{len(ids)} bytes of region ids came with {len(lengths)} lengths")
    if len(lengths) > count_max:
        raise InvalidArgument("MESSAGE_TOO_LONG", f"a message names at most {count_max} regions")
    return list(zip([ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)], lengths, strict=True))


def pack_places(places: Iterable[tuple[int, int]]) -> bytes:
    """(segment, slot of 2 MiB in it), u32 each."""
    return _pack([number for place in places for number in place])


def unpack_places(message: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(segment, offset in bytes) of what `pack_places` packed under `places`. Raises as `unpack_regions`."""
    numbers = _unpack(message, "places")
    if len(numbers) % 2:
        raise InvalidArgument("FIELD_MALFORMED", "a place is a segment and a slot")
    return [(segment, slot * REGION_BYTES) for segment, slot in zip(numbers[::2], numbers[1::2], strict=True)]


def _pack(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def _unpack(message: Mapping[str, Any], key: str) -> tuple[int, ...]:
    data = fields.data(message, key)
    if len(data) % _NUMBER_BYTES:
        raise InvalidArgument("FIELD_MALFORMED", f"field {key!r} has {len(data)} bytes, no multiple of {_NUMBER_BYTES}")
    return struct.unpack(f"<{len(data) // _NUMBER_BYTES}I", data)
