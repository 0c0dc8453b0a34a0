"""Checked access to the fields of a message: each reader returns the right type or raises `FIELD_MALFORMED`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from looseleaf.errors import InvalidArgument


def _refuse(message: Mapping[str, Any], key: str, wanted: str) -> NoReturn:
    found = type(message[key]).__name__ if key in message else "nothing"
    owner = message.get("t", "a message")
    raise InvalidArgument("FIELD_MALFORMED", f"field {key!r} of {owner!r} is {found}, not {wanted}")


def text(message: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """The text under `key`, or `default` if there is none and a default is given."""
    value = message.get(key, default)
    return value if isinstance(value, str) else _refuse(message, key, "text")


def integer(message: Mapping[str, Any], key: str, default: int | None = None, *, minimum: int = 0) -> int:
    """The int >= `minimum` under `key`; a bool is not an int here."""
    value = message.get(key, default)
    if type(value) is not int or value < minimum:
        _refuse(message, key, f"a number >= {minimum}")
    return value


def number(message: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """The int or float under `key`."""
    value = message.get(key, default)
    return float(value) if type(value) in (int, float) else _refuse(message, key, "a number")


def boolean(message: Mapping[str, Any], key: str, default: bool | None = None) -> bool:
    """The bool under `key`."""
    value = message.get(key, default)
    return value if isinstance(value, bool) else _refuse(message, key, "true or false")


def data(message: Mapping[str, Any], key: str, default: bytes | None = None) -> bytes:
    """The bytes under `key`."""
    value = message.get(key, default)
    return value if isinstance(value, bytes) else _refuse(message, key, "bytes")


def mapping(message: Mapping[str, Any], key: str, default: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The map with text keys under `key`."""
    value = message.get(key, default)
    if not isinstance(value, dict) or not all(isinstance(k, str) for k in value):
        _refuse(message, key, "a map with text keys")
    return value


def sequence(message: Mapping[str, Any], key: str, default: list[Any] | None = None) -> list[Any]:
    """The list under `key`, its items unchecked."""
    value = message.get(key, default)
    return value if isinstance(value, list) else _refuse(message, key, "a list")


def texts(message: Mapping[str, Any], key: str, default: list[str] | None = None) -> list[str]:
    """The list of texts under `key`."""
    value = sequence(message, key, default)
    return value if all(isinstance(item, str) for item in value) else _refuse(message, key, "a list of texts")


def integers(message: Mapping[str, Any], key: str, default: list[int] | None = None) -> list[int]:
    """The list of ints >= 0 under `key`."""
    value = sequence(message, key, default)
    if not all(type(item) is int and item >= 0 for item in value):
        _refuse(message, key, "a list of numbers >= 0")
    return value


def rows(message: Mapping[str, Any], key: str, *types: type) -> list[tuple[Any, ...]]:
    """The list of rows under `key`, each with one value of each of `types`; ints are >= 0, bools are no ints."""
    checked: list[tuple[Any, ...]] = []
    numbers = [place for place, wanted in enumerate(types) if wanted is int]
    for row in sequence(message, key):
        if type(row) is not list or tuple(map(type, row)) != types:
            _refuse(message, key, f"a list of rows of ({', '.join(t.__name__ for t in types)})")
        checked.append(tuple(row))
    for place in numbers:
        if min((row[place] for row in checked), default=0) < 0:
            _refuse(message, key, "a list of rows whose numbers are >= 0")
    return checked
