"""A host that carries out what the import cache's rules say, in random order and with random luck; checks each step."""

from __future__ import annotations

import random
from collections.abc import Iterable

from looseleaf.services.worker_daemon.core import zygote_events as ev
from looseleaf.services.worker_daemon.core.zygote_events import Action, Event, ForkFailure, KillWhy
from looseleaf.services.worker_daemon.core.zygote_facts import ProbeKey, ProbeResult, Verdict
from looseleaf.services.worker_daemon.core.zygote_nodes import Node, NodeId, NodeState, TreeKey, TreeLimits
from looseleaf.services.worker_daemon.core.zygote_score import eligible, saved_s
from looseleaf.services.worker_daemon.core.zygote_tree import ImportCacheRules
from looseleaf.units import MIB

BASE = {"numpy": 0.3, "torch": 1.5}
TAIL = [f"p{number:02}" for number in range(24)]
# Imports that are never clean, and how.
BAD = {"p03": Verdict.CUDA, "p07": Verdict.HANG, "p11": Verdict.ERROR}
# What an import brings along.
BRINGS = {"p01": {"p05", "p09"}, "p02": {"p00"}, "p04": {"p08"}}


def seconds_of(name: str) -> float:
    return 0.05 + int(name[1:]) / 20


def probed(key: ProbeKey) -> ProbeResult:
    """What a probe finds in this world."""
    culprit = next((name for name in key.imports if name in BAD), "")
    if culprit:
        return ProbeResult(key, BAD[culprit], culprit=culprit)
    seconds = {name: seconds_of(name) for name in key.imports}
    there, brought = true_closure(key.base), {}
    for name in key.imports:
        brought[name] = true_closure({name}) - there
        there |= brought[name]
    modules = true_closure(key.imports) - true_closure(key.base)
    return ProbeResult(key, Verdict.CLEAN, seconds, 20 * MIB * len(key.imports), modules, brought)


def true_closure(imports: Iterable[str]) -> frozenset[str]:
    """The imports with all that they bring along."""
    names = frozenset(imports)
    return names.union(*(BRINGS.get(name, ()) for name in names))


class World:
    """`live`: zygotes that have a process. `step` does one random thing."""

    def __init__(self, seed: int, limits: TreeLimits) -> None:
        self.rng = random.Random(seed)
        self.rules = ImportCacheRules(limits)
        self.now_s = 0.0
        self.live: set[NodeId] = set()
        self.todo: list[Action] = []
        self.wanted: dict[int, frozenset[str]] = {}
        self.served = 0
        self.fresh = 0
        self.evicted = 0
        self.keys: list[TreeKey] = []
        self._requests = 0
        self.open_key()

    def open_key(self) -> None:
        for key in self.keys[-1:]:
            self.tell(ev.KeyClosed(key))
        key = TreeKey(len(self.keys) + 1)
        self.keys.append(key)
        self.tell(ev.KeyOpened(key))
        self.base_ready()

    def base_ready(self) -> None:
        key = self.keys[-1]
        self.live.add(self.base.id)
        self.tell(ev.BaseReady(key, f"e{key.generation}", BASE, frozenset({"numpy.random"}), 160 * MIB))

    @property
    def base(self) -> Node:
        base = self.rules.base(self.keys[-1])
        assert base is not None
        return base

    def tell(self, event: Event) -> None:
        """One event, its checks, and its actions to be done later (kills at once)."""
        nodes = self.rules.nodes.values()
        before = {node.id: (node.used_s, node.state, node.parent, node.is_base) for node in nodes}
        busy = {node.id for node in nodes if node.forks_under_way}
        self.now_s += 0.01
        actions = self.rules.handle(event, self.now_s)
        killed: list[NodeId] = []
        for action in actions:
            if isinstance(action, ev.Kill):
                if action.why is KillWhy.EVICTED:
                    self._check_eviction(action.node, before, busy, killed)
                    self.evicted += 1
                killed.append(action.node)
                self.live.discard(action.node)
            elif isinstance(action, ev.Fork):
                self._check_fork(action)
                self.todo.append(action)
            else:
                self.todo.append(action)
        self.check()

    def _check_eviction(
        self, node: NodeId, before: dict[NodeId, tuple[float, NodeState, NodeId | None, bool]], busy: set[NodeId],
        killed: list[NodeId],
    ) -> None:
        left = {known: told for known, told in before.items() if known not in killed}
        parents = {parent for _, _, parent, _ in left.values()}
        used_s, state, _, is_base = left[node]
        assert not is_base and state is NodeState.SERVING and node not in parents and node not in busy
        kept = set(self.rules.builds.kept())
        older = [
            other for other, (other_s, other_state, _, other_base) in left.items()
            if other_s < used_s and other_state is NodeState.SERVING and not other_base and other not in parents
            and other not in busy and other not in kept
        ]  # fmt: skip
        # Whom the failed fork itself is tried on is older at most; nobody else was passed over.
        assert not [other for other in older if other in self.live and other not in self._path()], (node, older)

    def _path(self) -> set[NodeId]:
        return {used for request in self.rules._requests.values() for used in request.path}

    def _check_fork(self, action: ev.Fork) -> None:
        rules, node = self.rules, self.rules.nodes[action.node]
        imports = self.wanted[action.request]
        assert node.state in (NodeState.SERVING, NodeState.STARTING) and (node.is_base or node.id in self.live)
        closure = rules.times.closure(imports)
        assert eligible(node, self.base, closure)
        # What the rules take for its closure is no more than the truth.
        assert node.imports - self.base.imports <= closure <= true_closure(imports)
        if rules._requests[action.request].attempts == 1 and node.state is NodeState.SERVING:
            others = [one for one in rules.nodes.values() if one.key == node.key and one.state is NodeState.SERVING]
            best = max(saved_s(one, imports, rules.times) for one in others if eligible(one, self.base, closure))
            assert saved_s(node, imports, rules.times) == best

    def check(self) -> None:
        """What must hold after every event."""
        rules, nodes = self.rules, self.rules.nodes
        serving, processes, making = set(), 0, []
        parents = {node.parent for node in nodes.values()}
        for node in nodes.values():
            state = node.state
            assert node.forks_under_way >= 0
            assert state is not NodeState.DEAD or node.id in parents
            if state is NodeState.SERVING:
                assert node.id in self.live
                assert (node.key, node.imports) not in serving
                serving.add((node.key, node.imports))
            if node.parent is None:
                continue
            parent = nodes[node.parent]
            assert node.depth == parent.depth + 1
            assert node.imports == parent.imports.union(node.added)
            processes += state is NodeState.SERVING or state is NodeState.BUILDING
            if state is NodeState.PLANNED or state is NodeState.BUILDING:
                making.append(node.id)
            assert state is NodeState.PLANNED or BAD.keys().isdisjoint(node.added)
        assert processes <= rules.limits.nodes_max
        assert making == ([] if rules.builds.making is None else [rules.builds.making])
        for tree in rules.trees.values():
            assert nodes[tree.base].is_base and nodes[tree.base].state is not NodeState.DEAD

    # -- random steps --------------------------------------------------------------------------------------------------

    def request(self, imports: frozenset[str]) -> int:
        self._requests += 1
        self.wanted[self._requests] = imports
        self.tell(ev.Requested(self._requests, self.keys[-1], imports))
        return self._requests

    def random_imports(self) -> frozenset[str]:
        """Some of the base and a few of the tail, popular ones more often."""
        tail = {TAIL[min(int(self.rng.expovariate(0.25)), len(TAIL) - 1)] for _ in range(self.rng.randrange(4))}
        return frozenset(tail | {name for name in BASE if self.rng.random() < 0.6})

    def carry_out(self, action: Action, luck: float) -> None:
        """Ends one thing that was begun, with luck in [0, 1): low luck works."""
        if isinstance(action, ev.Fork):
            works = action.node in self.live and luck < 0.98
            if works:
                self._serve(action.request)
            else:
                failure = self.rng.choice(list(ForkFailure)) if action.node in self.live else ForkFailure.GONE
                if failure not in (ForkFailure.REFUSED, ForkFailure.STILLBORN):
                    self.live.discard(action.node)
                self.tell(ev.ForkFailed(action.request, failure))
        elif isinstance(action, ev.ForkFresh):
            self.fresh += 1
            self._serve(action.request)
        elif isinstance(action, ev.Probe):
            alive = action.parent in self.live and luck < 0.95
            self.tell(ev.Probed(action.node, probed(action.key) if alive else None))
        elif isinstance(action, ev.Build):
            if action.parent in self.live and luck < 0.9:
                self.live.add(action.node)
                self.tell(ev.Built(action.node, {name: seconds_of(name) for name in action.imports}))
            else:
                self.tell(ev.BuildFailed(action.node))

    def _serve(self, request: int) -> None:
        self.served += 1
        self.tell(ev.Forked(request, 0.01))
        del self.wanted[request]

    def step(self) -> None:
        """A request, an end of something begun, or an accident."""
        kind = self.rng.random()
        if kind < 0.96:
            if len(self.todo) < self.rng.randrange(1, 8):
                self.request(self.random_imports())
            else:
                self.carry_out(self.todo.pop(self.rng.randrange(len(self.todo))), self.rng.random())
        elif kind < 0.964:
            self._accident()
        elif kind < 0.98:
            self.tell(ev.Sampled({node: self.rng.randrange(10, 60) * MIB for node in self.live}))
        elif kind < 0.9805 and self.rules.nodes:
            self.tell(ev.Poisoned(self.rng.choice(list(self.rules.nodes))))
        elif kind < 0.981:
            self.open_key()
        elif self.base.id not in self.live:
            self.base_ready()

    def _accident(self) -> None:
        if not self.live:
            return
        node = self.rng.choice(sorted(self.live))
        self.live.discard(node)
        if node == self.base.id:
            self.tell(ev.BaseDown(self.keys[-1], hopeless=self.rng.random() < 0.3))
        else:
            self.tell(ev.NodeDied(node))

    def settle(self) -> None:
        """Everything begun ends well; nobody may be left without a worker."""
        if self.base.id not in self.live:
            self.base_ready()
        while self.todo:
            self.carry_out(self.todo.pop(0), 0.0)
        assert not self.wanted and not self.rules._requests and self.rules.builds.making is None
