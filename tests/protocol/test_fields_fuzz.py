"""Readers of fields over any message: the right type, or `FIELD_MALFORMED`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.errors import InvalidArgument
from looseleaf.protocol import fields
from looseleaf.protocol.frames import pack, unpack_map

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


def all_of(kind: type) -> Callable[[Any], bool]:
    return lambda found: type(found) is list and all(type(item) is kind for item in found)


READERS: dict[Callable[..., Any], Callable[[Any], bool]] = {
    fields.text: lambda found: type(found) is str,
    fields.integer: lambda found: type(found) is int and found >= 0,
    fields.number: lambda found: type(found) is float,
    fields.boolean: lambda found: type(found) is bool,
    fields.data: lambda found: type(found) is bytes,
    fields.mapping: lambda found: type(found) is dict and all(type(key) is str for key in found),
    fields.sequence: lambda found: type(found) is list,
    fields.texts: all_of(str),
    fields.integers: lambda found: all_of(int)(found) and all(item >= 0 for item in found),
}


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@given(value=plain, key=st.sampled_from(["k", "other"]))
def test_reader_gives_its_type_or_refuses(reader: Callable[..., Any], value: Any, key: str) -> None:
    message = unpack_map(pack({"t": "x", key: value}))
    try:
        found = reader(message, "k")
    except InvalidArgument as error:
        refusal = error.reason
    else:
        refusal = "" if READERS[reader](found) else f"took {found!r}"
    assert refusal in ("", "FIELD_MALFORMED")


@given(value=plain)
def test_rows_are_of_their_types_or_refused(value: Any) -> None:
    message = unpack_map(pack({"t": "x", "rows": value}))
    try:
        found = fields.rows(message, "rows", bytes, int)
    except InvalidArgument as error:
        refusal = error.reason
    else:
        is_right = all(type(one) is bytes and type(two) is int and two >= 0 for one, two in found)
        refusal = "" if is_right else f"took {found!r}"
    assert refusal in ("", "FIELD_MALFORMED")
