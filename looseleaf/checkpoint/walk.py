"""One walk over a session's live objects: which of them are shared between variables, and by which way each is reached.

The walk itself is native. Every object that it numbers is kept alive until the graph is dropped: an id names one object
for as long as anybody asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from looseleaf.checkpoint._native import ObjectGraph
from looseleaf.checkpoint.edges import BYTES_PAYLOAD_MIN, Edges

# Builtin types whose instances the plain C pickler saves as they are, without asking anybody.
SCALARS: Final = frozenset({int, float, complex, bool, str, bytes, type(None)})


class Graph:
    """What the walk from some roots finds. Node 0 stands for the session, the others for objects. `stubs`: stand-ins.

    `forced`: ids of objects that must head a unit whoever refers to them. After `find_heads` nothing can be added.
    """

    def __init__(self, edges: Edges, forced: Iterable[int]) -> None:
        self.root_names: dict[int, str] = {}
        self.stubs = edges.stubs
        self._native = ObjectGraph(
            classify=edges.action, on_bytes=edges.on_bytes, cut=edges.cut, forced=forced,
            bytes_node_min=BYTES_PAYLOAD_MIN,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._native)

    def add_root(self, name: str, value: Any) -> int:
        """Walks on from `value`; returns its node, or 0 if it is an atom or is found again by name."""
        before = len(self._native)
        node = self._native.add_root(value)
        if node >= before:
            self.root_names[node] = name
        return node

    def find_heads(self) -> None:
        """Ends the walk and finds which objects head units."""
        self._native.find_heads()

    def node_of(self, value: Any) -> int:
        """The node of the very object `value`, 0 if it is none."""
        return self._native.node_at(id(value))

    def node_at(self, address: int) -> int:
        """The node of the object with that id, 0 if it is none."""
        return self._native.node_at(address)

    def object(self, node: int) -> Any:
        """The object of a node other than 0."""
        return self._native.object(node)

    def parent(self, node: int) -> int:
        """The node from which the walk first came to `node`."""
        return self._native.parent(node)

    def predecessors(self, node: int) -> list[int]:
        """All nodes that refer to `node`, the parent first; with repetitions."""
        return [self._native.parent(node), *self._native.other_predecessors(node)]

    def head(self, node: int) -> int:
        """The node that heads the unit of `node`; 0 of 0."""
        return self._native.head(node) if node else 0

    def heads(self) -> list[int]:
        """All nodes that head units, in the order of the walk."""
        return self._native.heads()

    def is_plain(self, head: int) -> bool:
        """Whether the unit of `head` holds builtin values only and refers to no other unit."""
        return self._native.is_plain(head)
