"""Regions written since their memory was restored: candidates for a change, the others need not be read (design §7).

A restored payload is a private mapping of arena slots. Whatever writes to it (Python, a library, a system call, a
device's copy) leaves a page of the process's own in place of the slot's, and the page tables tell which these are.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from looseleaf.dirty_tracker import _core
from looseleaf.dirty_tracker._core import MappedRegions
from looseleaf.dirty_tracker.hashing import HASH_BYTES, check_region_bytes, check_seed, check_threads
from looseleaf.errors import Forbidden, InvalidArgument
from looseleaf.units import REGION_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

PagemapMethod = Literal["scan", "read"]
PAGEMAP_PATH: Final = "/proc/self/pagemap"
# Taken before this process gave up its uid, after which the kernel opens no other.
_kept: _core.Pagemap | None = None
# The living ones by their mapping's address.
_restored: dict[int, RestoredRegions] = {}


@functools.cache
def pagemap_support() -> tuple[PagemapMethod | None, str]:
    """How written pages are found here, and if they are not, why: "scan" by the ioctl, "read" from the file.

    Tried on a mapping whose written page is known, once a process.
    """
    method, why_none = _core.pagemap_support()
    return ("scan" if method == "scan" else "read" if method == "read" else None), why_none


def keep_pagemap() -> None:
    """Keeps this process's page tables readable past a change of its uid.

    Call it before the change, and in a forked child again: page tables are one process's.
    """
    global _kept
    method, _ = pagemap_support()
    _kept = None if method is None else _core.Pagemap.open(method)


def drop_pagemap() -> None:
    """Undoes `keep_pagemap`."""
    global _kept
    _kept = None


def _pagemap() -> _core.Pagemap | None:
    if _kept is not None and _kept.is_usable:
        return _kept
    method, _ = pagemap_support()
    if method is None:
        return None
    try:
        return _core.Pagemap.open(method)
    except Forbidden:
        return None


class RestoredRegions:
    """A mapping and the fingerprints of what it showed when it was made.

    `table` has the XXH3-128 of each region, as `region_hashes` gives it with the same seed and region size. Holds the
    mapping weakly: where it is gone, its addresses may be other memory's.
    """

    def __init__(self, mapped: MappedRegions, table: bytes, *, region_bytes: int = REGION_BYTES) -> None:
        """Raises InvalidArgument (`HASH_TABLE_MALFORMED`) for a table of another number of regions."""
        check_region_bytes(region_bytes)
        if len(table) != -(-mapped.size_bytes // region_bytes) * HASH_BYTES:
            raise InvalidArgument("HASH_TABLE_MALFORMED", "a mapping's table has one entry for each of its regions")
        self.table = table
        self.region_bytes = region_bytes
        self.address = mapped.address
        self._mapped = weakref.ref(mapped, lambda _: self._forget())

    def mapped(self) -> MappedRegions | None:
        """The mapping; None if it was closed or dropped."""
        mapped = self._mapped()
        return None if mapped is None or mapped.closed else mapped

    def written(self) -> list[int] | None:
        """Indices of the regions that may differ from `table`, ascending; None if the mapping is gone."""
        mapped = self.mapped()
        return None if mapped is None else written_regions(mapped, region_bytes=self.region_bytes)

    def _forget(self) -> None:
        if _restored.get(self.address) is self:
            del _restored[self.address]


def note_restored(mapped: MappedRegions, table: bytes) -> None:
    """Lets `restored_at` find the mapping for as long as it lives. Raises as RestoredRegions does."""
    found = RestoredRegions(mapped, table)
    if table:
        _restored[found.address] = found


def restored_at(address: int, size_bytes: int) -> RestoredRegions | None:
    """The living mapping of exactly this memory that was noted; None if there is none."""
    found = _restored.get(address)
    mapped = None if found is None else found.mapped()
    return found if mapped is not None and mapped.size_bytes == size_bytes else None


def written_regions(mapped: MappedRegions, *, region_bytes: int = REGION_BYTES) -> list[int]:
    """Indices of the regions that may differ from what the mapping showed at first, ascending.

    All others surely show the same bytes. Every region, where the page tables cannot be read. Writes that go on during
    the call may be missed by it and are found by the next. Raises PreconditionFailed (`CLOSED`), InvalidArgument.
    """
    check_region_bytes(region_bytes)
    size_bytes, pagemap = mapped.size_bytes, _pagemap()
    if pagemap is None:
        return list(range(-(-size_bytes // region_bytes)))
    return pagemap.written_regions(mapped.address, size_bytes, region_bytes)


class Payload(NamedTuple):
    """One payload's memory, any C-contiguous buffer, and the table that the last save gave it (b"" if none did).

    `restored` saves reading what is unwritten; it counts only if its mapping is exactly this memory.
    """

    buffer: Buffer
    last: bytes = b""
    restored: RestoredRegions | None = None


class RegionTable(NamedTuple):
    """What `region_tables` found of a payload: its new table, what differs from the last, how many regions it read."""

    hashes: bytes
    dirty: list[int]
    hashed_regions: int


def region_tables(
    payloads: Sequence[Payload], *, region_bytes: int = REGION_BYTES, seed: int = 0, threads: int | None = None
) -> list[RegionTable]:
    """The tables of many payloads at once, equal to `region_hashes` and `dirty_regions` of each, in their order.

    Of restored memory only the regions with written pages are read; where the page tables cannot be read, all are. Up
    to `threads` threads (default: one a CPU) share the work, fewer for little memory. The GIL is released; an interrupt
    ends the work within a few ms, by the exception that its handler raises. Raises as `region_hashes` does, and
    InvalidArgument (`HASH_TABLE_MALFORMED`) for a table that does not belong to its payload.
    """
    check_region_bytes(region_bytes)
    check_seed(seed)
    threads = min(_core.HASH_THREADS_MAX, os.cpu_count() or 1) if threads is None else threads
    check_threads(threads)
    rows = [(buffer, last, _origin(restored, region_bytes)) for buffer, last, restored in payloads]
    pagemap = _pagemap() if any(origin is not None for _, _, origin in rows) else None
    return [RegionTable(*row) for row in _core.region_tables(rows, region_bytes, seed, threads, pagemap)]


def _origin(restored: RestoredRegions | None, region_bytes: int) -> tuple[bytes, int, int] | None:
    mapped = restored.mapped() if restored is not None and restored.region_bytes == region_bytes else None
    return None if restored is None or mapped is None else (restored.table, mapped.address, mapped.size_bytes)
