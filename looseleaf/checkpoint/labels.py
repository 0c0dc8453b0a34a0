"""Which live object is which saved unit or payload, from one save or restore to the next (design §3).

A label only says under which id something is stored; its content is pickled or hashed at every save. It holds its
object weakly where Python allows it, and strongly if the object is small or if units that are not loaded refer to
it: that must not vanish, changed, before it was saved. An address alone never identifies anything: it may have been
freed and used again. A large object that can be held in neither way goes without a label, and is `lost` to sharing
until the next save, which finds it again only in the place where it was.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Final, cast

from looseleaf.checkpoint.bundles import Bundle
from looseleaf.checkpoint.loaded_memory import Home, LoadedMemory
from looseleaf.checkpoint.memory import Block, MappedRange
from looseleaf.ids import PayloadId, UnitId

# A list or dict that reaches at most this much memory is held until the next save, so that it keeps its id.
HELD_BYTES_MAX: Final = 16 << 20
_Key = tuple[str, int, int, str]


class _Ref:
    """A live head, held strongly or weakly."""

    __slots__ = ("_strong", "_weak", "address")

    def __init__(self, value: Any, weak: weakref.ref[Any] | None) -> None:
        self.address = id(value)
        self._weak = weak
        self._strong: Any = value if weak is None else None

    def get(self) -> Any:
        """The object, None if it is gone."""
        return self._strong if self._weak is None else self._weak()


class Labels:
    """The ids of live objects and memory. One thread at a time."""

    def __init__(self) -> None:
        self.next_id = 1
        # Heads that nothing here holds: unit -> address.
        self.lost: dict[UnitId, int] = {}
        self.atoms: dict[str, UnitId] = {}
        self._heads: dict[UnitId, _Ref] = {}
        self._bundles: dict[UnitId, Bundle] = {}
        self._by_address: dict[int, UnitId] = {}
        self._homes: dict[int, Home] = {}
        self._by_key: dict[_Key, int] = {}
        self._late: dict[tuple[UnitId, int], PayloadId] = {}

    def new_id(self) -> int:
        """An id that was never given out in this session."""
        self.next_id += 1
        return self.next_id - 1

    def unit_id_of(self, value: Any) -> UnitId | None:
        """The unit that the live object `value` heads, if it is a known one."""
        if type(value) is Block:
            known = self._known_id(value)
            return None if known is None else UnitId(known)
        unit_id = self._by_address.get(id(value))
        return unit_id if unit_id is not None and self._heads[unit_id].get() is value else None

    def live_addresses(self) -> set[int]:
        """id of every live object that heads a unit."""
        return {ref.address for ref in self._heads.values() if ref.get() is not None}

    def live(self, some_id: int) -> Any:
        """The live object or LoadedMemory behind a unit's or payload's id; None if there is none here."""
        unit_id = cast(UnitId, some_id)
        bundle = self._bundles.get(unit_id)
        if bundle is not None:
            return bundle
        ref = self._heads.get(unit_id)
        if ref is not None:
            return ref.get()
        home = self._homes.get(some_id)
        return None if home is None else home.loaded()

    def live_ids(self) -> set[int]:
        """Ids of all units and payloads that live here."""
        found: set[int] = {unit_id for unit_id, ref in self._heads.items() if ref.get() is not None}
        found.update(self._bundles)
        found.update(some_id for some_id, home in self._homes.items() if home.is_alive())
        return found

    def set_head(self, unit_id: UnitId, value: Any, *, hold: bool) -> None:
        """`value` heads `unit_id` from now on; `hold`: it may be held strongly if there is no other way."""
        self.forget(unit_id)
        weak = None
        try:
            weak = weakref.ref(value)
        except TypeError:
            if not hold:
                self.lost[unit_id] = id(value)
                return
        self.lost.pop(unit_id, None)
        self._heads[unit_id] = ref = _Ref(value, weak)
        self._by_address[ref.address] = unit_id

    def bundles(self) -> list[tuple[UnitId, Bundle]]:
        """Bundles that live here; their members are held until the next save."""
        return list(self._bundles.items())

    def set_bundle(self, unit_id: UnitId, members: list[Any]) -> None:
        """`members` are the bundle `unit_id`."""
        self._bundles[unit_id] = Bundle(members)

    def forget(self, some_id: int) -> None:
        """Nothing here is `some_id` any more."""
        self._bundles.pop(UnitId(some_id), None)
        ref = self._heads.pop(UnitId(some_id), None)
        if ref is not None and self._by_address.get(ref.address) == some_id:
            del self._by_address[ref.address]
        home = self._homes.pop(some_id, None)
        if home is not None and self._by_key.get(home.key) == some_id:
            del self._by_key[home.key]

    def forget_dropped(self, payload_ids: Iterable[int]) -> None:
        """What only dropped units referred to and nobody here holds may come to lie where something else does."""
        for payload_id in payload_ids:
            home = self._homes.get(payload_id)
            if home is not None and not home.is_alive():
                self.forget(payload_id)

    def hold_exactly(self, ids: set[int]) -> None:
        """Holds these strongly, and nothing else that can be held weakly: what units that are not loaded refer to."""
        for unit_id, ref in list(self._heads.items()):
            value = ref.get()
            if unit_id in ids and value is not None:
                self._heads[unit_id] = _Ref(value, None)
            elif ref._weak is None:
                self.set_head(unit_id, value, hold=True)
        for some_id, home in self._homes.items():
            home.hold(some_id in ids)

    def keep_strings(self, blocks: Iterable[Block]) -> None:
        """Holds those of these blocks that are byte strings, which nothing can hold weakly."""
        for block in blocks:
            if block.owner is not None and block.payload_id is not None:
                self._homes[block.payload_id].hold_string(block.owner)

    def hold_memory(self, payload_ids: Iterable[int]) -> None:
        """Holds the memory of these that lives here, until `hold_exactly` is told what for."""
        for payload_id in payload_ids:
            home = self._homes.get(payload_id)
            if home is not None and home.is_alive():
                home.hold(True)

    def replace(self, heads: Iterable[tuple[UnitId, Any, bool]], blocks: Iterable[tuple[int, Block]]) -> None:
        """Exactly these (id, object, hold) and blocks live here, as a save has found."""
        self._heads, self._by_address, self.lost, self._bundles = {}, {}, {}, {}
        for unit_id, value, hold in heads:
            if isinstance(value, Bundle):
                self._bundles[unit_id] = value
            else:
                self.set_head(unit_id, value, hold=hold)
        self._homes, self._by_key = {}, {}
        for some_id, block in blocks:
            self.set_home(some_id, Home.of_block(block))

    def given_out(self) -> tuple[dict[str, UnitId], dict[tuple[UnitId, int], PayloadId]]:
        """Ids by name and by place, for `take_back` if the version that they were made for is not committed."""
        return dict(self.atoms), dict(self._late)

    def take_back(self, given_out: tuple[dict[str, UnitId], dict[tuple[UnitId, int], PayloadId]]) -> None:
        """Forgets ids of a version that never was: another holder may give out the same numbers."""
        self.atoms, self._late = given_out

    def keep_late(self, payload_ids: Iterable[PayloadId]) -> None:
        """Forgets places of memory that no unit has any more."""
        kept = set(payload_ids)
        self._late = {key: payload_id for key, payload_id in self._late.items() if payload_id in kept}

    def set_home(self, some_id: int, home: Home) -> None:
        """The payload or small shared block `some_id` lives there."""
        self._homes[some_id] = home
        self._by_key[home.key] = some_id

    def mapped(self) -> list[MappedRange]:
        """Host memory of known payloads and blocks that is alive."""
        return [
            MappedRange(home.address, home.address + home.size_bytes, some_id, home)
            for some_id, home in self._homes.items()
            if home.device == "cpu" and home.kind == "memory" and home.is_alive()
        ]

    def held_memory(self) -> list[LoadedMemory | bytes | bytearray]:
        """Memory that units which are not loaded refer to."""
        found = [home.loaded() for home in self._homes.values() if home.is_held]
        return [loaded for loaded in found if loaded is not None]

    def label_blocks(self, blocks: Iterable[Block]) -> None:
        """Gives every payload block its id: the one of the known block that it is, or a new one."""
        for block in blocks:
            if block.is_payload and block.payload_id is None:
                known = self._known_id(block)
                block.payload_id = PayloadId(self.new_id() if known is None else known)

    def _known_id(self, block: Block) -> int | None:
        """The id of the known memory that `block` is, not of one that died and left its place to others."""
        known = self._by_key.get(block.key)
        return known if known is not None and self._homes[known].may_be_alive() else None

    def label_late_block(self, block: Block, unit_id: UnitId, ordinal: int) -> None:
        """The same, for memory that is made anew at every pickling of `unit_id`: known by its place in it."""
        key = (unit_id, ordinal)
        if key not in self._late:
            self._late[key] = PayloadId(self.new_id())
        block.payload_id = self._late[key]
