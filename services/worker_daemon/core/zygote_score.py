"""Which zygote serves a request best (import-cache study §4.2: score)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from looseleaf.services.worker_daemon.core.zygote_nodes import Node

# Imports whose time is remembered; the least recently used are forgotten.
IMPORT_TIMES_MAX: Final = 1024
# What an import is taken to cost until it was measured.
UNMEASURED_S: Final = 0.1
# Weight of the newest time that a worker measured.
_NEWEST_SEEN: Final = 0.25
# A fork copies the page table: measured 0.03-0.08 ms for each MiB of anonymous memory (study §2.2).
FORK_S_PER_MIB: Final = 0.00006


class ImportTimes:
    """Measured seconds and implied imports of each import name, for all environments of a host."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[str, float] = OrderedDict()
        self._implied: dict[str, frozenset[str]] = {}

    def measured(self, seconds: Mapping[str, float]) -> None:
        """Imports took so long: the newest measurement counts."""
        for name, taken_s in seconds.items():
            self._seconds[name] = taken_s
            self._seconds.move_to_end(name)
            if len(self._seconds) > IMPORT_TIMES_MAX:
                self._implied.pop(self._seconds.popitem(last=False)[0], None)

    def seen(self, seconds: Mapping[str, float]) -> None:
        """Workers measured them, each beside other imports: a known time moves by a part of the difference."""
        for name, taken_s in seconds.items():
            known_s = self._seconds.get(name, taken_s)
            if 0 <= taken_s < math.inf:
                self.measured({name: known_s + _NEWEST_SEEN * (taken_s - known_s)})

    def implies(self, name: str, modules: frozenset[str]) -> None:
        """The import brings these modules along."""
        others = modules - {name}
        if name in self._seconds and others:
            self._implied[name] = others

    def of(self, name: str) -> float:
        """Seconds of one import."""
        return self._seconds.get(name, UNMEASURED_S)

    def sum(self, names: Iterable[str]) -> float:
        """Seconds of these imports; the same for the same names, in whatever order they come."""
        return sum(self.of(name) for name in sorted(names))

    def closure(self, imports: Iterable[str]) -> frozenset[str]:
        """The imports and what is known to come with them."""
        names = frozenset(imports)
        return names.union(*(self._implied[name] for name in names & self._implied.keys()))


def eligible(node: Node, base: Node, closure: frozenset[str]) -> bool:
    """A request may find more of the base than it wants, but nothing else that it did not ask for."""
    return node.imports - base.imports <= closure


def saved_s(node: Node, imports: frozenset[str], times: ImportTimes) -> float:
    """Import seconds that a worker of this node is spared, less the fork."""
    return times.sum(imports & node.modules) - node.fork_s


def best_node(
    nodes: Iterable[Node], base: Node, imports: frozenset[str], closure: frozenset[str], times: ImportTimes
) -> Node | None:
    """The eligible node that saves most; of equals the one with less memory, then the one used last."""
    found = [node for node in nodes if eligible(node, base, closure)]

    def rank(node: Node) -> tuple[float, float, float, int]:
        return saved_s(node, imports, times), -node.fork_s, node.used_s, -node.id

    return max(found, key=rank, default=None)
