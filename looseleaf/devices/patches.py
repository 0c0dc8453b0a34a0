"""Replacing attributes of torch so that every one can be put back exactly as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ABSENT = object()


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function of its own that calls `function` and is called `name`, as in help and tracebacks.

    Of its own, because torch.compile keys tables by the functions it finds and takes no function twice.
    """

    def answer(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    answer.__name__ = answer.__qualname__ = name
    return answer


class PatchSet:
    """An ordered list of replaced attributes. Not thread-safe; only install and uninstall use it."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace `owner.name`, which may be absent. What `restore` puts back is the owner's own entry, descriptors
        included, never a value inherited from a class or made by `__getattr__`.
        """
        own = vars(owner)
        self._undo.append((owner, name, own.get(name, _ABSENT)))
        setattr(owner, name, value)

    def set_where_same(self, owners: tuple[Any, ...], name: str, value: Any) -> None:
        """Replace `name` in each of `owners` that has it; at least in the first, where it may be new."""
        self.set(owners[0], name, value)
        for owner in owners[1:]:
            if name in vars(owner):
                self.set(owner, name, value)

    def restore(self) -> None:
        """Put back everything, last change first."""
        while self._undo:
            owner, name, value = self._undo.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
