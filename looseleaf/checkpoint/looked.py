"""What was found in a table of names, until one of them is bound to another object: most are the same at every save."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import is_
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Looked(Generic[T]):
    """Remembers one table and what was found in it. Its values are kept alive: an id alone may be used again."""

    __slots__ = ("_found", "_names", "_values")

    def __init__(self) -> None:
        self._names: list[str] | None = None
        self._values: list[Any] = []
        self._found: Any = None

    def of(self, table: Mapping[str, Any], look: Callable[[], T]) -> T:
        """What `look` finds in `table`, or found when the same names were bound to the same objects."""
        now = dict(table)  # at one moment: other threads may add to it
        names, values = list(now), list(now.values())
        if names != self._names or not all(map(is_, values, self._values)):
            self._found = look()
            self._names, self._values = names, values
        found: T = self._found
        return found
