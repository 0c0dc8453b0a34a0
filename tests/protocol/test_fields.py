from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from looseleaf.errors import InvalidArgument
from looseleaf.protocol import fields

MESSAGE: dict[str, Any] = {
    "t": "test", "text": "a", "int": 3, "negative": -1, "float": 1.5, "bool": True, "bytes": b"x", "map": {"a": 1},
    "odd": {1: 2}, "list": ["a"], "numbers": [1, 2], "rows": [[b"x", 1]], "nothing": None,
}


@pytest.mark.parametrize(
    ("reader", "key", "value"),
    [
        (fields.text, "text", "a"), (fields.integer, "int", 3), (fields.number, "float", 1.5),
        (fields.number, "int", 3.0),
        (fields.boolean, "bool", True), (fields.data, "bytes", b"x"), (fields.mapping, "map", {"a": 1}),
        (fields.sequence, "list", ["a"]), (fields.texts, "list", ["a"]), (fields.integers, "numbers", [1, 2]),
    ],
)
def test_reader_right_type_returns_the_value(reader: Callable[..., Any], key: str, value: object) -> None:
    assert reader(MESSAGE, key) == value


@pytest.mark.parametrize(
    ("reader", "key"),
    [
        (fields.text, "int"), (fields.text, "bytes"), (fields.text, "absent"), (fields.integer, "bool"),
        (fields.integer, "negative"), (fields.integer, "float"), (fields.integer, "nothing"), (fields.number, "bool"),
        (fields.number, "text"), (fields.boolean, "int"), (fields.data, "text"), (fields.mapping, "list"),
        (fields.mapping, "odd"), (fields.sequence, "map"), (fields.texts, "numbers"), (fields.integers, "list"),
    ],
)
def test_reader_wrong_type_is_refused(reader: Callable[..., Any], key: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        reader(MESSAGE, key)
    assert caught.value.reason == "FIELD_MALFORMED"
    assert repr(key) in caught.value.message


def test_reader_absent_field_with_default_returns_the_default() -> None:
    assert fields.text(MESSAGE, "absent", "") == ""
    assert fields.integer(MESSAGE, "absent", 0) == 0


def test_rows_of_the_right_shape_are_returned_as_tuples() -> None:
    assert fields.rows(MESSAGE, "rows", bytes, int) == [(b"x", 1)]


@pytest.mark.parametrize("rows", [[[b"x"]], [[b"x", 1, 2]], [[b"x", -1]], [[b"x", True]], [["x", 1]], ["x1"], {"a": 1}])
def test_rows_of_another_shape_are_refused(rows: object) -> None:
    with pytest.raises(InvalidArgument):
        fields.rows({"t": "x", "rows": rows}, "rows", bytes, int)
