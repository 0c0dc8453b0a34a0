"""Which regions the host arena holds, who needs them, and which slot may be used again (design §7)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

RegionKey = tuple[bytes, int]
"""(16-byte content hash, length in bytes)."""


@dataclass(frozen=True, order=True)
class Slot:
    """A 2 MiB slot: `index` within `segment`."""

    segment: int
    index: int


@dataclass
class _Region:
    slot: Slot
    # A manifest names it.
    committed: bool = False
    # Its bytes need not be here: they are kept elsewhere, or no version needs them.
    expendable: bool = False
    # The session's newest version no longer names it, and nobody has used it since.
    superseded: bool = False
    # Pins of all owners together.
    pins: int = 0


class RegionTable:
    """Content-addressed directory of the arena's slots; I/O-free.

    An owner is whoever needs a region to stay where it is: a connection that maps it, a save that counts on it, a
    version that is not durable yet. A slot may be reused only when its region is *idle*: nobody pins it, and it is
    *expendable*. Regions that were put but never staged are *abandoned* once nobody pins them; their slots are free
    at once. Every method takes time in proportion to what it is asked about, not to the arena.
    """

    def __init__(self) -> None:
        self._regions: dict[RegionKey, _Region] = {}
        # How often each owner pinned each region: two mappings of one region need two unmappings.
        self._owners: dict[Hashable, dict[RegionKey, int]] = {}
        # The idle regions, least recently used first: the superseded ones, and the others.
        self._idle_superseded: OrderedDict[RegionKey, None] = OrderedDict()
        self._idle: OrderedDict[RegionKey, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._regions)

    def __contains__(self, key: RegionKey) -> bool:
        return key in self._regions

    @property
    def idle(self) -> int:
        """How many regions `evict` could drop now."""
        return len(self._idle_superseded) + len(self._idle)

    def add(self, key: RegionKey, slot: Slot, *, owner: Hashable, fetched: bool = False) -> None:
        """A region's bytes now lie in `slot`, pinned for `owner`; a fetched one is a copy of what is kept elsewhere."""
        if key in self._regions:
            raise AssertionError("a region has one slot")
        self._regions[key] = _Region(slot, committed=fetched, expendable=fetched)
        self.pin(key, owner)

    def pin(self, key: RegionKey, owner: Hashable) -> Slot | None:
        """Keeps the region's slot for `owner` until as many `unpin`s; None if the arena does not hold it."""
        region = self._regions.get(key)
        if region is None:
            return None
        self._pin(key, region, owner)
        region.superseded = False
        return region.slot

    def pin_all(self, keys: Sequence[RegionKey], owner: Hashable) -> list[Slot] | None:
        """`pin` of each, in their order; None, and nothing is pinned, if the arena lacks one of them."""
        if not all(key in self._regions for key in keys):
            return None
        slots = []
        for key in keys:
            region = self._regions[key]
            self._pin(key, region, owner)
            region.superseded = False
            slots.append(region.slot)
        return slots

    def _pin(self, key: RegionKey, region: _Region, owner: Hashable) -> None:
        self._idle.pop(key, None)
        self._idle_superseded.pop(key, None)
        owned = self._owners.setdefault(owner, {})
        owned[key] = owned.get(key, 0) + 1
        region.pins += 1

    def pinned(self, owner: Hashable) -> list[RegionKey]:
        """What `owner` pins, in the order of its first pins."""
        return list(self._owners.get(owner, ()))

    def unpin(self, owner: Hashable, keys: Iterable[RegionKey] | None = None) -> list[Slot]:
        """Takes back one pin of `owner` on each of `keys`, or, if None, all its pins on every region.

        Returns the slots of abandoned regions, now free.
        """
        owned = self._owners.get(owner, {})
        free: list[Slot] = []
        for key in list(owned) if keys is None else list(keys):
            count = owned.get(key, 0) if keys is None else min(owned.get(key, 0), 1)
            if count == 0:
                continue
            owned[key] -= count
            if owned[key] == 0:
                del owned[key]
            region = self._regions[key]
            region.pins -= count
            if not region.pins and not region.committed and not region.expendable:
                free.append(region.slot)
                del self._regions[key]
            else:
                self._look(key, region)
        if not owned:
            self._owners.pop(owner, None)
        return free

    def stage(self, keys: Iterable[RegionKey], holder: Hashable) -> None:
        """A version that names these regions was committed and has them nowhere but here: `holder` pins them."""
        for key in keys:
            if (region := self._regions.get(key)) is not None:
                region.committed, region.expendable = True, False
                self._pin(key, region, holder)

    def let_go(self, keys: Iterable[RegionKey]) -> None:
        """These regions are on the store's disk, or no version needs them any more."""
        for key in keys:
            if (region := self._regions.get(key)) is not None:
                region.expendable = True
                self._look(key, region)

    def supersede(self, keys: Iterable[RegionKey]) -> None:
        """A session's newest version no longer names these: once expendable they go first, unless used again."""
        for key in keys:
            if (region := self._regions.get(key)) is not None:
                region.superseded = True
                self._idle.pop(key, None)
                self._look(key, region)

    def _look(self, key: RegionKey, region: _Region) -> None:
        """The region is idle now, if it is."""
        if region.expendable and not region.pins:
            (self._idle_superseded if region.superseded else self._idle).setdefault(key)

    def evict(self, count: int, *, superseded_only: bool = False) -> list[tuple[RegionKey, Slot]]:
        """Drops up to `count` idle regions; their slots are free.

        Superseded ones go first, then the least recently used.
        """
        order = self._idle_superseded if superseded_only else chain(self._idle_superseded, self._idle)
        chosen = list(islice(order, count))
        evicted = []
        for key in chosen:
            self._idle_superseded.pop(key, None)
            self._idle.pop(key, None)
            evicted.append((key, self._regions.pop(key).slot))
        return evicted
