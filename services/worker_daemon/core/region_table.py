"""Which regions the host arena holds, who needs them, and which slot may be used again (design §7)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

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
    kept_elsewhere: bool
    committed: bool
    pins: set[Hashable] = field(default_factory=set)


class RegionTable:
    """Content-addressed directory of the arena's slots; I/O-free.

    A slot may be reused only when its region is *evictable*: no open connection pinned it (it may be
    mapped there) and its bytes are kept elsewhere, on the store's disk or on the host that staged them.
    Regions that were put but never committed are *abandoned* once no connection pins them; their slots
    are free at once.
    """

    def __init__(self) -> None:
        self._regions: OrderedDict[RegionKey, _Region] = OrderedDict()

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

    def add(self, key: RegionKey, slot: Slot, *, owner: Hashable | None, committed: bool) -> None:
        """A region's bytes now lie in `slot`, pinned for `owner` if given."""
        if key in self._regions:
            raise AssertionError("a region has one slot")
        self._regions[key] = _Region(slot, False, committed, set() if owner is None else {owner})

    def pin(self, key: RegionKey, owner: Hashable) -> Slot | None:
        """Keeps the region's slot for `owner`; None if the arena does not hold it."""
        region = self._regions.get(key)
        if region is None:
            return None
        region.pins.add(owner)
        self._regions.move_to_end(key)
        return region.slot

    def unpin(self, owner: Hashable, keys: Iterable[RegionKey] | None = None) -> list[Slot]:
        """Ends `owner`'s pins on `keys` (all of them if None); returns slots of abandoned regions, now free."""
        free: list[Slot] = []
        for key in list(self._regions) if keys is None else list(keys):
            region = self._regions.get(key)
            if region is None or owner not in region.pins:
                continue
            region.pins.discard(owner)
            if not region.pins and not region.committed and not region.kept_elsewhere:
                free.append(region.slot)
                del self._regions[key]
        return free

    def commit(self, keys: Iterable[RegionKey]) -> None:
        """A manifest now names these regions."""
        for key in keys:
            if (region := self._regions.get(key)) is not None:
                region.committed = True

    def keep_elsewhere(self, keys: Iterable[RegionKey]) -> None:
        """The store's disk or the host where these were staged holds them too."""
        for key in keys:
            if (region := self._regions.get(key)) is not None:
                region.kept_elsewhere = True

    def evict(self, count: int) -> list[tuple[RegionKey, Slot]]:
        """Drops up to `count` evictable regions, least recently used first; their slots are free."""
        chosen = [
            (key, region.slot) for key, region in self._regions.items() if region.kept_elsewhere and not region.pins
        ]
        for key, _slot in chosen[:count]:
            del self._regions[key]
        return chosen[:count]
