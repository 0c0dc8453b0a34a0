"""Garbage collection: drops versions beyond retention, gives back their references, frees what nothing names.

Every step is one bounded write that leaves the index whole, so a crash or a stop between two of them costs nothing: the
next run goes on. The collector holds the index's lock for one step at a time.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from looseleaf.errors import Corrupt
from looseleaf.kv import Batch, scan_all
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.references import released_by_drops
from looseleaf.services.checkpoint_store.core.retention import Retention, versions_to_drop
from looseleaf.services.checkpoint_store.core.rows import (
    RegionRow,
    SessionRow,
    TombstoneRow,
    UnitRow,
    decode_number,
    encode_number,
)
from looseleaf.services.checkpoint_store.core.version_uses import VersionUses
from looseleaf.services.checkpoint_store.index import StoreIndex, split_release
from looseleaf.services.checkpoint_store.region_files import RegionFiles
from looseleaf.services.checkpoint_store.usage import Usage, disk_bytes_of

SWEEP_PAGE_OBJECTS: Final = 1_024
DROPS_PER_RUN_MAX: Final = 1_000
# For so long a repeated DeleteSession is recognised, and a new session of the name begins above the old epoch.
TOMBSTONE_LIFE_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Collected:
    """What one run freed."""

    versions_dropped: int = 0
    units_deleted: int = 0
    regions_deleted: int = 0


@dataclass(frozen=True, slots=True)
class _Swept:
    units: int
    slots: tuple[int, ...]
    regions: int
    freed_bytes: Mapping[bytes, int]


class Collector:
    """One run at a time. `retention`, `uses`: which versions stay; `grace_ms`: life of what was put and never named."""

    def __init__(
        self, index: StoreIndex, files: RegionFiles, usage: Usage, *,
        retention: Retention, uses: VersionUses, grace_ms: int,
    ) -> None:  # fmt: skip
        self._index = index
        self._files = files
        self._usage = usage
        self._retention = retention
        self._uses = uses
        self._grace_ms = grace_ms
        # The last whole run since the start: its end on the monotonic clock, and what it freed.
        self.last: tuple[float, Collected] | None = None
        self._running = threading.Lock()
        self._stopped = threading.Event()
        # How many copies of the store are being made; guarded by _running.
        self._copies = 0

    def stop(self) -> None:
        """A run in progress ends after its present step."""
        self._stopped.set()

    def collect(self) -> Collected:
        """Runs to the end; a second caller waits for the first and then runs too. Raises what the database raises.

        While it is paused it frees nothing.
        """
        with self._running:
            if self._copies:
                return Collected()
            dropped = self._apply_retention()
            while not self._stopped.is_set() and self._give_back_references():
                pass
            units, regions = self._sweep()
            self._forget_tombstones()
            freed = Collected(dropped, units, regions)
            self.last = (self._index.clock.monotonic_s(), freed)
            return freed

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Waits for a run in progress; inside, nothing is freed."""
        with self._running:
            self._copies += 1
        try:
            yield
        finally:
            with self._running:
                self._copies -= 1

    def _apply_retention(self) -> int:
        """Drops at most DROPS_PER_RUN_MAX versions; after a change of the rule the next runs go on."""
        dropped = 0
        for session_id, _ in list(self._index.sessions()):
            while dropped < DROPS_PER_RUN_MAX and not self._stopped.is_set() and self._drop_one_version(session_id):
                dropped += 1
        return dropped

    def _drop_one_version(self, session_id: str) -> bool:
        """Drops the oldest version beyond retention; False if there is none."""
        with self._index.lock:
            found = self._index.kv.get(keys.session_key(session_id))
            if found is None:
                return False
            session = SessionRow.decode(found)
            chain = self._index.chain(session_id)
            batch = Batch()
            for version, _ in self._index.dropped_executions(session_id):
                if version <= session.durable_version:
                    batch.delete(keys.version_key(keys.EXECUTION, session_id, version))
            now = self._index.clock.unix_ms()
            versions = [entry.version for entry in chain]
            in_use = self._uses.of(session_id, versions, self._index.clock.monotonic_s())
            victims = versions_to_drop([entry.kept for entry in chain], self._retention, now, in_use)
            if victims:
                victim = victims[0]
                at = next(index for index, entry in enumerate(chain) if entry.version == victim)
                around = chain[max(0, at - 1) : at + 2]
                named: list[tuple[int, AbstractSet[bytes]]] = [
                    (entry.version, self._index.refs(session_id, entry.version, entry.row).objects(session.tenant))
                    for entry in around
                ]
                self._index.put_release(batch, released_by_drops(named, {victim}))
                self._index.delete_version(batch, session_id, victim)
                if victim > session.durable_version:
                    execution_id = chain[at].row.execution_id.encode()
                    batch.put(keys.version_key(keys.EXECUTION, session_id, victim), execution_id)
            self._index.kv.write(batch)
            return bool(victims)

    def _give_back_references(self) -> bool:
        """Gives back one row of references; False if there is none."""
        with self._index.lock:
            found = self._index.kv.scan(keys.RELEASE, limit=1)
            if not found:
                return False
            key, row = found[0]
            batch = Batch()
            batch.delete(key)
            released = split_release(row)
            objects = sorted(released)
            for object_key, data in zip(objects, self._index.kv.multi_get(objects), strict=True):
                self._give_back(batch, object_key, data, released[object_key])
            self._index.kv.write(batch)
            return True

    def _give_back(self, batch: Batch, object_key: bytes, data: bytes | None, count: int) -> None:
        row: UnitRow | RegionRow | None = None
        if data is not None:
            row = RegionRow.decode(data) if keys.is_region(object_key) else UnitRow.decode(data)
        if row is None or row.refs < count:
            text = "the reference counts of the store's index are wrong; nothing more is freed: check its disk"
            raise Corrupt("INDEX_CORRUPT", text, object=object_key.hex())
        left = replace(row, refs=row.refs - count)
        batch.put(object_key, left.encode())
        if left.refs == 0:
            # A unit gets its grace: a saver may have been told that it is here and be about to commit. A region needs
            # none: its saver's host holds it.
            stamp = 0 if keys.is_region(object_key) else self._index.clock.unix_ms()
            batch.put(keys.orphan_key(object_key), encode_number(stamp))

    def _sweep(self) -> tuple[int, int]:
        units = regions = 0
        for due in self._due_pages():
            swept = self._free(due)
            # A slot is reused only once its row is gone for good: else a loss of power could bring the row back.
            self._index.kv.flush()
            self._files.free(swept.slots)
            for tenant, size_bytes in swept.freed_bytes.items():
                self._usage.give_back(tenant, size_bytes)
            units += swept.units
            regions += swept.regions
        return units, regions

    def _due_pages(self) -> Iterator[list[bytes]]:
        start = keys.ORPHAN
        while not self._stopped.is_set():
            page = self._index.kv.scan(keys.ORPHAN, start, SWEEP_PAGE_OBJECTS)
            self._stamp_anew([key for key, stamp in page if self._is_of_the_future(stamp)])
            due = [key for key, stamp in page if self._is_due(stamp)]
            if due:
                yield due
            if len(page) < SWEEP_PAGE_OBJECTS:
                return
            start = page[-1][0] + b"\0"

    def _stamp_anew(self, orphan_keys: Sequence[bytes]) -> None:
        """The machine's clock was set back: what was put by the old one would stay until that time comes again."""
        if not orphan_keys:
            return
        batch = Batch()
        now = encode_number(self._index.clock.unix_ms())
        with self._index.lock:
            for key, stamp in zip(orphan_keys, self._index.kv.multi_get(orphan_keys), strict=True):
                if self._is_of_the_future(stamp):
                    batch.put(key, now)
            self._index.kv.write(batch)

    def _is_of_the_future(self, stamp: bytes | None) -> bool:
        return stamp is not None and decode_number(stamp) > self._index.clock.unix_ms()

    def _is_due(self, stamp: bytes | None) -> bool:
        return stamp is not None and decode_number(stamp) + self._grace_ms <= self._index.clock.unix_ms()

    def _free(self, orphan_keys: Sequence[bytes]) -> _Swept:
        """Deletes what is still named by nothing and still due: a put or a commit may have come in between."""
        batch = Batch()
        slots: list[int] = []
        units = regions = 0
        freed_bytes: Counter[bytes] = Counter()
        with self._index.lock:
            stamps = self._index.kv.multi_get(orphan_keys)
            objects = [key[1:] for key, stamp in zip(orphan_keys, stamps, strict=True) if self._is_due(stamp)]
            for object_key, data in zip(objects, self._index.kv.multi_get(objects), strict=True):
                batch.delete(keys.orphan_key(object_key))
                if data is None:
                    continue
                batch.delete(object_key)
                self._index.damaged.discard(object_key)
                if keys.is_region(object_key):
                    row = RegionRow.decode(data)
                    regions += 1
                    if row.written_slot is not None:
                        slots.append(row.written_slot)
                    freed_bytes[keys.tenant_of(object_key)] += disk_bytes_of(row)
                    for host_id in row.hosts:
                        batch.delete(keys.host_region_key(host_id, object_key))
                else:
                    units += 1
                    freed_bytes[keys.tenant_of(object_key)] += UnitRow.decode(data).size_bytes
                    batch.delete(keys.unit_bytes_key(keys.tenant_of(object_key), keys.hash_of(object_key)))
            self._index.kv.write(batch)
        return _Swept(units, tuple(slots), regions, freed_bytes)

    def _forget_tombstones(self) -> None:
        oldest = self._index.clock.unix_ms() - TOMBSTONE_LIFE_MS
        batch = Batch()
        with self._index.lock:
            for key, data in scan_all(self._index.kv, keys.TOMBSTONE):
                if TombstoneRow.decode(data).deleted_unix_ms < oldest:
                    batch.delete(key)
            self._index.kv.write(batch)
