"""Which imports get a node: those that several requests share, most popular first (import-cache study §4.2: admit)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from looseleaf.services.worker_daemon.core.zygote_nodes import Node, Tree, TreeLimits
from looseleaf.services.worker_daemon.core.zygote_score import FORK_S_PER_MIB, ImportTimes
from looseleaf.units import MIB


@dataclass(frozen=True)
class Group:
    """Imports for one node, in order; `uses`: requests of the window that want all of them."""

    imports: tuple[str, ...]
    uses: int


def shared_group(
    tree: Tree, parent: Node, base: Node, lacking: Iterable[str], times: ImportTimes, limits: TreeLimits, now_s: float
) -> Group | None:
    """The most popular of the imports that `parent` lacks, with those that every one of its requests wants as well.

    Only requests that the parent could serve count. Popular ones first make chains whose upper part siblings share.
    """
    tail = parent.imports - base.imports
    compatible = [asked for asked in tree.window if tail <= times.closure(asked)]
    uses = {
        name: frozenset(place for place, asked in enumerate(compatible) if name in asked)
        for name in lacking
        if not tree.refuses(name, now_s)
    }
    shared = {name: places for name, places in uses.items() if len(places) >= limits.shared_uses}
    if not shared:
        return None
    lead = min(shared, key=lambda name: (-len(shared[name]), name))
    together = sorted(name for name in shared if shared[name] == shared[lead])
    return Group(tuple(together[: limits.group_max]), len(shared[lead]))


def is_worthwhile(group: Group, times: ImportTimes, limits: TreeLimits, private_bytes: int = 0) -> bool:
    """What the group's uses would have been spared is more than its build; nobody keeps a process for milliseconds."""
    total_s = times.sum(group.imports)
    spared_s = total_s - FORK_S_PER_MIB * private_bytes / MIB
    return spared_s >= limits.saves_s_min and group.uses * spared_s > total_s
