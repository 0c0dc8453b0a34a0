"""Regions on the store's own disk: uploads that are durable when they end, verified reads, and where regions are."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from looseleaf.dirty_tracker import hash128
from looseleaf.errors import Conflict, Corrupt, InvalidArgument, LooseLeafError, NotFound
from looseleaf.kv import Batch
from looseleaf.logs import get_logger
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.rows import (
    ZERO_SLOT,
    RegionRow,
    decode_optional_region,
    encode_number,
)
from looseleaf.services.checkpoint_store.index import StoreIndex
from looseleaf.services.checkpoint_store.region_files import RegionFiles
from looseleaf.services.checkpoint_store.units import check_hash
from looseleaf.services.checkpoint_store.usage import Usage, blocks_of, disk_bytes_of
from looseleaf.units import REGION_BYTES

log = get_logger()

# Slots that an upload fills before it syncs them and writes their rows.
UPLOAD_BATCH_REGIONS: Final = 128


@dataclass(frozen=True, slots=True)
class Region:
    """A region's name: XXH3-128 of its bytes, and their number."""

    region_id: bytes
    length_bytes: int

    def check(self) -> None:
        """Raises InvalidArgument `HASH_MALFORMED` or `REGION_LENGTH`."""
        check_hash(self.region_id, "region")
        if not 1 <= self.length_bytes <= REGION_BYTES:
            text = f"region {self.region_id.hex()} has {self.length_bytes} bytes; 1 to {REGION_BYTES} are allowed"
            raise InvalidArgument("REGION_LENGTH", text, region=self.region_id.hex(), length_bytes=self.length_bytes)


class Regions:
    """The disk tier and the index of where regions are."""

    def __init__(self, index: StoreIndex, files: RegionFiles, usage: Usage) -> None:
        self._index = index
        self._files = files
        self._usage = usage

    def begin_upload(self, tenant: bytes = keys.DEFAULT_TENANT, size_bytes: int = 0) -> RegionUpload:
        """A new upload of a tenant's regions; end it with `finish` or `abort`.

        `size_bytes`: as for `RegionUpload.reserve`, which is called at once, and raises; with 0 this does not block.
        """
        upload = RegionUpload(self._index, self._files, self._usage, tenant)
        if size_bytes:
            upload.reserve(size_bytes)
        return upload

    def get(self, regions: Sequence[Region], tenant: bytes = keys.DEFAULT_TENANT) -> list[bytes]:
        """The bytes of a tenant's regions, verified, in order.

        Raises InvalidArgument as `Region.check`, NotFound `REGIONS_UNKNOWN` for those not on this disk, Corrupt
        `CHECKSUM_MISMATCH` naming the region.
        """
        for region in regions:
            region.check()
        with ExitStack() as pins:
            with self._index.lock:
                rows = self._index.region_rows(tenant, [region.region_id for region in regions])
                slots = [_slot_of(rows[region.region_id], region) for region in regions]
                missing = [region for region, slot in zip(regions, slots, strict=True) if slot is None]
                if missing:
                    raise _unknown(missing)
                found = [slot for slot in slots if slot is not None]
                # Pinned while the rows cannot change: the collector may free the slots from now on, not reuse them.
                pins.enter_context(self._files.pinned(slot for slot in found if slot != ZERO_SLOT))
            return [self._read(tenant, region, slot) for region, slot in zip(regions, found, strict=True)]

    def locate(self, regions: Sequence[Region], tenant: bytes = keys.DEFAULT_TENANT) -> list[RegionRow | None]:
        """Where each of a tenant's regions is, None for one that the store does not know with that length."""
        for region in regions:
            region.check()
        rows = self._index.region_rows(tenant, [region.region_id for region in regions])
        return [_same_length(rows[region.region_id], region) for region in regions]

    def _read(self, tenant: bytes, region: Region, slot: int) -> bytes:
        if slot == ZERO_SLOT:
            return bytes(region.length_bytes)
        data = self._files.read(slot, region.length_bytes)
        if len(data) != region.length_bytes or hash128(data) != region.region_id:
            path, offset = self._files.path_of(slot)
            log.error("region_damaged", region=region.region_id.hex(), file=path.name, offset=offset)
            self._mark_damaged(keys.region_key(tenant, region.region_id), slot)
            text = (
                f"region {region.region_id.hex()} is damaged on the store's disk ({path.name} at {offset}); values "
                "that need it cannot be restored from here until a host that has it saves again: restore an older "
                "version or a copy of the store"
            )
            raise Corrupt("CHECKSUM_MISMATCH", text, region=region.region_id.hex(), file=path.name, offset=offset)
        return data


    def _mark_damaged(self, object_key: bytes, slot: int) -> None:
        """From now on nobody relies on the slot, and the region is stored anew when it comes again."""
        with self._index.lock:
            row = decode_optional_region(self._index.kv.get(object_key))
            if row is not None and row.slot == slot and not row.damaged:
                batch = Batch()
                batch.put(object_key, replace(row, damaged=True).encode())
                self._index.kv.write(batch)
                self._index.damaged.add(object_key)


class RegionUpload:
    """One client's regions on their way to the disk. Its methods may run on different threads, one after the other."""

    def __init__(self, index: StoreIndex, files: RegionFiles, usage: Usage, tenant: bytes) -> None:
        self._index = index
        self._files = files
        self._usage = usage
        self._tenant = tenant
        self._lock = threading.Lock()
        # Room that was made for regions to come.
        self._reserved_bytes = 0
        # Written (or zeros, in ZERO_SLOT), but not yet named by the index.
        self._slots: dict[Region, int] = {}
        # Slots that no row names any more, of damaged regions that were stored anew, with their sizes: free once the
        # new rows are durable.
        self._replaced: dict[int, int] = {}
        # Not written, because they were on the disk already.
        self._found: set[Region] = set()
        self._ended = False
        self.stored = 0

    def reserve(self, size_bytes: int) -> None:
        """Makes room for so many bytes to come, or for as many as are known; nothing after `finish` or `abort`.

        Raises CapacityExceeded `STORE_FULL` or `TENANT_FULL` if there is none.
        """
        with self._lock:
            if not self._ended:
                self._usage.reserve(self._tenant, size_bytes, later=True)
                self._reserved_bytes += size_bytes

    def add(self, chunks: Sequence[tuple[Region, bytes | memoryview]]) -> None:
        """Verifies and writes regions; they are durable once `finish` returns.

        Raises InvalidArgument as `Region.check`, Corrupt `CHECKSUM_MISMATCH`, CapacityExceeded `STORE_FULL` or
        `TENANT_FULL` (before any of these regions is written), `DISK_FULL`, Unavailable `STORE_IO`. After an error,
        `abort`.
        """
        fresh = {region: data for region, data in chunks if _verified(region, data)}
        with self._lock:
            if self._ended:
                return
            known = self._index.region_rows(self._tenant, [region.region_id for region in fresh])
            for region in list(fresh):
                row = known[region.region_id]
                if row is not None and row.on_disk:
                    self._found.add(region)
                if region in self._slots or region in self._found:
                    del fresh[region]
            self._write(fresh)
            if len(self._slots) >= UPLOAD_BATCH_REGIONS:
                self._publish()

    def finish(self) -> int:
        """Makes all regions durable; returns how many were not on the disk before.

        Raises as `add`, and Conflict `REGIONS_COLLECTED` if the collector freed one that was there: send all again.
        """
        with self._lock:
            self._publish()
            # Regions that were there before may still wait for their rows to be synced by another upload.
            self._index.kv.flush()
            self._ended = True
            self._give_reserved_back()
            self._free_replaced()
            return self.stored

    def abort(self) -> None:
        """Gives back what was written and is not durable yet. Idempotent, and nothing after `finish`."""
        with self._lock:
            self._ended = True
            self._give_reserved_back()
            self._release(self._slots)
            self._slots = {}
            if self._replaced:
                try:
                    self._index.kv.flush()
                except LooseLeafError as error:
                    # After a loss of power the old rows may be there again: only the next start can free the slots.
                    log.warning("replaced_slots_kept", slots=len(self._replaced), reason=error.reason)
                else:
                    self._free_replaced()

    def _write(self, fresh: Mapping[Region, bytes | memoryview]) -> None:
        zeros = {region: ZERO_SLOT for region, data in fresh.items() if _is_zero(region, data)}
        self._slots.update(zeros)
        written = {region: data for region, data in fresh.items() if region not in zeros}
        needed_bytes = sum(blocks_of(region.length_bytes) for region in written)
        self._reserve(needed_bytes)
        taken: dict[Region, int] = {}
        try:
            for region, data in written.items():
                taken[region] = self._files.allocate()
                self._files.write(taken[region], data)
        except BaseException:
            self._files.free(taken.values())
            self._usage.give_back(self._tenant, needed_bytes)
            raise
        finally:
            # Only now does the disk itself tell of them.
            self._usage.arrived(needed_bytes)
        self._slots.update(taken)

    def _reserve(self, needed_bytes: int) -> None:
        from_reserved = min(self._reserved_bytes, needed_bytes)
        self._usage.reserve(self._tenant, needed_bytes - from_reserved, later=True)
        self._reserved_bytes -= from_reserved

    def _give_reserved_back(self) -> None:
        self._usage.arrived(self._reserved_bytes)
        self._usage.give_back(self._tenant, self._reserved_bytes)
        self._reserved_bytes = 0

    def _free_replaced(self) -> None:
        """Once the rows that name other slots are durable."""
        self._files.free(self._replaced)
        self._usage.give_back(self._tenant, sum(self._replaced.values()))
        self._replaced = {}

    def _publish(self) -> None:
        """One sync of the files, then the rows: a row never names bytes that a loss of power could take."""
        if not self._slots and not self._found:
            return
        self._files.sync(slot for slot in self._slots.values() if slot != ZERO_SLOT)
        published: dict[Region, int] = {}
        replaced: dict[int, int] = {}
        batch = Batch()
        stamp = encode_number(self._index.clock.unix_ms())
        with self._index.lock:
            named = [region.region_id for region in (*self._slots, *self._found)]
            rows = self._index.region_rows(self._tenant, named)
            for region in self._found:
                self._renew(batch, region, rows[region.region_id], stamp)
            self._found = set()
            for region, slot in self._slots.items():
                row = rows[region.region_id]
                if row is not None and (row.on_disk or row.length_bytes != region.length_bytes):
                    continue
                published[region] = slot
                known = row or RegionRow(0, region.length_bytes, None, ())
                object_key = keys.region_key(self._tenant, region.region_id)
                batch.put(object_key, replace(known, slot=slot, damaged=False).encode())
                if known.written_slot is not None:
                    replaced[known.written_slot] = disk_bytes_of(known)
                if known.refs == 0:
                    batch.put(keys.orphan_key(object_key), stamp)
            doubles = {region: slot for region, slot in self._slots.items() if region not in published}
            # From here on the slots belong to the index, even if the write fails: it may have happened all the same,
            # and the next start, not we, can tell.
            self._slots = {}
            self._index.kv.write(batch)
            self._replaced.update(replaced)
            self._index.damaged.difference_update(
                keys.region_key(self._tenant, region.region_id) for region in published
            )
        self._release(doubles)
        self.stored += len(published)

    def _renew(self, batch: Batch, region: Region, row: RegionRow | None, stamp: bytes) -> None:
        """Gives a region that no version names yet its full grace again."""
        if row is None or not row.on_disk:
            text = f"region {region.region_id.hex()} was freed during this upload; send the regions again"
            raise Conflict("REGIONS_COLLECTED", text, region=region.region_id.hex())
        if row.refs == 0:
            batch.put(keys.orphan_key(keys.region_key(self._tenant, region.region_id)), stamp)

    def _release(self, slots: Mapping[Region, int]) -> None:
        written = {region: slot for region, slot in slots.items() if slot != ZERO_SLOT}
        self._files.free(written.values())
        self._usage.give_back(self._tenant, sum(blocks_of(region.length_bytes) for region in written))


def _is_zero(region: Region, data: bytes | memoryview) -> bool:
    """Whether the bytes of a verified region are all zero; one look is enough for nearly all others."""
    return data[0] == 0 and region.region_id == _zero_id(region.length_bytes)


@lru_cache(maxsize=256)
def _zero_id(length_bytes: int) -> bytes:
    return hash128(bytes(length_bytes))


def _verified(region: Region, data: bytes | memoryview) -> bool:
    region.check()
    if len(data) != region.length_bytes or hash128(data) != region.region_id:
        text = f"the bytes of region {region.region_id.hex()} were damaged on the way; it was not stored, send it again"
        raise Corrupt("CHECKSUM_MISMATCH", text, region=region.region_id.hex())
    return True


def _same_length(row: RegionRow | None, region: Region) -> RegionRow | None:
    return row if row is not None and row.length_bytes == region.length_bytes else None


def _slot_of(row: RegionRow | None, region: Region) -> int | None:
    known = _same_length(row, region)
    return None if known is None else known.slot


def _unknown(missing: Sequence[Region]) -> NotFound:
    named = [region.region_id.hex() for region in missing[:16]]
    text = f"{len(missing)} regions are not on the store's disk, such as {named[0]}; ask where they are, or save again"
    return NotFound("REGIONS_UNKNOWN", text, missing=named, missing_count=len(missing))
