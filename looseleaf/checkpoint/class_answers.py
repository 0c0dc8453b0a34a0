"""Answers about classes, kept as long as their class lives."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Final, TypeVar

CLASSES_MAX: Final = 4096
Answer = TypeVar("Answer")


def kept_by_class(ask: Callable[[type], Answer]) -> Callable[[type], Answer]:
    """`ask`, asked once for each class, of the last `CLASSES_MAX` or fewer. Its answer must not refer to the class.

    A class is not kept alive, as `lru_cache` would: a person who runs the cell of a class again would keep each one
    before, with all that the globals of its methods lead to. No code of a metaclass runs, such as its `__hash__`.
    """
    known: dict[int, tuple[weakref.ref[type], Answer]] = {}

    @functools.wraps(ask)
    def answer(kind: type) -> Answer:
        found = known.get(id(kind))
        # Another class may have come to lie where one was.
        if found is not None and found[0]() is kind:
            return found[1]
        made = ask(kind)
        if len(known) >= CLASSES_MAX:
            known.clear()
        known[id(kind)] = (weakref.ref(kind), made)
        return made

    return answer
