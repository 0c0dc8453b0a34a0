"""Heads of units by their definition, for small graphs: what cannot be reached once an object is taken away."""

from __future__ import annotations

import gc
from collections import deque
from typing import Any

import numpy as np

_ATOMS = (int, float, complex, str, bool, type(None))


def references(value: Any) -> list[Any]:
    """What `value` refers to, without common atoms and classes."""
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        found = list(value)
    elif isinstance(value, dict):
        found = [*value, *value.values()]
    elif isinstance(value, np.ndarray):
        found = value.ravel().tolist()
    else:
        found = gc.get_referents(value)
    return [child for child in found if not isinstance(child, (*_ATOMS, type))]


class ReferenceGraph:
    """`index`: id -> number of every object that the roots reach, 0 is the session. `edges`: of numbers."""

    def __init__(self, roots: list[Any], forced: set[int]) -> None:
        self.objects: list[Any] = [None]
        self.index: dict[int, int] = {}
        self.edges: set[tuple[int, int]] = set()
        todo = [(0, root) for root in roots if not isinstance(root, (*_ATOMS, type))]
        while todo:
            origin, value = todo.pop()
            known = self.index.get(id(value))
            if known is None:
                known = self.index[id(value)] = len(self.objects)
                self.objects.append(value)
                todo += [(known, child) for child in references(value)]
                if id(value) in forced:
                    self.edges.add((0, known))
            self.edges.add((origin, known))

    def reachable_without(self, removed: int) -> set[int]:
        """What the session still reaches if that object is taken away."""
        seen = {0}
        todo = [0]
        while todo:
            origin = todo.pop()
            fresh = {to for start, to in self.edges if start == origin and to != removed} - seen
            seen |= fresh
            todo += fresh
        return seen

    def heads(self) -> dict[int, int]:
        """id of every object -> id of the object that heads its unit."""
        below = {
            node: set(range(1, len(self.objects))) - self.reachable_without(node) - {node}
            for node in range(1, len(self.objects))
        }
        dominated = set().union(*below.values())
        found = {}
        for head in set(below) - dominated:
            for node in below[head] | {head}:
                found[id(self.objects[node])] = id(self.objects[head])
        return found
