"""How a node comes to be: wanted by several requests, probed, given room, forked (import-cache study §4.2).

One node at a time is in the making on a host, and none while its base does not serve.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from looseleaf.services.worker_daemon.core import zygote_events as ev
from looseleaf.services.worker_daemon.core.zygote_admission import Group, is_worthwhile, shared_group
from looseleaf.services.worker_daemon.core.zygote_events import Action
from looseleaf.services.worker_daemon.core.zygote_eviction import lineage, to_evict
from looseleaf.services.worker_daemon.core.zygote_facts import ProbeKey, ProbeResult, Verdict
from looseleaf.services.worker_daemon.core.zygote_nodes import Node, NodeId, NodeState, Tree, TreeLimits
from looseleaf.services.worker_daemon.core.zygote_score import FORK_S_PER_MIB, ImportTimes, best_node
from looseleaf.units import MIB

# The time between builds that fail for no known reason grows to so many doublings.
RETRY_DOUBLINGS_MAX: Final = 8


class Builds:
    """The node in the making, if there is one. Shares `nodes` with the rules that own it."""

    def __init__(self, nodes: dict[NodeId, Node], times: ImportTimes, limits: TreeLimits) -> None:
        self.making: NodeId | None = None
        self._nodes = nodes
        self._times = times
        self._limits = limits
        self._uses = 0

    def consider(
        self, tree: Tree, base: Node, imports: frozenset[str], now_s: float, new_id: Callable[[], NodeId]
    ) -> list[Action]:
        """After a request for `imports`: the probe of a node that would have served it better, if one is due."""
        due = now_s >= max(tree.build_after_s, tree.off_until_s)
        if self.making is not None or not due or base.state is not NodeState.SERVING:
            return []
        serving = [one for one in self._nodes.values() if one.key == tree.key and one.state is NodeState.SERVING]
        closure = self._times.closure(imports)
        parent = best_node(serving, base, imports, closure, self._times)
        if parent is None:
            return []
        group = shared_group(tree, parent, base, imports - parent.modules, self._times, self._limits, now_s)
        if group is None or not is_worthwhile(group, self._times, self._limits):
            return []
        wanted = parent.imports | set(group.imports)
        if any(one.imports == wanted for one in serving) or self._room(parent, 0) is None:
            return []
        node = Node(
            new_id(), tree.key, parent.id, wanted, group.imports, state=NodeState.PLANNED, depth=parent.depth + 1,
            used_s=now_s,
        )  # fmt: skip
        self._nodes[node.id] = node
        self.making, self._uses = node.id, group.uses
        return [ev.Probe(node.id, parent.id, ProbeKey(tree.environment_id, parent.imports, group.imports))]

    def probed(
        self, tree: Tree, base: Node, node: Node, result: ProbeResult | None, now_s: float
    ) -> tuple[list[Node], list[Action]]:
        """Nodes that make room, and the build, once the planned node's probe has spoken."""
        assert node.parent is not None
        parent = self._nodes.get(node.parent)
        if result is None or result.verdict is not Verdict.CLEAN:
            verdict, culprit = (result.verdict, result.culprit) if result is not None else (None, "")
            self.failed(tree, node, verdict, culprit, now_s)
            return [], []
        self._times.measured(result.seconds)
        for name, modules in result.brought.items():
            self._times.implies(name, modules)
        group = Group(node.added, self._uses)
        worthwhile = is_worthwhile(group, self._times, self._limits, result.private_bytes)
        serves = parent is not None and parent.state is NodeState.SERVING and base.state is NodeState.SERVING
        # Without itself: it needs the place that is looked for.
        self.drop(node)
        victims = self._room(parent, result.private_bytes) if parent is not None and worthwhile and serves else None
        if victims is None or parent is None:
            return [], []
        self._nodes[node.id], self.making = node, node.id
        node.state, node.private_bytes = NodeState.BUILDING, result.private_bytes
        node.modules = parent.modules | result.modules | node.imports
        node.fork_s = parent.fork_s + FORK_S_PER_MIB * result.private_bytes / MIB
        return victims, [ev.Build(node.id, parent.id, node.added)]

    def built(self, tree: Tree, node: Node, modules: frozenset[str], private_bytes: int, now_s: float) -> None:
        """It serves from now on."""
        self.forget(node.id)
        tree.builds_failed = 0
        node.state, node.used_s = NodeState.SERVING, now_s
        node.modules |= modules
        node.private_bytes = private_bytes or node.private_bytes

    def failed(self, tree: Tree, node: Node, verdict: Verdict | None, culprit: str, now_s: float) -> None:
        """It does not come to be. What was at fault is not tried again; without a cause the next build waits."""
        if verdict is None:
            tree.build_after_s = now_s + self._limits.retry_s * 2 ** min(tree.builds_failed, RETRY_DOUBLINGS_MAX)
            tree.builds_failed += 1
        else:
            tree.refuse([culprit] if culprit in node.added else node.added, verdict, now_s)
        self.drop(node)

    def drop(self, node: Node) -> None:
        """As if it had not been thought of."""
        self._nodes.pop(node.id, None)
        self.forget(node.id)

    def forget(self, node_id: NodeId) -> None:
        """It is in the making no more."""
        if self.making == node_id:
            self.making = None

    def kept(self) -> Collection[NodeId]:
        """Nodes that must not go: the one in the making and those that it is made from."""
        return lineage(self._nodes, self.making)

    def bytes_in_use(self) -> int:
        """Memory of all zygotes, each shared page counted once; what was not sampled yet by its own pages."""
        return sum(node.pss_bytes or node.private_bytes for node in self._nodes.values() if node.lives)

    def _room(self, parent: Node, private_bytes: int) -> list[Node] | None:
        """Nodes to evict so that one more may be built on `parent`; None if that cannot be had."""
        tail = sum(1 for node in self._nodes.values() if node.lives and not node.is_base)
        bytes_over = self.bytes_in_use() + private_bytes - self._limits.pss_bytes_max
        return to_evict(
            self._nodes, tail + 1 - self._limits.nodes_max, bytes_over, lineage(self._nodes, parent.id)
        )
