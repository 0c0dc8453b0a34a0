"""The import cache's rules: which zygotes a host has and from which one each worker is forked (paper §3.3).

I/O-free: `ImportCacheRules.handle(event, now_s)` says what to do; the daemon, tests and the corpus replay carry it out
and tell how it ended. What is done here by itself: forks are placed, at most one node is in the making on a host, room
is made for it, dead nodes with children stay as tombstones, and what poisons a worker goes with all that descends from
it. Building is `zygote_builds`, choosing `zygote_score`, `zygote_admission` and `zygote_eviction`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from looseleaf.services.worker_daemon.core import zygote_events as ev
from looseleaf.services.worker_daemon.core.zygote_builds import Builds
from looseleaf.services.worker_daemon.core.zygote_events import Action, Event, Fork, ForkFailure, ForkFresh, KillWhy
from looseleaf.services.worker_daemon.core.zygote_eviction import descendants, evictable, lineage, to_evict
from looseleaf.services.worker_daemon.core.zygote_facts import Verdict
from looseleaf.services.worker_daemon.core.zygote_nodes import (
    IMPORTS_MAX,
    Node,
    NodeId,
    NodeState,
    Tree,
    TreeKey,
    TreeLimits,
)
from looseleaf.services.worker_daemon.core.zygote_score import ImportTimes, best_node

# Weight of the newest fork in a node's fork time.
_NEWEST_FORK: Final = 0.2
# The time without zygotes grows to so many doublings while poisonings go on: more than an hour.
OFF_DOUBLINGS_MAX: Final = 4


@dataclass
class _Request:
    """A worker that is wanted: where it is tried now and was tried before; None: by a fresh process."""

    key: TreeKey
    imports: frozenset[str]
    node: NodeId | None = None
    path: list[NodeId] = field(default_factory=list)
    tried: list[NodeId] = field(default_factory=list)
    attempts: int = 0
    refusals: int = 0
    stillborn: int = 0


class ImportCacheRules:
    """All trees of one host. Every request gets `Fork`s and at last, if need be, one `ForkFresh`."""

    def __init__(self, limits: TreeLimits | None = None) -> None:
        self.limits = limits or TreeLimits()
        self.trees: dict[TreeKey, Tree] = {}
        self.nodes: dict[NodeId, Node] = {}
        self.times = ImportTimes()
        self.builds = Builds(self.nodes, self.times, self.limits)
        self._requests: dict[int, _Request] = {}
        self._next_id = 1
        self._handlers: dict[type[Any], Callable[[Any, float], list[Action]]] = {
            ev.KeyOpened: self._key_opened, ev.BaseReady: self._base_ready, ev.BaseDown: self._base_down,
            ev.KeyClosed: self._key_closed, ev.Requested: self._requested, ev.Forked: self._forked,
            ev.ForkFailed: self._fork_failed, ev.Abandoned: self._abandoned, ev.Imported: self._imported,
            ev.Doubted: self._doubted, ev.Probed: self._probed, ev.Built: self._built,
            ev.BuildFailed: self._build_failed, ev.NodeDied: self._node_died, ev.Poisoned: self._poisoned,
            ev.Sampled: self._sampled,
        }  # fmt: skip

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Actions to carry out in order. What is told of a node or request that is gone changes nothing."""
        return self._handlers[type(event)](event, now_s)

    def base(self, key: TreeKey) -> Node | None:
        """The pinned root of a key."""
        tree = self.trees.get(key)
        return self.nodes[tree.base] if tree is not None else None

    def new_id(self) -> NodeId:
        """Ids are never used again."""
        number, self._next_id = self._next_id, self._next_id + 1
        return NodeId(number)

    # -- keys and bases ------------------------------------------------------------------------------------------------

    def _key_opened(self, event: ev.KeyOpened, now_s: float) -> list[Action]:
        if event.key not in self.trees:
            base = Node(self.new_id(), event.key, None, used_s=now_s)
            self.nodes[base.id] = base
            before = self.trees.get(event.after) if event.after is not None else None
            window = deque(before.window if before is not None else (), maxlen=self.limits.window)
            self.trees[event.key] = Tree(event.key, base.id, window, learned=dict(event.learned))
        return []

    def _base_ready(self, event: ev.BaseReady, now_s: float) -> list[Action]:
        tree, base = self.trees.get(event.key), self.base(event.key)
        if tree is None or base is None:
            return []
        # One that came back after an install: what was forked from the one before holds other versions.
        stale = tree.environment_id not in ("", event.environment_id)
        actions = self._kill_tail(event.key, KillWhy.CLOSED) if stale else []
        if stale:
            tree.accept_all()
        tree.environment_id, tree.hopeless = event.environment_id, False
        self.times.measured(event.seconds)
        base.state, base.imports = NodeState.SERVING, frozenset(event.seconds)
        base.added, base.modules = tuple(event.seconds), base.imports | event.modules
        base.private_bytes = event.private_bytes
        return actions

    def _base_down(self, event: ev.BaseDown, now_s: float) -> list[Action]:
        tree, base = self.trees.get(event.key), self.base(event.key)
        if tree is not None and base is not None:
            base.state, base.pss_bytes = NodeState.STARTING, 0
            tree.hopeless = event.hopeless
        return []

    def _key_closed(self, event: ev.KeyClosed, now_s: float) -> list[Action]:
        actions = self._kill_tail(event.key, KillWhy.CLOSED)
        tree = self.trees.pop(event.key, None)
        if tree is not None:
            del self.nodes[tree.base]
        return actions

    def _kill_tail(self, key: TreeKey, why: KillWhy) -> list[Action]:
        return self._kill([node for node in self.nodes.values() if node.key == key and not node.is_base], why)

    def _kill(self, nodes: list[Node], why: KillWhy) -> list[Action]:
        for node in nodes:
            self.builds.drop(node)
        self._clear_tombstones()
        return [ev.Kill(node.id, why) for node in nodes if node.state in (NodeState.SERVING, NodeState.BUILDING)]

    # -- forks -------------------------------------------------------------------------------------------------------

    def _requested(self, event: ev.Requested, now_s: float) -> list[Action]:
        imports = frozenset(sorted(event.imports)[:IMPORTS_MAX])
        self._requests[event.request] = _Request(event.key, imports)
        if event.key in self.trees:
            self.trees[event.key].window.append(imports)
        return self._place(event.request, now_s)

    def _place(self, number: int, now_s: float) -> list[Action]:
        request = self._requests[number]
        request.attempts += 1
        node = self._next_node(request, now_s)
        request.node = node.id if node is not None else None
        if node is None:
            return [ForkFresh(number)]
        request.path = lineage(self.nodes, node.id)
        for used in request.path:
            self.nodes[used].used_s = now_s
        node.forks_under_way += 1
        return [Fork(number, node.id, request.imports - node.modules)]

    def _next_node(self, request: _Request, now_s: float) -> Node | None:
        tree, base = self.trees.get(request.key), self.base(request.key)
        if tree is None or base is None or now_s < tree.off_until_s or request.attempts > self.limits.attempts_max:
            return None
        left = [
            node
            for node in self.nodes.values()
            if node.key == request.key and node.state is NodeState.SERVING and node.id not in request.tried
        ]
        # After a failure the nearest ancestor that serves.
        for used in request.path:
            above = next((node for node in left if node.id == used), None)
            if above is not None:
                return above
        best = best_node(left, base, request.imports, self.times.closure(request.imports), self.times)
        waits = base.state is NodeState.STARTING and not tree.hopeless and base.id not in request.tried
        return base if best is None and waits else best

    def _forked(self, event: ev.Forked, now_s: float) -> list[Action]:
        request = self._requests.pop(event.request, None)
        if request is None:
            return []
        tree = self.trees.get(request.key)
        node = self._release(request)
        if node is None or tree is None:
            return []
        tree.strikes = 0
        node.stillborn = 0
        node.forks += 1
        node.fork_s += _NEWEST_FORK * (event.seconds - node.fork_s)
        # A build takes the time of forty forks: none begins while several are waited for.
        if len(self._requests) > self.limits.busy_forks:
            return []
        return self.builds.consider(tree, self.nodes[tree.base], request.imports, now_s, self.new_id)

    def _release(self, request: _Request) -> Node | None:
        node = self.nodes.get(request.node) if request.node is not None else None
        if node is not None:
            node.forks_under_way -= 1
        return node

    def _abandoned(self, event: ev.Abandoned, now_s: float) -> list[Action]:
        request = self._requests.pop(event.request, None)
        if request is not None:
            self._release(request)
        return []

    def _fork_failed(self, event: ev.ForkFailed, now_s: float) -> list[Action]:
        request = self._requests.get(event.request)
        if request is None:
            return []
        node, failed_on = self._release(request), request.node
        if failed_on is None:
            # A fresh process could not be started either.
            del self._requests[event.request]
            return []
        actions: list[Action] = []
        if event.failure is ForkFailure.REFUSED:
            request.refusals += 1
            if request.refusals == 1:
                victims = evictable(self.nodes, request.path)[:1]
                actions = self._kill(victims, KillWhy.EVICTED)
            else:
                request.attempts = self.limits.attempts_max
        elif event.failure is ForkFailure.STILLBORN:
            request.tried.append(failed_on)
            request.stillborn += 1
            if request.stillborn >= self.limits.stillborn_max:
                request.attempts = self.limits.attempts_max
            actions = self._count_stillborn(node, now_s) if node is not None else []
        else:
            request.tried.append(failed_on)
            if node is not None and node.state is NodeState.SERVING:
                actions = [ev.Kill(node.id, KillWhy.HUNG)] if event.failure is ForkFailure.TIMEOUT else []
                self._bury(node)
        actions += self._place(event.request, now_s)
        # One that ended is started again and does not count.
        if request.node is None and event.failure in (ForkFailure.TIMEOUT, ForkFailure.STILLBORN):
            self._strike(request.key, now_s)
        return actions

    def _count_stillborn(self, node: Node, now_s: float) -> list[Action]:
        """A tail node goes when it happens again, and what it added is doubted; a base has the strikes of its tree."""
        node.stillborn += 1
        if node.is_base or node.stillborn < self.limits.stillborn_max or node.state is not NodeState.SERVING:
            return []
        self.trees[node.key].refuse(node.added, Verdict.HANG, now_s)
        actions: list[Action] = [ev.Kill(node.id, KillWhy.STILLBORN)]
        self._bury(node)
        return actions

    def _strike(self, key: TreeKey, now_s: float) -> None:
        tree = self.trees.get(key)
        if tree is not None:
            tree.strikes += 1
            if tree.strikes >= self.limits.strikes_max:
                tree.strikes, tree.off_until_s = 0, now_s + self.limits.off_s

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _bury(self, node: Node) -> None:
        """Its process is gone; it stays while others descend from it. A base is started again."""
        node.state = NodeState.STARTING if node.is_base else NodeState.DEAD
        node.pss_bytes = 0
        self._clear_tombstones()

    def _clear_tombstones(self) -> None:
        while True:
            parents = {node.parent for node in self.nodes.values()}
            alone = [node.id for node in self.nodes.values() if node.state is NodeState.DEAD and node.id not in parents]
            if not alone:
                return
            for node_id in alone:
                del self.nodes[node_id]

    def _node_died(self, event: ev.NodeDied, now_s: float) -> list[Action]:
        node = self.nodes.get(event.node)
        if node is not None and node.state is NodeState.SERVING:
            self._bury(node)
        return []

    def _poisoned(self, event: ev.Poisoned, now_s: float) -> list[Action]:
        node = self.nodes.get(event.node)
        if node is None:
            return []
        tree = self.trees[node.key]
        below = descendants(self.nodes, node.id)
        # Its last import is the one that its parent's workers did without.
        tree.refuse(() if node.is_base else node.added, Verdict.CUDA, now_s)
        self._count_poisoning(tree, now_s)
        actions = self._kill(below if node.is_base else [node, *below], KillWhy.POISONED)
        if node.is_base and node.state is NodeState.SERVING:
            actions.append(ev.Kill(node.id, KillWhy.POISONED))
            self._bury(node)
        return actions

    def _count_poisoning(self, tree: Tree, now_s: float) -> None:
        if now_s - tree.poisoned_s >= self.limits.poison_memory_s:
            tree.poisonings = 0
        tree.poisonings, tree.poisoned_s = tree.poisonings + 1, now_s
        over = tree.poisonings - self.limits.strikes_max
        if over >= 0:
            tree.off_until_s = now_s + self.limits.off_s * 2 ** min(over, OFF_DOUBLINGS_MAX)

    def _sampled(self, event: ev.Sampled, now_s: float) -> list[Action]:
        for node_id, pss_bytes in event.pss_bytes.items():
            if node_id in self.nodes and self.nodes[node_id].lives:
                self.nodes[node_id].pss_bytes = pss_bytes
        over = self.builds.bytes_in_use() - self.limits.pss_bytes_max
        victims: list[Node] = []
        # As far as it can be done: what is in use now goes with a later sample.
        left = dict(self.nodes)
        while over > 0 and (one := to_evict(left, 0, 1, self.builds.kept())):
            victims += one
            over -= max(one[0].pss_bytes, one[0].private_bytes, 1)
            del left[one[0].id]
        return self._kill(victims, KillWhy.EVICTED)

    # -- builds --------------------------------------------------------------------------------------------------------

    def _imported(self, event: ev.Imported, now_s: float) -> list[Action]:
        self.times.seen(dict(islice(event.seconds.items(), IMPORTS_MAX)))
        return []

    def _doubted(self, event: ev.Doubted, now_s: float) -> list[Action]:
        if event.key in self.trees:
            self.trees[event.key].refuse([event.name], Verdict.HANG, now_s)
        return []

    def _probed(self, event: ev.Probed, now_s: float) -> list[Action]:
        node = self.nodes.get(event.node)
        if node is None or node.state is not NodeState.PLANNED:
            return []
        tree = self.trees[node.key]
        victims, build = self.builds.probed(tree, self.nodes[tree.base], node, event.result, now_s)
        actions = [*self._kill(victims, KillWhy.EVICTED), *build]
        self._clear_tombstones()  # its parent may have been one
        return actions

    def _built(self, event: ev.Built, now_s: float) -> list[Action]:
        node = self.nodes.get(event.node)
        if node is None:
            # It was given up meanwhile.
            return [ev.Kill(event.node, KillWhy.CLOSED)]
        self.times.measured(event.seconds)
        self.builds.built(self.trees[node.key], node, event.modules, event.private_bytes, now_s)
        return []

    def _build_failed(self, event: ev.BuildFailed, now_s: float) -> list[Action]:
        node = self.nodes.get(event.node)
        if node is not None:
            self.builds.failed(self.trees[node.key], node, event.verdict, event.culprit, now_s)
            self._clear_tombstones()
        return []
