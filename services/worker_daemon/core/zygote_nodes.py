"""Nodes and trees of the import cache as plain data (import-cache study §4.2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NewType

from looseleaf.services.worker_daemon.core.zygote_facts import DOUBTFUL, DOUBTFUL_S, Verdict
from looseleaf.units import MIB

NodeId = NewType("NodeId", int)

# Imports of one recipe that are looked at; what is beyond is imported by the worker.
IMPORTS_MAX: Final = 256
# Imports of one environment that no node may hold; the oldest are forgotten, and probed again if need be.
REFUSED_MAX: Final = 512


@dataclass(frozen=True)
class TreeLimits:
    """Limits of a host's import cache. Times in seconds.

    `nodes_max`: tail nodes of all trees, one that is being built included. `pss_bytes_max`: sum of all zygotes' PSS.
    `window`: requests that count for what is shared; `shared_uses`: of these must want an import before a node gets it.
    `saves_s_min`: a node must spare a worker so much. `attempts_max`: forks that are tried for one request before a
    fresh process is. `strikes_max`: requests in a row that no zygote could serve, after which all get fresh processes
    for `off_s`; as many poisonings do the same, unless `poison_memory_s` lie between two, and each that follows for
    twice as long. `retry_s`: until the next build after one that failed for no known reason, doubled each time.
    `busy_forks`: so many forks under way may be disturbed by a build. `stillborn_max`: so many workers that ended or
    hung before a word give their request a fresh process, and end their node if they are its last ones.
    """

    nodes_max: int = 16
    pss_bytes_max: int = 2048 * MIB
    window: int = 60
    shared_uses: int = 2
    group_max: int = 16
    saves_s_min: float = 0.03
    attempts_max: int = 3
    strikes_max: int = 3
    off_s: float = 300.0
    poison_memory_s: float = 7200.0
    retry_s: float = 10.0
    busy_forks: int = 2
    stillborn_max: int = 2


@dataclass(frozen=True)
class TreeKey:
    """Whose processes may share pages; no tree serves two keys.

    `generation`: one environment with its fingerprint; a base tells both when it is ready (`Tree.environment_id`).
    `python`: the interpreter. `tenant`: whose sessions; empty: shared by all.
    """

    generation: int
    python: str = ""
    tenant: str = ""


class NodeState(StrEnum):
    """`STARTING`: a base that is not ready. `PLANNED`: its imports are being probed. `BUILDING`: forked, importing.

    `SERVING`: forks. `DEAD`: a base that is gone, or a tail node whose process is gone while others descend from it.
    """

    STARTING = "starting"
    PLANNED = "planned"
    BUILDING = "building"
    SERVING = "serving"
    DEAD = "dead"


@dataclass
class Node:
    """One zygote. `imports`: all that it was told to import, its ancestors' included; `added`: its own, in order.

    `modules`: names that a request finds here. `private_bytes`: what its own imports cost, right after them.
    """

    id: NodeId
    key: TreeKey
    parent: NodeId | None
    imports: frozenset[str] = frozenset()
    added: tuple[str, ...] = ()
    modules: frozenset[str] = frozenset()
    state: NodeState = NodeState.STARTING
    depth: int = 0
    private_bytes: int = 0
    pss_bytes: int = 0
    fork_s: float = 0.005
    used_s: float = 0.0
    forks: int = 0
    forks_under_way: int = 0
    stillborn: int = 0

    @property
    def is_base(self) -> bool:
        """The exec'ed root with the head set."""
        return self.parent is None

    @property
    def lives(self) -> bool:
        """There is, or will at once be, a process of it."""
        return self.state is not NodeState.DEAD


@dataclass
class Tree:
    """One key's nodes and what its requests have taught; until it has enough of its own, those of the tree before.

    `learned`: what the base imports besides the configured set, with the memory that each costs.
    `refused`: imports that no node may hold; `doubted_until_s`: until when, where not for good. `hopeless`: the base's
    last start failed. `builds_failed`: in a row, for no known reason. `poisonings`: in a row, the last at `poisoned_s`;
    forks that work say nothing against them, for what is poisoned forks well.
    """

    key: TreeKey
    base: NodeId
    window: deque[frozenset[str]]
    environment_id: str = ""
    learned: dict[str, int] = field(default_factory=dict)
    refused: dict[str, Verdict] = field(default_factory=dict)
    doubted_until_s: dict[str, float] = field(default_factory=dict)
    hopeless: bool = False
    strikes: int = 0
    poisonings: int = 0
    poisoned_s: float = float("-inf")
    off_until_s: float = float("-inf")
    build_after_s: float = float("-inf")
    builds_failed: int = 0

    def refuse(self, names: Iterable[str], verdict: Verdict, now_s: float) -> None:
        """No node may hold these; for `DOUBTFUL_S` only, if what the verdict says may have been the host's fault."""
        for name in names:
            self.refused[name] = verdict
            self.doubted_until_s.pop(name, None)
            if verdict in DOUBTFUL:
                self.doubted_until_s[name] = now_s + DOUBTFUL_S
            if len(self.refused) > REFUSED_MAX:
                self._accept(next(iter(self.refused)))

    def refuses(self, name: str, now_s: float) -> bool:
        """Whether no node may hold it now."""
        if now_s >= self.doubted_until_s.get(name, float("inf")):
            self._accept(name)
        return name in self.refused

    def accept_all(self) -> None:
        """What was refused was so in another environment."""
        self.refused.clear()
        self.doubted_until_s.clear()

    def _accept(self, name: str) -> None:
        del self.refused[name]
        self.doubted_until_s.pop(name, None)
