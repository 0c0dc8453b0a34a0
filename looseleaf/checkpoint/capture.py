"""All live state of a session as units and blocks: walk, heads, labels, pickles (design §3).

Nothing is read from or written to the store here. What cannot be saved becomes a failure of its unit, and of the units
that need it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from looseleaf.checkpoint.bundles import Bundle, known_places
from looseleaf.checkpoint.components import closed_under, components
from looseleaf.checkpoint.drafts import Draft, Failure, draft_unit
from looseleaf.checkpoint.edges import Edges
from looseleaf.checkpoint.labels import Labels
from looseleaf.checkpoint.loaded_memory import LoadedMemory
from looseleaf.checkpoint.manifest import Manifest
from looseleaf.checkpoint.memory import Block, MemoryMap
from looseleaf.checkpoint.naming import Namer
from looseleaf.checkpoint.paths import attributes_of, path_to
from looseleaf.checkpoint.pickler import PickleScope
from looseleaf.checkpoint.walk import SCALARS, Graph
from looseleaf.ids import UnitId

# A chain of objects is cut into units of about this many steps when one pickle cannot hold it.
CHAIN_STEPS_MAX: Final = 60
# How often the heads are chosen again because a unit was still too deep or could not be made.
ROUNDS_MAX: Final = 3
# How often a unit is pickled again because another thread changed a container meanwhile.
_TRIES_MAX: Final = 3
# Objects of stuck units that become heads.
_PARTS_MAX: Final = 10_000
# Nested calls while objects are pickled; deeper ones are cut into units.
RECURSION_MAX: Final = 3000
PROCESS_STATE: Final = "\0process"


@dataclass
class Captured:
    """`roots`: live variable -> unit. `drafts`: every live unit. `failures`: variable -> (why not, path).

    `graph`: the walk. `payloads`, `inline`: blocks stored as regions, and small shared ones with their units.
    """

    graph: Graph
    roots: dict[str, UnitId] = field(default_factory=dict)
    drafts: dict[UnitId, Draft] = field(default_factory=dict)
    failed_units: dict[UnitId, Failure] = field(default_factory=dict)
    failures: dict[str, tuple[Failure, str]] = field(default_factory=dict)
    payloads: list[Block] = field(default_factory=list)
    inline: list[tuple[UnitId, Block]] = field(default_factory=list)


def capture(
    namespace: dict[str, Any],
    roots: Sequence[tuple[str, Any]],
    labels: Labels,
    base: Manifest,
    held: Iterable[tuple[UnitId, Any]],
    held_memory: Iterable[LoadedMemory | bytes | bytearray],
) -> Captured:
    """Takes down `roots` (name, live value) and `held` (live heads that units which are not loaded refer to).

    `base`: the version whose stored units stay as they are. Must run inside `memory.raw_access()`.
    """
    round_ = _Round(namespace, labels, base)
    cuts: set[int] = set()
    for _ in range(ROUNDS_MAX):
        found = round_.run(roots, list(held), list(held_memory), cuts)
        failed = [draft for draft in found.drafts.values() if draft.failure is not None]
        more = _cuts_within(found.graph, [draft for draft in failed if draft.failure and draft.failure.too_deep])
        more |= _parts_of(found.graph, [draft for draft in failed if draft.failure and draft.failure.cyclic])
        more |= _culprits_in_bundles(found.graph, failed)
        more -= cuts
        if not more:
            break
        cuts |= more
        # The walk is repeated; until then its objects keep their ids.
        round_.keep.append(found.graph)
    round_.spread_failures(found)
    round_.end()
    return found


def _cuts_within(graph: Graph, deep: list[Draft]) -> set[int]:
    """ids of objects every CHAIN_STEPS_MAX steps down in units that were too deep for one pickle."""
    unit_of = {graph.node_of(head): draft.unit_id for draft in deep for head in _heads_of(draft)}
    if not unit_of:
        return set()
    depths = [0] * len(graph)
    cuts = set()
    for node in range(1, len(graph)):
        unit_id, above = unit_of.get(graph.head(node)), graph.parent(node)
        if unit_id is not None and above and unit_of.get(graph.head(above)) == unit_id:
            depths[node] = depths[above] + 1
            if depths[node] % CHAIN_STEPS_MAX == 0:
                cuts.add(id(graph.object(node)))
    return cuts


def _heads_of(draft: Draft) -> list[Any]:
    value = draft.value
    return [member for member in value.members if member is not None] if isinstance(value, Bundle) else [value]


def _culprits_in_bundles(graph: Graph, failed: list[Draft]) -> set[int]:
    """ids of members that spoil their bundle: alone, they fail alone."""
    found = set()
    for draft in failed:
        node = graph.node_of(draft.failure.culprit) if draft.failure and type(draft.value) is Bundle else 0
        if node:
            found.add(id(graph.object(graph.head(node))))
    return found


def _parts_of(graph: Graph, stuck: list[Draft]) -> set[int]:
    """ids of the objects, in units that could not be made in any order, that can be made first and filled later."""
    heads = {graph.node_of(head) for draft in stuck for head in _heads_of(draft)}
    if not heads:
        return set()
    nodes = [node for node in range(1, len(graph)) if graph.head(node) in heads][:_PARTS_MAX]
    return {id(graph.object(node)) for node in nodes if _can_be_filled(graph, node)}


def _can_be_filled(graph: Graph, node: int) -> bool:
    """False for immutable containers, and for attribute dicts: those are made with their objects."""
    value, above = graph.object(node), graph.parent(node)
    return type(value) not in (tuple, frozenset) and (not above or attributes_of(graph.object(above)) is not value)


class _Round:
    """One choice of heads and the pickles that follow from it."""

    def __init__(self, namespace: dict[str, Any], labels: Labels, base: Manifest) -> None:
        self._namespace = namespace
        self._labels = labels
        self._base = base
        self._places = known_places(labels.bundles())
        self._unit_in_work: tuple[UnitId, int] = (UnitId(0), 0)
        self._walks: list[Edges] = []
        self.keep: list[Any] = []

    def run(
        self, roots: Sequence[tuple[str, Any]], held: list[tuple[UnitId, Any]],
        held_memory: list[LoadedMemory | bytes | bytearray], cuts: set[int],
    ) -> Captured:  # fmt: skip
        memory = MemoryMap(self._label_late)
        edges = _edges(self._namespace, memory)
        self._walks.append(edges)
        graph = Graph(edges, {*cuts, *self._places, *self._labels.live_addresses()})
        found = Captured(graph)
        atoms = {name for name, value in roots if graph.add_root(name, value) == 0}
        for unit_id, value in held:
            for member in value.members if isinstance(value, Bundle) else [value]:
                graph.add_root(f"(unit {unit_id})", member)
        for loaded in held_memory:
            memory.note_held(loaded)
        graph.find_heads()
        memory.merge(self._labels.mapped())
        self._labels.label_blocks(memory.blocks)
        scope = PickleScope(self._namespace, memory, lambda value: _path_or_name(graph, value))
        self._scope = scope
        named = Namer(graph, memory, self._labels, scope, cuts).run(roots, atoms, held, self._base)
        found.roots, found.drafts, found.inline = named.roots, named.drafts, named.inline
        with _bounded_recursion():
            self._pickle_all(found)
        found.payloads = [block for block in memory.blocks if block.is_payload]
        return found

    def _pickle_all(self, found: Captured) -> None:
        graph = found.graph
        for unit_id, draft in found.drafts.items():
            node = graph.node_of(draft.value)
            # A unit by variable of a shared object does nothing but name it.
            is_own = self._scope.persistent_ids.get(id(draft.value)) == unit_id
            is_plain = graph.is_plain(node) and is_own if node else type(draft.value) in SCALARS
            found.drafts[unit_id] = self._draft(unit_id, draft.value, plain=is_plain)
        for cycle in self._cycles(found.drafts):
            for unit_id in cycle:
                one = found.drafts.get(unit_id)
                if one is not None and one.failure is None:
                    found.drafts[unit_id] = self._draft(unit_id, one.value, in_two_steps=True)
            _refuse_impossible(found.drafts, cycle)

    def _draft(self, unit_id: UnitId, value: Any, *, plain: bool = False, in_two_steps: bool = False) -> Draft:
        for _ in range(_TRIES_MAX):
            self._unit_in_work = (unit_id, 0)
            draft = draft_unit(self._scope, unit_id, value, plain=plain, in_two_steps=in_two_steps)
            if draft.failure is None or not draft.failure.passing:
                break
        return draft

    def _label_late(self, block: Block) -> None:
        if block.is_payload:
            unit_id, ordinal = self._unit_in_work
            self._unit_in_work = (unit_id, ordinal + 1)
            self._labels.label_late_block(block, unit_id, ordinal)
            self._scope.persistent_ids[id(block)] = int(block.payload_id or 0)

    def _cycles(self, drafts: Mapping[UnitId, Draft]) -> list[list[UnitId]]:
        return [c for c in components(drafts, lambda unit_id: self._refs_of(drafts, unit_id)) if len(c) > 1]

    def _refs_of(self, drafts: Mapping[UnitId, Draft], unit_id: UnitId) -> Iterable[UnitId]:
        draft = drafts.get(unit_id)
        if draft is not None:
            return [UnitId(ref) for ref in sorted(draft.refs)]
        stored = self._base.units.get(unit_id)
        return stored.header.refs if stored is not None else ()

    def end(self) -> None:
        """Lets go of what refers back to it: memory that a person deletes must not wait for the cyclic collector."""
        for edges in self._walks:
            edges.end()
        self._walks.clear()
        self.keep.clear()
        del self._scope

    def spread_failures(self, found: Captured) -> None:
        """A unit that reaches one without bytes cannot be saved either; names the variables that are lost by it."""
        failed = {unit_id: d.failure for unit_id, d in found.drafts.items() if d.failure is not None}
        reached = closed_under(
            failed, [*found.drafts, *self._base.units], lambda unit_id: self._refs_of(found.drafts, unit_id)
        )
        found.failed_units = {unit_id: failed[source] for unit_id, source in reached.items()}
        for name, unit_id in found.roots.items():
            if unit_id in found.failed_units:
                failure = found.failed_units[unit_id]
                found.failures[name] = (failure, self._path_of_failure(found, name, unit_id, failure))

    def _path_of_failure(self, found: Captured, name: str, unit_id: UnitId, failure: Failure) -> str:
        graph = found.graph
        root = graph.node_of(found.drafts[unit_id].value)
        node = graph.node_of(failure.culprit)
        if not root or not node:
            return name
        path = path_to(graph, node, root)
        first = graph.root_names.get(root, "")
        return name + path[len(first) :] if path.startswith(first) else path


@contextmanager
def _bounded_recursion() -> Iterator[None]:
    """A session may allow itself more recursion than the process's stack has room for."""
    limit = sys.getrecursionlimit()
    if limit <= RECURSION_MAX:
        yield
        return
    sys.setrecursionlimit(RECURSION_MAX)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _edges(namespace: dict[str, Any], memory: MemoryMap) -> Edges:
    def on_array(value: Any) -> Sequence[Any]:
        from looseleaf.checkpoint.numpy_memory import note_array

        return note_array(value, memory)

    def on_tensor(value: Any) -> Sequence[Any]:
        from looseleaf.checkpoint.torch_memory import note_tensor

        return note_tensor(value, memory)

    def on_storage(value: Any) -> Sequence[Any]:
        from looseleaf.checkpoint.torch_memory import note_storage

        return note_storage(value, memory)

    def on_arrow(value: Any) -> Sequence[Any]:
        from looseleaf.checkpoint.arrow_memory import note_arrow

        return note_arrow(value, memory)

    return Edges(
        [id(namespace), id(sys.modules)],
        on_array=on_array, on_tensor=on_tensor, on_storage=on_storage, on_arrow=on_arrow, on_bytes=memory.note_bytes,
    )  # fmt: skip


def _path_or_name(graph: Graph, value: Any) -> str:
    node = graph.node_of(value)
    return path_to(graph, node) if node else type(value).__name__


def _refuse_impossible(drafts: Mapping[UnitId, Draft], cycle: list[UnitId]) -> None:
    """Units whose objects would each have to exist before the other."""
    within = {unit_id for unit_id in cycle if unit_id in drafts}

    def needs(unit_id: UnitId) -> list[UnitId]:
        return sorted(UnitId(ref) for ref in drafts[unit_id].construction if ref in within)

    for stuck in components(within, needs):
        if len(stuck) > 1:
            for unit_id in stuck:
                text = "objects that are each an argument of the other's construction cannot be made again"
                drafts[unit_id].failure = Failure("CYCLIC_CONSTRUCTION", text, drafts[unit_id].value, cyclic=True)
