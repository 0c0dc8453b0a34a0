"""What the base of a new tree imports besides the configured head set: what the last tree's requests wanted most.

Import-cache study §4.2: benefit = P(use) × seconds ÷ private memory. Only what a node has held is taken: it is clean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from looseleaf.services.worker_daemon.core.zygote_nodes import Node, NodeState, Tree
from looseleaf.services.worker_daemon.core.zygote_score import ImportTimes
from looseleaf.units import MIB


@dataclass(frozen=True)
class BaseLimits:
    """`requests_min`: fewer teach nothing. `share_min`: of them must want an import. `imports_max`: learned ones.

    `private_bytes_max`: what they may cost together, for every fork pays for it.
    """

    requests_min: int = 20
    share_min: float = 0.25
    imports_max: int = 8
    private_bytes_max: int = 256 * MIB


def learned_base(
    tree: Tree, nodes: Iterable[Node], times: ImportTimes, limits: BaseLimits | None = None
) -> tuple[str, ...]:
    """Imports of the tree's nodes that its requests want often, best benefit first; those of one node stay together."""
    limits = limits or BaseLimits()
    asked = len(tree.window)
    if asked < limits.requests_min:
        return ()
    found: list[tuple[float, Node]] = []
    for node in nodes:
        if node.key != tree.key or node.is_base or node.state is not NodeState.SERVING:
            continue
        share = sum(set(node.added) <= imports for imports in tree.window) / asked
        if share >= limits.share_min:
            benefit = share * times.sum(node.added) / max(1, node.private_bytes)
            found.append((benefit, node))
    learned: list[str] = []
    private_bytes = 0
    for _, node in sorted(found, key=lambda pair: (-pair[0], pair[1].id)):
        fits = len(learned) + len(node.added) <= limits.imports_max
        if fits and private_bytes + node.private_bytes <= limits.private_bytes_max:
            learned += [name for name in node.added if name not in learned]
            private_bytes += node.private_bytes
    return tuple(learned)
