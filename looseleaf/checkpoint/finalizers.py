"""Copies of what lives on in another holder are dropped without their `__del__`, which runs where it dies."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

from looseleaf.checkpoint._native import ObjectGraph, mark_finalized
from looseleaf.checkpoint.edges import BYTES_PAYLOAD_MIN, Edges, Handler

# `type.__dict__` would run a metaclass's code.
_members_of = type.__dict__["__dict__"].__get__
_bases_of = type.__dict__["__mro__"].__get__


class _Finalizable(Edges):
    """As Edges; notes the types with a `__del__` that it meets. Memory has no children here."""

    def __init__(self, cut: Iterable[int]) -> None:
        super().__init__(
            cut, on_array=_attributes, on_tensor=_attributes, on_storage=lambda _: (), on_arrow=lambda _: (),
            on_bytes=lambda _: None,
        )  # fmt: skip
        self.kinds: set[type] = set()

    def action(self, kind: type) -> int | Handler:
        if _has_finalizer(kind):
            self.kinds.add(kind)
        return super().action(kind)


def mute(namespace: Mapping[str, Any], dropped: Iterable[Any], stored: Iterable[Any]) -> int:
    """Ends the right of `dropped`, and of what only they lead to, to run a `__del__`; returns of how many objects.

    `stored`: objects that stay in use here; they and what they lead to keep theirs. Finalizers that are no Python code,
    such as those that close files, run as before.
    """
    edges = _Finalizable([id(namespace), id(sys.modules), *map(id, stored)])
    graph = ObjectGraph(
        classify=edges.action, on_bytes=edges.on_bytes, cut=edges.cut, forced=(), bytes_node_min=BYTES_PAYLOAD_MIN
    )
    for value in dropped:
        graph.add_root(value)
    muted = 0
    if edges.kinds:
        for node in range(1, len(graph)):
            value = graph.object(node)
            if type(value) in edges.kinds:
                muted += mark_finalized(value)
    edges.end()
    return muted


def _has_finalizer(kind: type) -> bool:
    for base in _bases_of(kind):
        found = _members_of(base).get("__del__")
        if found is not None:
            # Ours keep account of this process's memory.
            return isinstance(found, types.FunctionType) and not found.__module__.startswith("looseleaf.")
    return False


def _attributes(value: Any) -> list[Any]:
    return [*getattr(value, "__dict__", {}).values()]
