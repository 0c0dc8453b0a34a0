"""Regions of a save's memory: their ids, and which of them are dirty (design §7).

All memory of a save goes through the native code together: what a tensor costs beside reading its bytes is little, and
many small ones share the threads as one large one does. Of restored memory only what was written since is read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from looseleaf.checkpoint.manifest import HASH_BYTES
from looseleaf.checkpoint.memory import CPU, Block
from looseleaf.dirty_tracker import Payload, RestoredRegions, hash128, region_tables, restored_at
from looseleaf.units import MIB, REGION_BYTES

# Copies of device memory that wait for their hash together.
COPIED_BYTES_MAX: Final = 256 * MIB


@dataclass
class Hashed:
    """The ids of the regions of `size_bytes` in one row, and which of them are dirty.

    `data`: the memory, empty if all that is dirty is in `copies`: regions as they were hashed.
    """

    size_bytes: int
    ids: bytes
    dirty: list[int]
    data: memoryview
    copies: Mapping[int, bytes | bytearray] = field(default_factory=dict)

    def region(self, index: int) -> memoryview:
        """The bytes to move."""
        copy = self.copies.get(index)
        return _region(self.data, index) if copy is None else memoryview(copy)

    def with_copies(self) -> Hashed:
        """The same with copies of the dirty regions, hashed again: somebody writes to the memory while it is saved."""
        if not self.data:
            return self
        fresh, copies = bytearray(self.ids), {}
        for index in self.dirty:
            copies[index] = bytes(_region(self.data, index))
            fresh[index * HASH_BYTES : (index + 1) * HASH_BYTES] = hash128(copies[index])
        return Hashed(self.size_bytes, bytes(fresh), self.dirty, self.data, copies)


def _region(data: memoryview, index: int) -> memoryview:
    return data[index * REGION_BYTES : (index + 1) * REGION_BYTES]


def hash_blocks(
    blocks: Sequence[tuple[Block, bytes]],
    on_device: Callable[[Sequence[tuple[Block, bytes]]], Sequence[Hashed | None]],
) -> Iterator[Hashed]:
    """What became of each (block, ids that its regions had before; b"" if it is new), in their order.

    Can be broken off by a signal handler that raises, within a few ms. Device memory that is no memory of this process
    is hashed by `on_device`; what that gives none for is copied here, at most COPIED_BYTES_MAX and one block at a time.
    """
    payloads: list[Payload | Hashed] = []
    copied_bytes = 0
    places = [place for place, (block, _) in enumerate(blocks) if block.device != CPU]
    there = dict(zip(places, on_device([blocks[place] for place in places]), strict=True)) if places else {}
    for place, (block, last) in enumerate(blocks):
        if (hashed := there.pop(place, None)) is not None:
            payloads.append(hashed)
            continue
        data = block.read()
        restored: RestoredRegions | None = None
        if block.kind == "memory":
            if _lies_at(data, block.address):
                restored = restored_at(block.address, block.size_bytes)
            else:
                copied_bytes += len(data)
        payloads.append(Payload(data, last, restored))
        if copied_bytes > COPIED_BYTES_MAX:
            yield from _hash(payloads)
            payloads, copied_bytes = [], 0
    yield from _hash(payloads)


def hash_bytes(data: memoryview, last: bytes) -> Hashed:
    """As `hash_blocks` of one piece of memory that was not restored."""
    return next(_hash([Payload(data, last)]))


def hash_copies(regions: Iterable[bytearray]) -> list[bytes]:
    """The id of each region."""
    return [table.hashes for table in region_tables([Payload(region) for region in regions])]


def _hash(payloads: Sequence[Payload | Hashed]) -> Iterator[Hashed]:
    to_hash = [payload for payload in payloads if isinstance(payload, Payload)]
    tables = iter(region_tables(to_hash, region_bytes=REGION_BYTES) if to_hash else [])
    for payload in payloads:
        if isinstance(payload, Hashed):
            yield payload
        else:
            data, table = memoryview(payload.buffer), next(tables)
            yield Hashed(len(data), table.hashes, table.dirty, data)


def _lies_at(data: memoryview, address: int) -> bool:
    """True if this is the memory itself; false for a copy of it."""
    return isinstance(data.obj, ctypes.Array) and ctypes.addressof(data.obj) == address
