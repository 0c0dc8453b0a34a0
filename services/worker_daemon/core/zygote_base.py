"""What the base of a new tree imports besides the configured head set: what the last tree's requests wanted most.

Import-cache study §4.2: benefit = P(use) × seconds ÷ private memory. Only what a zygote has held is taken: it is clean.
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
    tree: Tree, base: Node, nodes: Iterable[Node], times: ImportTimes, limits: BaseLimits | None = None
) -> dict[str, int]:
    """Imports that the tree's requests want often, best benefit first, with the memory that each costs.

    They are those of its nodes, of which those of one node stay together, and those that its base had learned before.
    As long as few have asked, these are all.
    """
    limits = limits or BaseLimits()
    asked = len(tree.window)
    if asked < limits.requests_min:
        return dict(tree.learned)
    found: list[tuple[float, int, dict[str, int]]] = []
    for place, group in enumerate([*_held(tree, base), *_added(tree, nodes)]):
        share = sum(group.keys() <= imports for imports in tree.window) / asked
        if share >= limits.share_min:
            benefit = share * times.sum(group) / max(1, sum(group.values()))
            found.append((benefit, place, group))
    learned: dict[str, int] = {}
    for _, _, group in sorted(found, key=lambda one: (-one[0], one[1])):
        wanted = {**group, **learned}
        if len(wanted) <= limits.imports_max and sum(wanted.values()) <= limits.private_bytes_max:
            learned |= {name: size for name, size in group.items() if name not in learned}
    return learned


def _held(tree: Tree, base: Node) -> list[dict[str, int]]:
    """What the base had learned and holds; one that never was ready may hold all."""
    ready = bool(base.imports)
    return [{name: size} for name, size in tree.learned.items() if name in base.imports or not ready]


def _added(tree: Tree, nodes: Iterable[Node]) -> list[dict[str, int]]:
    serving = sorted((node for node in nodes if node.key == tree.key), key=lambda node: node.id)
    return [
        dict.fromkeys(node.added, node.private_bytes // len(node.added))
        for node in serving
        if not node.is_base and node.state is NodeState.SERVING
    ]
