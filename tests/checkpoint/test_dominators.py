"""Dominators against their definition: what cannot be reached once a node is taken away."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.checkpoint.dominators import immediate_dominators, top_heads


def _number(successors):
    """Numbers what node 0 reaches in depth-first order: (parents, other predecessors, edges between numbers)."""
    number, parents, extra = {0: 0}, [0], {}
    stack = [(0, iter(successors[0]))]
    while stack:
        node, remaining = stack[-1]
        for below in remaining:
            if below not in number:
                number[below] = len(parents)
                parents.append(number[node])
                stack.append((below, iter(successors[below])))
                break
            if number[below]:
                extra.setdefault(number[below], []).append(number[node])
        else:
            stack.pop()
    edges = [(number[a], number[b]) for a in number for b in successors[a]]
    return parents, extra, edges


def _by_definition(count, edges):
    dominators = {node: set() for node in range(count)}
    for removed in range(count):
        seen = set() if removed == 0 else {0}
        todo = list(seen)
        while todo:
            node = todo.pop()
            fresh = {b for a, b in edges if a == node and b != removed} - seen
            seen |= fresh
            todo.extend(fresh)
        for node in range(count):
            if node not in seen and node != removed:
                dominators[node].add(removed)
    return [0] + [max(dominators[node], key=lambda d: len(dominators[d])) for node in range(1, count)]


def _graphs_of(count):
    return st.lists(st.lists(st.integers(0, count - 1), max_size=3), min_size=count, max_size=count)


@settings(max_examples=200)
@given(st.integers(2, 10).flatmap(_graphs_of))
def test_dominators_equal_their_definition(successors):
    parents, extra, edges = _number(successors)
    found = immediate_dominators(parents, extra)
    assert found == _by_definition(len(parents), edges)
    heads = top_heads(found)
    assert all(heads[node] == node for node in range(1, len(found)) if found[node] == 0)
    assert all(heads[node] == heads[found[node]] for node in range(1, len(found)) if found[node])
