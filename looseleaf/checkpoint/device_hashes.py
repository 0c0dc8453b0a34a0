"""Memory of real GPUs: fingerprinted where it is, and only what changed is brought to the host (design §7).

The keyed fingerprints decide what is dirty; a region's id in the store stays the XXH3-128 of its bytes. The secret is
this process's own, as its fingerprints are.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from looseleaf.checkpoint.manifest import HASH_BYTES
from looseleaf.checkpoint.memory import Block
from looseleaf.checkpoint.payload_hashes import Hashed, hash_copies
from looseleaf.dirty_tracker import SECRET_BYTES, dirty_regions
from looseleaf.errors import LooseLeafError
from looseleaf.ids import PayloadId
from looseleaf.units import REGION_BYTES

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


class DeviceHashes:
    """Fingerprints of device payloads as this process last saved or restored them. One thread at a time."""

    def __init__(self, open_tracker: Callable[[int, bytes], DeviceTracker] | None = None) -> None:
        self._open = open_tracker or _open_cuda
        self._secret = os.urandom(SECRET_BYTES)
        # None: it failed, or is not to be had; memory of that device is read whole.
        self._trackers: dict[int, DeviceTracker | None] = {}
        self._known: dict[PayloadId, _Known] = {}

    def hashed(self, blocks: Sequence[tuple[Block, bytes]]) -> list[Hashed | None]:
        """What became of each (block, ids that its regions had before); None for one that must be read whole.

        Nothing writes to the devices meanwhile. After a save that failed these ids are no longer what is known here,
        and everything is moved.
        """
        found: list[Hashed | None] = [None] * len(blocks)
        on_device: dict[int, list[int]] = {}
        for place, (block, _) in enumerate(blocks):
            index = real_device_of(block.storage)
            if index is not None and block.payload_id is not None:
                on_device.setdefault(index, []).append(place)
        for index, places in on_device.items():
            chosen = [blocks[place] for place in places]
            for place, hashed in zip(places, self._hashed_on(index, chosen), strict=True):
                found[place] = hashed
        return found

    def _hashed_on(self, index: int, blocks: Sequence[tuple[Block, bytes]]) -> Sequence[Hashed | None]:
        before = [self._fingerprints_of(block, last) for block, last in blocks]
        spans = [(block.address, block.size_bytes) for block, _ in blocks]
        try:
            tracker = self._tracker(index)
            if tracker is None:
                return [None] * len(blocks)
            tables = tracker.tables(spans, before, REGION_BYTES)
            copies = [
                {region: bytearray(min(REGION_BYTES, size - region * REGION_BYTES)) for region in changed}
                for (_, size), (_, changed) in zip(spans, tables, strict=True)
            ]
            tracker.move_to_host([
                (address + region * REGION_BYTES, copy)
                for (address, _), regions in zip(spans, copies, strict=True)
                for region, copy in regions.items()
            ])  # fmt: skip
        except LooseLeafError as error:
            self._give_up(index, error)
            return [None] * len(blocks)
        found = []
        for (block, last), known, (fingerprints, _), regions in zip(blocks, before, tables, copies, strict=True):
            ids = bytearray(last if known else bytes(len(fingerprints)))
            for region, region_id in zip(regions, hash_copies(regions.values()), strict=True):
                ids[region * HASH_BYTES : (region + 1) * HASH_BYTES] = region_id
            assert block.payload_id is not None
            self._known[block.payload_id] = _Known(bytes(ids), fingerprints)
            dirty = dirty_regions(ids, last)
            found.append(Hashed(block.size_bytes, bytes(ids), dirty, memoryview(b""), regions))
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


def _open_cuda(index: int, secret: bytes) -> DeviceTracker:
    module = importlib.import_module("looseleaf.dirty_tracker._cuda")
    tracker: DeviceTracker = module.DeviceTracker(index, secret)
    return tracker


def real_device_of(storage: Any) -> int | None:
    """The number of the CUDA device whose memory this is; None for memory of the host, a virtual device's too."""
    torch = sys.modules.get("torch")
    if storage is None or torch is None or not isinstance(storage, torch.UntypedStorage):
        return None
    device = torch._C.StorageBase.device.__get__(storage)
    return int(device.index or 0) if device.type == "cuda" else None
