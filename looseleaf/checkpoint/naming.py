"""Gives every unit of a capture its id: heads in the order of the walk, shared blocks, bundles, atoms by variable."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from looseleaf.checkpoint.bundles import Bundle, choose_members, known_places, parse_name, persistent_name
from looseleaf.checkpoint.drafts import Draft
from looseleaf.checkpoint.labels import Labels
from looseleaf.checkpoint.manifest import Manifest
from looseleaf.checkpoint.memory import Block, MemoryMap
from looseleaf.checkpoint.pickler import PickleScope
from looseleaf.checkpoint.stub import Stub, is_stub, unit_id_of
from looseleaf.checkpoint.walk import Graph
from looseleaf.ids import UnitId

_Roots = Sequence[tuple[str, Any]]
# Once there is a bundle, this many new shared objects join it together.
_JOIN_MIN: Final = 64


@dataclass
class Named:
    """`drafts`: units, not pickled yet. `roots`: variable -> unit. `inline`: shared small blocks with their units."""

    drafts: dict[UnitId, Draft] = field(default_factory=dict)
    roots: dict[str, UnitId] = field(default_factory=dict)
    inline: list[tuple[UnitId, Block]] = field(default_factory=list)


class Namer:
    """One naming. `cuts`: ids of objects that must head units of their own."""

    def __init__(self, graph: Graph, memory: MemoryMap, labels: Labels, scope: PickleScope, cuts: set[int]) -> None:
        self._graph = graph
        self._memory = memory
        self._labels = labels
        self._scope = scope
        self._ids = scope.persistent_ids
        self._cuts = cuts
        self._places = known_places(labels.bundles())
        self._members: dict[UnitId, list[Any]] = {}
        # Heads that nothing holds, by address, and those of them that are still where they were saved.
        self._lost = {address: unit_id for unit_id, address in labels.lost.items()}
        self._found_again: dict[int, UnitId] = {}
        self.named = Named()

    def run(self, roots: _Roots, atoms: set[str], held: list[tuple[UnitId, Any]], base: Manifest) -> Named:
        """Names the units of `roots`, of which `atoms` are stored by variable, and of `held` (unit id, object)."""
        for unit_id, value in held:
            if isinstance(value, Bundle):
                self._members[unit_id] = list(value.members)
            else:
                self._name(unit_id, value)
        for name, value in roots:
            lost = self._lost.get(id(value))
            if lost is not None and base.roots.get(name) == lost:
                self._found_again[id(value)] = lost
        self._name_nodes({id(value) for _, value in roots}, base)
        self._name_blocks()
        self._name_bundles()
        for name, value in roots:
            named = None if name in atoms else self._ids[id(value)]
            # Members of bundles are stored by variable too: as a unit that does nothing but name them.
            self.named.roots[name] = UnitId(named) if isinstance(named, int) else self._name_atom(name, value)
        return self.named

    def _name(self, unit_id: UnitId, value: Any) -> None:
        self._ids[id(value)] = unit_id
        self.named.drafts[unit_id] = Draft(unit_id, value)

    def _name_atom(self, name: str, value: Any) -> UnitId:
        unit_id = self._labels.atoms.get(name) or UnitId(self._labels.new_id())
        self._labels.atoms[name] = unit_id
        self.named.drafts[unit_id] = Draft(unit_id, value)
        return unit_id

    def _name_nodes(self, root_ids: set[int], base: Manifest) -> None:
        graph = self._graph
        fresh: list[int] = []
        for stub in graph.stubs:
            self._name_stub(stub, base)
        for node in graph.heads():
            value = graph.object(node)
            if is_stub(value) or id(value) in self._ids:
                continue
            if id(value) in self._places and id(value) not in self._cuts:
                self._join(*self._places[id(value)], value)
            elif (
                self._labels.unit_id_of(value) is not None or id(value) in root_ids or id(value) in self._cuts
                or self._is_found_again(node, base)
            ):  # fmt: skip
                self._name_head(value)
            else:
                fresh.append(node)
        self._name_fresh(fresh)

    def _is_found_again(self, node: int, base: Manifest) -> bool:
        """Whether this is a head that nothing holds, at its old address below an old user: one alone may lie."""
        value = self._graph.object(node)
        unit_id = self._lost.get(id(value))
        if unit_id is None or not any(unit_id in refs for refs in self._refs_of_users(node, base)):
            return False
        self._found_again[id(value)] = unit_id
        return True

    def _refs_of_users(self, node: int, base: Manifest) -> Iterator[Collection[UnitId]]:
        """What each unit that refers to `node` referred to when it was saved."""
        graph = self._graph
        for user in filter(None, map(graph.head, graph.predecessors(node))):
            named = self._ids.get(id(graph.object(user)), 0)
            place = parse_name(named) if isinstance(named, str) else (named, 0)
            if place is not None and (entry := base.units.get(UnitId(place[0]))) is not None:
                yield entry.header.refs

    def _name_fresh(self, fresh: list[int]) -> None:
        users = [user for block in self._memory.blocks for user in block.users]
        least = _JOIN_MIN if self._members else None
        chosen = choose_members(self._graph, fresh, users, least)
        if chosen:
            unit_id = next(iter(self._members)) if self._members else UnitId(self._labels.new_id())
            for node in chosen:
                self._join(unit_id, len(self._members.get(unit_id, ())), self._graph.object(node))
        members = set(chosen)
        for node in fresh:
            if node not in members:
                self._name_head(self._graph.object(node))

    def _join(self, unit_id: UnitId, index: int, value: Any) -> None:
        members = self._members.setdefault(unit_id, [])
        members.extend([None] * (index + 1 - len(members)))
        members[index] = value
        self._ids[id(value)] = persistent_name(unit_id, index)

    def _name_bundles(self) -> None:
        for unit_id, members in self._members.items():
            self.named.drafts[unit_id] = Draft(unit_id, Bundle(members))

    def _name_head(self, value: Any) -> None:
        unit_id = self._labels.unit_id_of(value) or self._found_again.get(id(value)) or UnitId(self._labels.new_id())
        if unit_id in self.named.drafts:
            unit_id = UnitId(self._labels.new_id())
        self._name(unit_id, value)

    def _name_stub(self, stub: Stub, base: Manifest) -> None:
        unit_id = unit_id_of(stub)
        if unit_id is not None and unit_id in base.units:
            self._ids[id(stub)] = unit_id

    def _name_blocks(self) -> None:
        graph = self._graph
        for block in self._memory.blocks:
            if block.is_payload:
                self._name_payload(block)
            elif block.kind == "memory":
                known = self._labels.unit_id_of(block)
                owners = {graph.head(graph.node_of(user)) for user in block.users}
                if known is not None or len(owners) > 1:
                    unit_id = known or UnitId(self._labels.new_id())
                    self._name(unit_id, block)
                    self.named.inline.append((unit_id, block))

    def _name_payload(self, block: Block) -> None:
        payload_id = int(block.payload_id or 0)
        named = block if block.owner is None else block.owner
        if id(named) in self._ids:
            # A byte string that heads a unit: others name the unit, the unit's pickle names the payload.
            self._scope.payload_of_head[id(named)] = payload_id
        else:
            self._ids[id(named)] = payload_id
