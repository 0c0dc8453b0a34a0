"""Which values that no version has still hold what others were before a newer version changed them (design §3)."""

from __future__ import annotations

import sys
from collections import deque
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
    found = gone | _reached_from(gone, _ways_to(graph, shared, stops)).intersection(shared)
    ways = _ways_to(graph, found, ())
    return [
        (name, path_to(graph, _end_of(ways, root, found), root))
        for name, value in kept
        if (root := graph.node_of(value)) in ways
    ]


def _ways_to(graph: Graph, nodes: Iterable[int], stops: Collection[int]) -> dict[int, list[int]]:
    """All nodes that lead to some of `nodes`, these included, each with the next ones on its ways there, a shortest way
    first. No way leads through one of `stops`."""
    ways: dict[int, list[int]] = {node: [] for node in nodes}
    todo = deque(ways)
    while todo:
        node = todo.popleft()
        for above in filter(None, graph.predecessors(node)):
            if above not in ways:
                ways[above] = []
                if above not in stops:
                    todo.append(above)
            ways[above].append(node)
    return ways


def _reached_from(nodes: Iterable[int], ways: Mapping[int, list[int]]) -> set[int]:
    """What the ways that begin at `nodes` lead to."""
    reached: set[int] = set()
    todo = [node for node in nodes if node in ways]
    while todo:
        fresh = set(ways[todo.pop()]) - reached
        reached |= fresh
        todo.extend(fresh)
    return reached


def _end_of(ways: Mapping[int, list[int]], node: int, ends: Collection[int]) -> int:
    """The first of `ends` on a shortest way from `node`."""
    while node not in ends:
        node = ways[node][0]
    return node


def _bases(value: Any) -> list[Any]:
    return [value.base, *getattr(value, "__dict__", {}).values()]


def _parts(value: Any) -> list[Any]:
    parts = [*getattr(value, "__dict__", {}).values()]
    return [*parts, value.grad] if value.is_leaf else parts
