"""Which nodes of a flow graph are immediately dominated by its entry: the heads of units (design §3).

Nodes are numbered in the order of one depth-first walk, the entry is 0. Semi-NCA (Georgiadis 2005): semidominators with
path compression, then nearest common ancestors; nodes with a single way in cost almost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def immediate_dominators(parents: Sequence[int], extra_predecessors: Mapping[int, Sequence[int]]) -> list[int]:
    """The immediate dominator of every node, 0 for the entry itself.

    `parents[n] < n`: the node from which the walk first came to n. `extra_predecessors[n]`: the origins of all other
    edges to n, in any order. Every node is reachable from 0.
    """
    count = len(parents)
    dominators = list(parents)
    if not extra_predecessors:
        return dominators
    semi = _semidominators(parents, extra_predecessors)
    for node in range(1, count):
        if node not in extra_predecessors:
            continue
        limit = semi[node]
        candidate = parents[node]
        while candidate > limit:
            candidate = dominators[candidate]
        dominators[node] = candidate
    return dominators


def _semidominators(parents: Sequence[int], extra_predecessors: Mapping[int, Sequence[int]]) -> list[int]:
    count = len(parents)
    semi = list(parents)
    # label[n]: the node of least semidominator on the compressed path from n up to, not including, ancestor[n]'s root.
    label = list(range(count))
    ancestor = list(parents)
    for node in range(count - 1, 0, -1):
        least = parents[node]
        for predecessor in extra_predecessors.get(node, ()):
            if predecessor < node:
                least = min(least, predecessor)
            else:
                best = _best_above(predecessor, node, ancestor, label, semi)
                least = min(least, semi[best])
        semi[node] = least
        label[node] = node
    return semi


def _best_above(start: int, node: int, ancestor: list[int], label: list[int], semi: list[int]) -> int:
    """The node of least semidominator on the tree path from `start` up to, not including, the nodes below `node`.

    Only nodes numbered above `node` have their semidominator yet; the path is compressed up to the first other one.
    """
    path: list[int] = []
    at = start
    while ancestor[at] > node:
        path.append(at)
        at = ancestor[at]
    best = label[at]
    for step in reversed(path):
        if semi[best] < semi[label[step]]:
            label[step] = best
        else:
            best = label[step]
        ancestor[step] = ancestor[at]
    return label[start]


def top_heads(dominators: Sequence[int]) -> list[int]:
    """For each node its ancestor, or itself, that lies directly under the entry in the dominator tree; [0] is 0."""
    heads = [0] * len(dominators)
    for node in range(1, len(dominators)):
        above = dominators[node]
        heads[node] = node if above == 0 else heads[above]
    return heads
