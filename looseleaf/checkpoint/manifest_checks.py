"""Checks of a manifest's fields as they were unpacked; each gives the value back.

Each raises Corrupt: `MANIFEST_SHAPE` for a wrong type, `MANIFEST_RANGE` for a value outside its limits, and `ascending`
`MANIFEST_DUPLICATE`. `what` names the field in the message.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NoReturn

from looseleaf.checkpoint.manifest_model import TEXT_CHARS_MAX, Flag
from looseleaf.errors import Corrupt

_NUMBER_MAX: Final = (1 << 63) - 1


def upto(value: Any, what: str, count_max: int) -> list[Any]:
    """A list of at most so many items."""
    if type(value) is not list:
        corrupt("SHAPE", f"{what}: not a list")
    if len(value) > count_max:
        corrupt("RANGE", f"{what}: {len(value)} are more than {count_max}")
    return value


def list_of(value: Any, what: str, count: int) -> list[Any]:
    """A list of exactly so many items."""
    if type(value) is not list or len(value) != count:
        corrupt("SHAPE", f"{what}: not a list of {count}")
    return value


def ascending(value: Any, what: str, count_max: int) -> list[int]:
    """A list of numbers, each above the one before."""
    items = upto(value, what, count_max)
    if not items:
        return items
    numbers = [number(item, what) for item in items]
    if any(a >= b for a, b in pairwise(numbers)):
        corrupt("DUPLICATE", f"{what}: not ascending")
    return numbers


def number(value: Any, what: str, number_max: int = _NUMBER_MAX) -> int:
    """A whole number from 0 to `number_max`."""
    if type(value) is not int:
        corrupt("SHAPE", f"{what}: not a whole number")
    if not 0 <= value <= number_max:
        corrupt("RANGE", f"{what}: {value} is not in 0..{number_max}")
    return value


def text(value: Any, what: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """A text of at most so many characters."""
    if type(value) is not str:
        corrupt("SHAPE", f"{what}: not a text")
    if len(value) > chars_max:
        corrupt("RANGE", f"{what}: {len(value)} characters are more than {chars_max}")
    return value


def texts(value: Any, what: str, count_max: int) -> tuple[str, ...]:
    """A list of texts, as a tuple."""
    items = upto(value, what, count_max)
    # Most lists of a header are empty.
    return tuple([text(item, what) for item in items]) if items else ()


def blob(value: Any, what: str, lengths: tuple[int, ...] = ()) -> bytes:
    """Bytes; if `lengths` are given, as many as one of them says."""
    if type(value) is not bytes:
        corrupt("SHAPE", f"{what}: not bytes")
    if lengths and len(value) not in lengths:
        corrupt("RANGE", f"{what}: {len(value)} bytes")
    return value


def truth(value: Any, what: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        corrupt("SHAPE", f"{what}: not true or false")
    return value


def flag(value: Any) -> Flag:
    """None or a plain value."""
    if value is not None and type(value) not in (bool, int, float, str):
        corrupt("SHAPE", "flag: not a plain value")
    found: Flag = value
    return found


def corrupt(suffix: str, message: str) -> NoReturn:
    """Raises Corrupt with the reason `MANIFEST_<suffix>`."""
    raise Corrupt(f"MANIFEST_{suffix}", f"the manifest is damaged: {message}")
