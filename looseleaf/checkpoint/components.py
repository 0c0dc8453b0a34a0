"""Strongly connected components and reachability over units, iteratively: no graph is too deep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

Node = TypeVar("Node")
Origin = TypeVar("Origin")


def components(nodes: Iterable[Node], successors: Callable[[Node], Iterable[Node]]) -> list[list[Node]]:
    """Tarjan's components of everything that `nodes` reach; each after all components that it refers to."""
    order: dict[Node, int] = {}
    low: dict[Node, int] = {}
    open_: list[Node] = []
    is_open: set[Node] = set()
    found: list[list[Node]] = []
    for start in nodes:
        if start in order:
            continue
        stack: list[tuple[Node, Iterator[Node]]] = []

        def enter(node: Node, stack: list[tuple[Node, Iterator[Node]]] = stack) -> None:
            order[node] = low[node] = len(order)
            open_.append(node)
            is_open.add(node)
            stack.append((node, iter(successors(node))))

        enter(start)
        while stack:
            node, remaining = stack[-1]
            for below in remaining:
                if below not in order:
                    enter(below)
                    break
                if below in is_open:
                    low[node] = min(low[node], order[below])
            else:
                stack.pop()
                if stack:
                    low[stack[-1][0]] = min(low[stack[-1][0]], low[node])
                if low[node] == order[node]:
                    found.append(_close(node, open_, is_open))
    return found


def _close(node: Node, open_: list[Node], is_open: set[Node]) -> list[Node]:
    component: list[Node] = []
    while True:
        member = open_.pop()
        is_open.discard(member)
        component.append(member)
        if member == node:
            return component[::-1]


def closed_under(
    origins: Mapping[Node, Origin], nodes: Iterable[Node], successors: Callable[[Node], Iterable[Node]]
) -> dict[Node, Node]:
    """Every node that reaches one of `origins`, with such an origin; the origins themselves included."""
    if not origins:
        return {}
    predecessors: dict[Node, list[Node]] = {}
    for node in dict.fromkeys(nodes):
        for below in successors(node):
            predecessors.setdefault(below, []).append(node)
    reached = {origin: origin for origin in origins}
    todo = list(origins)
    while todo:
        node = todo.pop()
        for above in predecessors.get(node, ()):
            if above not in reached:
                reached[above] = reached[node]
                todo.append(above)
    return reached
