"""Who makes room in the import cache: the least recently used leaf (import-cache study §4.2: evict)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from looseleaf.services.worker_daemon.core.zygote_nodes import Node, NodeId, NodeState


def parents_of(nodes: Iterable[Node]) -> frozenset[NodeId]:
    """Nodes that others descend from."""
    return frozenset(node.parent for node in nodes if node.parent is not None)


def evictable(nodes: Mapping[NodeId, Node], kept: Collection[NodeId] = ()) -> list[Node]:
    """Tail nodes that serve, have no child zygote and no fork or build under way, least recently used first.

    Live workers do not hold a node; pages that they share with it are freed with them.
    """
    parents = parents_of(nodes.values())
    found = [
        node
        for node in nodes.values()
        if node.state is NodeState.SERVING
        and not node.is_base
        and node.id not in parents
        and not node.forks_under_way
        and node.id not in kept
    ]
    return sorted(found, key=lambda node: (node.used_s, node.id))


def lineage(nodes: Mapping[NodeId, Node], node_id: NodeId | None) -> list[NodeId]:
    """The node and its ancestors, nearest first."""
    found: list[NodeId] = []
    while node_id is not None and (node := nodes.get(node_id)) is not None:
        found.append(node_id)
        node_id = node.parent
    return found


def descendants(nodes: Mapping[NodeId, Node], node_id: NodeId) -> list[Node]:
    """The nodes that were forked from it, or from one of these."""
    return [node for node in nodes.values() if node.id != node_id and node_id in lineage(nodes, node.id)]


def to_evict(
    nodes: Mapping[NodeId, Node], nodes_over: int, bytes_over: int, kept: Collection[NodeId] = ()
) -> list[Node] | None:
    """Nodes whose end frees `nodes_over` places and `bytes_over` bytes, in order; None if there are too few.

    The end of a leaf may make its parent one, which counts as the next to choose from.
    """
    left = dict(nodes)
    victims: list[Node] = []
    while nodes_over > 0 or bytes_over > 0:
        candidates = evictable(left, kept)
        if not candidates:
            return None
        victim = candidates[0]
        del left[victim.id]
        victims.append(victim)
        nodes_over -= 1
        bytes_over -= max(victim.pss_bytes, victim.private_bytes, 1)
    return victims
