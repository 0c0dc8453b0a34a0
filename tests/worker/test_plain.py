from __future__ import annotations

import datetime as dt
import fractions
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.protocol.frames import pack, unpack
from looseleaf.worker.plain import plain

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner)
    | st.dictionaries(st.text(st.characters()) | st.integers() | st.booleans() | st.none(), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_plain_value_always_fits_a_message_and_comes_back_equal(value: Any) -> None:
    cleaned = plain(value)
    assert unpack(pack(cleaned)) == cleaned
    assert plain(cleaned) == cleaned


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3), (np.float32(0.5), 0.5), (fractions.Fraction(1, 4), 0.25),
        (dt.date(2026, 1, 2), "2026-01-02"), (range(3), [0, 1, 2]), ({1: {None: True}}, {"1": {"null": True}}),
        (bytearray(b"x"), b"x"), (memoryview(b"x"), b"x"), (Text("x"), "x"), ("\ud800", "?"), (1 << 70, float(1 << 70)),
    ],
)
def test_plain_value_of_another_library_becomes_what_json_would_make(value: Any, expected: Any) -> None:
    cleaned = plain(value)
    assert cleaned == expected
    assert type(cleaned) is type(expected)


def test_plain_object_is_refused() -> None:
    with pytest.raises(ValueError, match="object"):
        plain({"a": [object()]})


def test_plain_key_that_no_json_has_is_refused() -> None:
    with pytest.raises(ValueError, match="key"):
        plain({(1, 2): 3})


def test_plain_number_beyond_every_float_is_refused() -> None:
    with pytest.raises(ValueError, match="number"):
        plain({"a": 1 << 2000})


def test_plain_endless_nesting_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="deeply"):
        plain(loop)
