from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.errors import Corrupt
from looseleaf.services.checkpoint_store.core.rows import (
    ZERO_SLOT,
    LastFallback,
    RegionRow,
    SessionRow,
    TombstoneRow,
    UnitRow,
    VersionRow,
    decode_number,
)

ROWS: list[Any] = [
    SessionRow(1, 2, 3, 4, 5, "title"),
    SessionRow(1, 2, 3, 4, 5, "", LastFallback("r1", 9, 7, ("x8", "x9")), b"tena"),
    VersionRow(1, 2, "x", 3, True, 4, 5, "h", b"m" * 16, 6),
    TombstoneRow("r", 1, 2),
    UnitRow(1, 2, 1),
    RegionRow(1, 2, None, ()),
    RegionRow(1, 2, ZERO_SLOT, ()),
    RegionRow(1, 2, 3, (), True),
    RegionRow(1, 2, 3, ("h1", "h2")),
]
DECODERS: list[Callable[[bytes], Any]] = [
    SessionRow.decode, VersionRow.decode, TombstoneRow.decode, UnitRow.decode, RegionRow.decode, decode_number,
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: type(row).__name__)
def test_row_decodes_what_was_encoded(row: Any) -> None:
    assert type(row).decode(row.encode()) == row


def test_region_row_with_an_impossible_slot_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="INDEX_CORRUPT"):
        RegionRow.decode(RegionRow(1, 2, -2, ()).encode())


@settings(max_examples=60)
@given(data=st.binary(max_size=40) | st.lists(st.none() | st.integers(0, 99) | st.text(max_size=3)).map(msgpack.packb))
def test_any_bytes_decode_or_are_corrupt(data: bytes) -> None:
    for decode in DECODERS:
        with contextlib.suppress(Corrupt):
            decode(data)
