"""Regions of a save's memory: their ids, and which of them are dirty (design §7).

All memory of a save goes through the native code together: what a tensor costs beside reading its bytes is little, and
many small ones share the threads as one large one does. Of restored memory only what was written since is read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from looseleaf.checkpoint.manifest import HASH_BYTES
from looseleaf.checkpoint.memory import Block
from looseleaf.dirty_tracker import Payload, RestoredRegions, hash128, region_tables, restored_at
from looseleaf.units import MIB, REGION_BYTES

# Copies of device memory that wait for their hash together.
COPIED_BYTES_MAX: Final = 256 * MIB


@dataclass
class Hashed:
    """Memory, the ids of its regions in one row, and which of them are dirty. `copies`: regions as they were hashed."""

    data: memoryview
    ids: bytes
    dirty: list[int]
    copies: Mapping[int, bytes] = field(default_factory=dict)

    def region(self, index: int) -> memoryview:
        """The bytes to move."""
        copy = self.copies.get(index)
        return _region(self.data, index) if copy is None else memoryview(copy)

    def with_copies(self) -> Hashed:
        """The same with copies of the dirty regions, hashed again: somebody writes to the memory while it is saved."""
        fresh, copies = bytearray(self.ids), {}
        for index in self.dirty:
            copies[index] = bytes(_region(self.data, index))
            fresh[index * HASH_BYTES : (index + 1) * HASH_BYTES] = hash128(copies[index])
        return Hashed(self.data, bytes(fresh), self.dirty, copies)


def _region(data: memoryview, index: int) -> memoryview:
    return data[index * REGION_BYTES : (index + 1) * REGION_BYTES]


def hash_blocks(blocks: Iterable[tuple[Block, bytes]]) -> Iterator[Hashed]:
    """What became of each (block, ids that its regions had before; b"" if it is new), in their order.

    Can be broken off by a signal handler that raises, within a few ms. Device memory that is no memory of this process
    is copied here, at most COPIED_BYTES_MAX and one block at a time.
    """
    payloads: list[Payload] = []
    copied_bytes = 0
    for block, last in blocks:
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


def _hash(payloads: list[Payload]) -> Iterator[Hashed]:
    tables = region_tables(payloads, region_bytes=REGION_BYTES) if payloads else []
    for payload, table in zip(payloads, tables, strict=True):
        yield Hashed(memoryview(payload.buffer), table.hashes, table.dirty)


def _lies_at(data: memoryview, address: int) -> bool:
    """True if this is the memory itself; false for a copy of it."""
    return isinstance(data.obj, ctypes.Array) and ctypes.addressof(data.obj) == address
