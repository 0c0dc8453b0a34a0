"""Which values that no version has still hold what others were before a newer version changed them (design §3)."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from looseleaf.checkpoint._native import REFERENTS
from looseleaf.checkpoint.edges import Edges, Handler
from looseleaf.checkpoint.paths import path_to
from looseleaf.checkpoint.refusals import refusal_of_type
from looseleaf.checkpoint.walk import Graph

# What a person goes on using, and what tells the garbage collector all that it refers to. Others, such as parts of the
# kernel, lead to things of the process that are nobody's values.
_LOOKED_INTO: Final = frozenset({"GENERATOR", "COROUTINE", "LIVE_ITERATOR", "THREAD"})


class _StaleEdges(Edges):
    """As Edges, and into generators, coroutines, iterators and threads, which a save leaves alone."""

    def _classify(self, kind: Any) -> int | Handler:
        refusal = refusal_of_type(kind)
        if refusal is not None and refusal.reason in _LOOKED_INTO:
            return REFERENTS
        return super()._classify(kind)


def find_stale(
    namespace: Mapping[str, Any], kept: Iterable[tuple[str, Any]], dropped: Mapping[int, Any], stored: Iterable[Any]
) -> list[tuple[str, str]]:
    """(variable, path) of those of `kept` that reach an object of `dropped` (by id), or a part of one.

    `stored`: objects that are what the newest version says; what these alone lead to is not stale.
    """
    kept = list(kept)
    if not (kept and dropped):
        return []
    edges = _StaleEdges(
        [id(namespace), id(sys.modules)], on_array=_bases, on_tensor=_parts, on_storage=lambda _: (),
        on_arrow=lambda _: (), on_bytes=lambda _: None,
    )  # fmt: skip
    known = {id(value) for value in stored} | dropped.keys()
    graph = Graph(edges, known)
    for name, value in kept:
        graph.add_root(name, value)
    for value in dropped.values():
        graph.add_root("", value)
    graph.find_heads()
    gone = {node for address in dropped if (node := graph.node_at(address))}
    # An object heads a unit of this graph if two lead to it: only such a one can be a part of both sides.
    shared = [node for node in graph.heads() if id(graph.object(node)) not in known]
    stops = {node for address in known if (node := graph.node_at(address))}
    parts = [node for node in shared if _above(graph, node, stops) & gone]
    return [
        (name, path_to(graph, node, root))
        for name, value in kept
        if (root := graph.node_of(value)) and (node := _first_reached(graph, root, [*gone, *parts]))
    ]  # fmt: skip


def _first_reached(graph: Graph, root: int, nodes: Iterable[int]) -> int:
    """The first of `nodes` that `root` leads to, 0 if it leads to none."""
    return next((node for node in nodes if root in _above(graph, node, ())), 0)


def _above(graph: Graph, node: int, stops: Collection[int]) -> set[int]:
    """All nodes that lead to `node`, itself included; not beyond `stops`."""
    seen = {node}
    todo = [node]
    while todo:
        for above in graph.predecessors(todo.pop()):
            if above and above not in seen:
                seen.add(above)
                if above not in stops:
                    todo.append(above)
    return seen


def _bases(value: Any) -> list[Any]:
    return [value.base, *getattr(value, "__dict__", {}).values()]


def _parts(value: Any) -> list[Any]:
    parts = [*getattr(value, "__dict__", {}).values()]
    return [*parts, value.grad] if value.is_leaf else parts
