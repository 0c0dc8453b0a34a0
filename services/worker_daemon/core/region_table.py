"""Which regions the host arena holds, who needs them, and which slot may be used again (design §7)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import islice

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
    # How often each owner pinned it: two mappings of one region need two unmappings.
    pins: dict[Hashable, int] = field(default_factory=dict)


class RegionTable:
    """Content-addressed directory of the arena's slots; I/O-free.

    An owner is whoever needs a region to stay where it is: a connection that maps it, a save that counts on it, a
    version that is not durable yet. A slot may be reused only when nobody pins its region and the region is
    *expendable*. Regions that were put but never staged are *abandoned* once nobody pins them; their slots are free
    at once.
    """

    def __init__(self) -> None:
        self._regions: OrderedDict[RegionKey, _Region] = OrderedDict()
        # In the order in which they are to go.
        self._superseded: OrderedDict[RegionKey, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._regions)

    def __contains__(self, key: RegionKey) -> bool:
        return key in self._regions

    def slot_of(self, key: RegionKey) -> Slot | None:
        """Where the region lies; counts as a use."""
        region = self._regions.get(key)
        if region is None:
            return None
        self._regions.move_to_end(key)
        return region.slot

    def add(self, key: RegionKey, slot: Slot, *, owner: Hashable, fetched: bool = False) -> None:
        """A region's bytes now lie in `slot`, pinned for `owner`; a fetched one is a copy of what is kept elsewhere."""
        if key in self._regions:
            raise AssertionError("a region has one slot")
        self._regions[key] = _Region(slot, committed=fetched, expendable=fetched, pins={owner: 1})

    def pin(self, key: RegionKey, owner: Hashable) -> Slot | None:
        """Keeps the region's slot for `owner` until as many `unpin`s; None if the arena does not hold it."""
        region = self._regions.get(key)
        if region is None:
            return None
        self._use_again(key, region)
        region.pins[owner] = region.pins.get(owner, 0) + 1
        self._regions.move_to_end(key)
        return region.slot

    def pinned(self, owner: Hashable) -> list[RegionKey]:
        """What `owner` pins."""
        return [key for key, region in self._regions.items() if owner in region.pins]

    def unpin(self, owner: Hashable, keys: Iterable[RegionKey] | None = None) -> list[Slot]:
        """Takes back one pin of `owner` on each of `keys`, or, if None, all its pins on every region.

        Returns the slots of abandoned regions, now free.
        """
        free: list[Slot] = []
        for key in self.pinned(owner) if keys is None else list(keys):
            region = self._regions.get(key)
            if region is None or owner not in region.pins:
                continue
            region.pins[owner] -= 1
            if keys is None or region.pins[owner] == 0:
                del region.pins[owner]
            if not region.pins and not region.committed and not region.expendable:
                free.append(region.slot)
                self._drop(key)
        return free

    def stage(self, keys: Iterable[RegionKey], holder: Hashable) -> None:
        """A version that names these regions was committed and has them nowhere but here: `holder` pins them."""
        for key in keys:
            if (region := self._regions.get(key)) is not None:
                region.committed, region.expendable = True, False
                region.pins[holder] = region.pins.get(holder, 0) + 1

    def let_go(self, keys: Iterable[RegionKey]) -> None:
        """These regions are on the store's disk, or no version needs them any more."""
        for key in keys:
            if (region := self._regions.get(key)) is not None:
                region.expendable = True

    def supersede(self, keys: Iterable[RegionKey]) -> None:
        """A session's newest version no longer names these: once expendable they go first, unless used again."""
        for key in keys:
            if (region := self._regions.get(key)) is not None:
                region.superseded = True
                self._superseded[key] = None

    def _use_again(self, key: RegionKey, region: _Region) -> None:
        if region.superseded:
            region.superseded = False
            del self._superseded[key]

    def evict(self, count: int, *, superseded_only: bool = False) -> list[tuple[RegionKey, Slot]]:
        """Drops up to `count` expendable regions that nobody pins; their slots are free.

        Superseded ones go first, then the least recently used.
        """
        order = self._superseded if superseded_only else dict.fromkeys((*self._superseded, *self._regions))
        entries = ((key, self._regions[key]) for key in order)
        chosen = list(islice(((k, entry) for k, entry in entries if entry.expendable and not entry.pins), count))
        for key, _region in chosen:
            self._drop(key)
        return [(key, region.slot) for key, region in chosen]

    def _drop(self, key: RegionKey) -> None:
        del self._regions[key]
        self._superseded.pop(key, None)
