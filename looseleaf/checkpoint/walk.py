"""One walk over a session's live objects: which of them are shared between variables, and by which way each is reached.

Iterative, so that no structure is too deep for it. Every object that it numbers is kept alive until the walk is
dropped: an id names one object for as long as anybody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from looseleaf.checkpoint.dominators import immediate_dominators, top_heads
from looseleaf.checkpoint.edges import Edges

# Marks an object that was looked at and is no node: it is found again by name.
_CUT: Final = -1
# Builtin types whose instances the plain C pickler saves as they are, without asking anybody.
SCALARS: Final = frozenset({int, float, complex, bool, str, bytes, type(None)})
PLAIN: Final = SCALARS | {list, tuple, dict, set, frozenset}


@dataclass
class Graph:
    """What a walk found. Node 0 stands for the session; `objects[n]`, `parents[n]` belong to node n.

    `mixed`: nodes that refer to atoms of other than builtin types, or to what is found by name.
    `heads[n]`: the node that heads the unit of n. `plain[n]` is meaningful for heads: the unit holds builtin values
    only and refers to no other unit.
    """

    objects: list[Any] = field(default_factory=lambda: [None])
    parents: list[int] = field(default_factory=lambda: [0])
    index: dict[int, int] = field(default_factory=dict)
    extra_predecessors: dict[int, list[int]] = field(default_factory=dict)
    root_names: dict[int, str] = field(default_factory=dict)
    mixed: set[int] = field(default_factory=set)
    heads: list[int] = field(default_factory=list)
    plain: list[bool] = field(default_factory=list)

    def node_of(self, value: Any) -> int:
        """The node of the very object `value`, 0 if it is none."""
        return max(0, self.index.get(id(value), 0))

    def add_edge_from_session(self, node: int) -> None:
        """Makes `node` a head, as if the session referred to it directly."""
        self.extra_predecessors.setdefault(node, []).append(0)

    def find_heads(self) -> None:
        """Fills `heads` and `plain` from the edges."""
        self.heads = top_heads(immediate_dominators(self.parents, self.extra_predecessors))
        self.plain = [True] * len(self.objects)
        heads, plain = self.heads, self.plain
        for node, value in enumerate(self.objects):
            if type(value) not in PLAIN:
                plain[heads[node]] = False
            above = heads[self.parents[node]]
            if above != heads[node]:
                plain[above] = False
        for node in self.mixed:
            plain[heads[node]] = False
        for node, predecessors in self.extra_predecessors.items():
            for predecessor in predecessors:
                if heads[predecessor] != heads[node]:
                    plain[heads[predecessor]] = False

    def depth_within_unit(self, node: int) -> int:
        """Steps of the walk from the head of its unit down to `node`."""
        steps = 0
        while self.heads[node] != node:
            node = self.parents[node]
            steps += 1
        return steps

    def way_to(self, node: int) -> list[Any]:
        """The objects on the walk's way from a root's value down to `node`, both included."""
        way = []
        while node:
            way.append(self.objects[node])
            node = self.parents[node]
        return way[::-1]

    def root_name_of(self, node: int) -> str:
        """The variable from whose value the walk first came to `node`."""
        while self.parents[node]:
            node = self.parents[node]
        return self.root_names.get(node, "")


class Walk:
    """Numbers everything that roots reach. `is_forced(value)`: it must head a unit whoever refers to it."""

    def __init__(self, edges: Edges, is_forced: Callable[[Any], bool]) -> None:
        self.graph = Graph()
        self._edges = edges
        self._is_forced = is_forced
        # Kept alive as the nodes are: an id in the index must not come to mean another object.
        self._cut_objects: list[Any] = []

    def add_root(self, name: str, value: Any) -> int:
        """Walks on from `value`; returns its node, or 0 if it is an atom or is found again by name."""
        graph = self.graph
        known = graph.index.get(id(value), 0)
        if known:
            if known > 0:
                graph.add_edge_from_session(known)
            return max(known, 0)
        children = self._children(value)
        if children is None:
            return 0
        node = self._number(value, 0)
        graph.root_names[node] = name
        self._descend(node, children)
        return node

    def _children(self, value: Any) -> Iterable[Any] | None:
        handler = self._edges.handler(type(value))
        if handler is None:
            return None
        if id(value) in self._edges.cut:
            self.graph.index[id(value)] = _CUT
            return None
        children = handler(value)
        if children is None and not isinstance(value, bytes):
            self.graph.index[id(value)] = _CUT
            self._cut_objects.append(value)
        return children

    def _number(self, value: Any, parent: int) -> int:
        graph = self.graph
        node = len(graph.objects)
        graph.objects.append(value)
        graph.parents.append(parent)
        graph.index[id(value)] = node
        if parent and self._is_forced(value):
            graph.add_edge_from_session(node)
        return node

    def _descend(self, start: int, children: Iterable[Any]) -> None:
        index, extra, handler_of = self.graph.index, self.graph.extra_predecessors, self._edges.handler
        mixed = self.graph.mixed
        stack: list[tuple[int, Iterator[Any]]] = [(start, iter(children))]
        while stack:
            node, remaining = stack[-1]
            for child in remaining:
                known = index.get(id(child))
                if known is not None:
                    if known > 0:
                        extra.setdefault(known, []).append(node)
                    else:
                        mixed.add(node)
                    continue
                below = None if handler_of(type(child)) is None else self._children(child)
                if below is not None:
                    stack.append((self._number(child, node), iter(below)))
                    break
                if type(child) not in SCALARS:
                    mixed.add(node)
            else:
                stack.pop()
