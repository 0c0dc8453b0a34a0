"""Values that are made by the thousand a second: frozen to readers and to mypy, as cheap to make as plain objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """A dataclass with slots that compares and hashes by its fields and is never changed once it is made.

    mypy refuses assignments to its fields as if it were `frozen=True`. That does not hold at run time: a frozen
    dataclass sets each field by `object.__setattr__`, and making such values took a seventh of a simulation. A test
    runs the policy with assignments forbidden.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
