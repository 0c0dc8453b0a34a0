"""Memory of real GPUs: fingerprinted where it is, and only what changed is brought to the host (design §7).

The keyed fingerprints decide what is dirty; a region's id in the store stays the XXH3-128 of its bytes. The secret is
this process's own, as its fingerprints are.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from looseleaf.checkpoint.manifest import HASH_BYTES
from looseleaf.checkpoint.memory import Block
from looseleaf.checkpoint.payload_hashes import Hashed, hash_copies
from looseleaf.dirty_tracker import SECRET_BYTES, dirty_regions
from looseleaf.errors import LooseLeafError
from looseleaf.ids import PayloadId
from looseleaf.units import GIB, MIB, REGION_BYTES

# Bytes that a save brings to the host at once, to be hashed there, and of these what it keeps until they are stored.
# What is beyond is brought once more when its turn comes: a GPU may have more memory than its host.
WINDOW_BYTES_MAX: Final = 256 * MIB
HELD_BYTES_MAX: Final = 1 * GIB
# Bytes that are brought once more at once.
AGAIN_BYTES_MAX: Final = 64 * MIB

log = logging.getLogger("looseleaf.checkpoint")


class DeviceTracker(Protocol):
    """What is needed of `dirty_tracker._cuda.DeviceTracker`, whose contract it is."""

    def tables(
        self, payloads: Sequence[tuple[int, int]], last: Sequence[bytes], region_bytes: int
    ) -> list[tuple[bytes, list[int]]]:
        """Fingerprints of each (address, size), and which regions differ from `last`."""

    def move_to_host(self, moves: Sequence[tuple[int, Any]]) -> None:
        """Copies from each address into its buffer."""


@dataclass(frozen=True)
class _Known:
    """The ids of a payload's regions, and the fingerprints of the very same bytes."""

    ids: bytes
    fingerprints: bytes


class _Window:
    """The regions of one device that were brought again last; those before them are let go."""

    def __init__(self, tracker: DeviceTracker) -> None:
        self._tracker = tracker
        self._of: _Regions | None = None
        self._copies: dict[int, bytearray] = {}

    def region(self, of: _Regions, index: int) -> bytearray:
        """One region of a payload. Raises what `move_to_host` raises."""
        if self._of is not of or index not in self._copies:
            self._of, self._copies = None, {}
            copies = of.room_from(index)
            self._tracker.move_to_host([(of.address + other * REGION_BYTES, copy) for other, copy in copies.items()])
            self._of, self._copies = of, copies
        return self._copies[index]


class _Regions(Mapping[int, bytearray]):
    """The dirty regions of a payload as they are asked for, mostly in their order: held, or brought again."""

    def __init__(self, window: _Window, address: int, size_bytes: int, held: dict[int, bytearray | None]) -> None:
        """`held`: None for a region that is not kept. `window`: shared with all payloads of the device."""
        self.address = address
        self._window = window
        self._size_bytes = size_bytes
        self._held = held

    def __getitem__(self, index: int) -> bytearray:
        """Raises what `move_to_host` raises."""
        copy = self._held[index]
        return self._window.region(self, index) if copy is None else copy

    def __iter__(self) -> Iterator[int]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def room_from(self, index: int) -> dict[int, bytearray]:
        """Buffers for that region and the next ones that are not held."""
        count = AGAIN_BYTES_MAX // REGION_BYTES
        wanted = [other for other, copy in self._held.items() if other >= index and copy is None][:count]
        return {other: bytearray(region_length(self._size_bytes, other)) for other in wanted}


def region_length(size_bytes: int, index: int) -> int:
    """Bytes of one region of a payload."""
    return min(REGION_BYTES, size_bytes - index * REGION_BYTES)


class DeviceHashes:
    """Fingerprints of device payloads as this process last saved or restored them. One thread at a time."""

    def __init__(self, open_tracker: Callable[[int, bytes], DeviceTracker] | None = None) -> None:
        self._open = open_tracker or _open_cuda
        self._secret = os.urandom(SECRET_BYTES)
        # None: it failed, or is not to be had; memory of that device is read whole.
        self._trackers: dict[int, DeviceTracker | None] = {}
        self._known: dict[PayloadId, _Known] = {}

    def hashed(self, blocks: Sequence[tuple[Block, bytes]], *, hold_all: bool = False) -> list[Hashed | None]:
        """What became of each (block, ids that its regions had before); None for one that must be read whole.

        Nothing writes to the devices until the regions are stored; with `hold_all` somebody may, and what was hashed is
        kept, as much as it is. After a save that failed these ids are no longer what is known here, and everything is
        moved.
        """
        found: list[Hashed | None] = [None] * len(blocks)
        on_device: dict[int, list[int]] = {}
        for place, (block, _) in enumerate(blocks):
            index = real_device_of(block.storage)
            if index is not None and block.payload_id is not None:
                on_device.setdefault(index, []).append(place)
        for index, places in on_device.items():
            chosen = [blocks[place] for place in places]
            for place, hashed in zip(places, self._hashed_on(index, chosen, hold_all), strict=True):
                found[place] = hashed
        return found

    def _hashed_on(
        self, index: int, blocks: Sequence[tuple[Block, bytes]], hold_all: bool
    ) -> Sequence[Hashed | None]:
        before = [self._fingerprints_of(block, last) for block, last in blocks]
        spans = [(block.address, block.size_bytes) for block, _ in blocks]
        try:
            tracker = self._tracker(index)
            if tracker is None:
                return [None] * len(blocks)
            tables = tracker.tables(spans, before, REGION_BYTES)
            changed = [(place, region) for place, (_, regions) in enumerate(tables) for region in regions]
            ids, held = _ids_of(tracker, spans, changed, len(changed) * REGION_BYTES if hold_all else HELD_BYTES_MAX)
        except LooseLeafError as error:
            self._give_up(index, error)
            return [None] * len(blocks)
        found, window = [], _Window(tracker)
        for place, ((block, last), known, (fingerprints, regions)) in enumerate(
            zip(blocks, before, tables, strict=True)
        ):
            all_ids = bytearray(last if known else bytes(len(fingerprints)))
            for region in regions:
                all_ids[region * HASH_BYTES : (region + 1) * HASH_BYTES] = ids[place, region]
            assert block.payload_id is not None
            self._known[block.payload_id] = _Known(bytes(all_ids), fingerprints)
            dirty = dirty_regions(all_ids, last)
            copies = _Regions(window, *spans[place], {region: held.get((place, region)) for region in regions})
            found.append(Hashed(block.size_bytes, bytes(all_ids), dirty, memoryview(b""), copies))
        return found

    def _fingerprints_of(self, block: Block, last: bytes) -> bytes:
        known = self._known.pop(block.payload_id, None) if block.payload_id is not None else None
        return known.fingerprints if known is not None and known.ids == last else b""

    def note_restored(self, payload_id: PayloadId, ids: bytes, storage: Any) -> None:
        """The storage holds exactly the payload whose regions have these ids, and nobody has written to it yet."""
        index = real_device_of(storage)
        if index is None:
            return
        try:
            if (tracker := self._tracker(index)) is not None:
                ((fingerprints, _),) = tracker.tables([(storage.data_ptr(), storage.nbytes())], [b""], REGION_BYTES)
                self._known[payload_id] = _Known(ids, fingerprints)
        except LooseLeafError as error:
            self._give_up(index, error)

    def keep(self, payload_ids: Container[PayloadId]) -> None:
        """Forgets all other payloads."""
        self._known = {payload_id: known for payload_id, known in self._known.items() if payload_id in payload_ids}

    def _tracker(self, index: int) -> DeviceTracker | None:
        if index not in self._trackers:
            try:
                self._trackers[index] = self._open(index, self._secret)
            except ImportError as error:
                log.warning("device_memory_read_whole device=%d why=%s", index, str(error))
                self._trackers[index] = None
        return self._trackers[index]

    def _give_up(self, index: int, error: LooseLeafError) -> None:
        log.warning("device_memory_read_whole device=%d reason=%s why=%s", index, error.reason, error.message)
        self._trackers[index] = None


def _ids_of(
    tracker: DeviceTracker, spans: Sequence[tuple[int, int]], changed: Sequence[tuple[int, int]], held_bytes_max: int
) -> tuple[dict[tuple[int, int], bytes], dict[tuple[int, int], bytearray]]:
    """The ids of regions, each (place in `spans`, number), and the bytes of the first of them."""
    ids: dict[tuple[int, int], bytes] = {}
    held: dict[tuple[int, int], bytearray] = {}
    count = WINDOW_BYTES_MAX // REGION_BYTES
    for start in range(0, len(changed), count):
        part = changed[start : start + count]
        copies = {key: bytearray(region_length(spans[key[0]][1], key[1])) for key in part}
        tracker.move_to_host([
            (spans[place][0] + region * REGION_BYTES, copy) for (place, region), copy in copies.items()
        ])  # fmt: skip
        ids.update(zip(copies, hash_copies(copies.values()), strict=True))
        if start * REGION_BYTES < held_bytes_max:
            held.update(copies)
    return ids, held


def _open_cuda(index: int, secret: bytes) -> DeviceTracker:
    module = importlib.import_module("looseleaf.dirty_tracker._cuda")
    tracker: DeviceTracker = module.DeviceTracker(index, secret)
    return tracker


def real_device_of(storage: Any) -> int | None:
    """The number of the CUDA device whose memory this is; None for memory of the host, a virtual device's too."""
    torch: Any = sys.modules.get("torch")
    # A torch that another thread is importing lacks names still, and nothing is of its kinds.
    if storage is None or not isinstance(storage, getattr(torch, "UntypedStorage", ())):
        return None
    device = torch._C.StorageBase.device.__get__(storage)
    return int(device.index or 0) if device.type == "cuda" else None
