"""Autograd graphs end with their cell, on a warm worker too: what a cell does must not depend on where it runs.

A version has a non-leaf tensor's value and not its graph (design §3), which a worker that stays warm still has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from looseleaf.checkpoint.edges import Edges
from looseleaf.checkpoint.manifest import Manifest
from looseleaf.checkpoint.memory import raw_access
from looseleaf.checkpoint.paths import path_to
from looseleaf.checkpoint.walk import Graph
from looseleaf.errors import PreconditionFailed

_NOTE: Final = "GRAPH_NOT_CARRIED "
# In a node's metadata: it is closed already.
_CLOSED: Final = "looseleaf_closed"


def close_graphs(namespace: dict[str, Any], hidden: Callable[[str], bool], manifest: Manifest) -> None:
    """From now on nobody can go back through tensors that `manifest`, this process's newest version, has by value.

    A later backward pass through one raises PreconditionFailed `GRAPH_NOT_CARRIED` with its name, as it would in
    another process. What lives in no version, such as a generator's own tensors, keeps its graph.
    """
    if not any(note.startswith(_NOTE) for entry in manifest.units.values() for note in entry.header.notes):
        return
    with raw_access():
        for path, node in _nodes(namespace, hidden):
            if _CLOSED not in node.metadata:
                node.metadata[_CLOSED] = True
                node.register_prehook(_refusing(path))


def _nodes(namespace: dict[str, Any], hidden: Callable[[str], bool]) -> list[tuple[str, Any]]:
    """(path of the tensor, node of its graph) of all non-leaf tensors that the variables lead to."""
    tensors: list[Any] = []

    def on_tensor(value: Any) -> Sequence[Any]:
        tensors.append(value)
        attributes = list(getattr(value, "__dict__", {}).values())
        return [*attributes, value.grad] if value.is_leaf or value.retains_grad else attributes

    edges = Edges(
        [id(namespace), id(sys.modules)], on_array=lambda _: (), on_tensor=on_tensor, on_storage=lambda _: (),
        on_arrow=lambda _: (), on_bytes=lambda _: None,
    )  # fmt: skip
    graph = Graph(edges, ())
    for name, value in list(namespace.items()):
        if type(name) is str and not hidden(name):
            graph.add_root(name, value)
    graph.find_heads()
    return [
        (path_to(graph, graph.node_of(value)), value.grad_fn) for value in tensors if value.grad_fn is not None
    ]  # fmt: skip


def _refusing(path: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise PreconditionFailed(
            "GRAPH_NOT_CARRIED",
            f"`{path}` was computed in an earlier cell, and autograd graphs end with their cell: compute it in the "
            "same cell as the backward pass",
            name=path,
        )  # fmt: skip

    return refuse
