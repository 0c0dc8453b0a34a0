"""The store's index: rows in a key-value database, and the one lock under which they change."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from looseleaf.clock import Clock
from looseleaf.errors import Corrupt, NotFound, PreconditionFailed
from looseleaf.kv import Batch, KvBackend, scan_all
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.references import VersionRefs
from looseleaf.services.checkpoint_store.core.retention import KeptVersion
from looseleaf.services.checkpoint_store.core.rows import (
    FORMAT_VERSION,
    RegionRow,
    SessionRow,
    UnitRow,
    VersionRow,
    decode_number,
    decode_optional_region,
    decode_optional_unit,
    encode_number,
)

# Objects over all cached version lists; about 100 bytes each.
CACHED_OBJECTS_MAX: Final = 500_000
# References that one row, and so one write, gives back.
RELEASE_CHUNK_OBJECTS: Final = 4_096


@dataclass(frozen=True, slots=True)
class Chained:
    """A kept version with its row."""

    version: int
    row: VersionRow

    @property
    def kept(self) -> KeptVersion:
        """What the retention rules look at."""
        return KeptVersion(self.version, self.row.durable, self.row.execution_id, self.row.created_unix_ms)


class StoreIndex:
    """Rows read and written by the parts of the store. Whoever reads rows in order to change them holds `lock`.

    Raises PreconditionFailed `STORE_FORMAT` for a folder that another version of the store wrote.
    """

    def __init__(self, kv: KvBackend, clock: Clock) -> None:
        self.kv = kv
        self.clock = clock
        # Lock order: this one before the locks of the arena files and of the usage count.
        self.lock = threading.Lock()
        # Keys of the RegionRows that are marked damaged; guarded by `lock`.
        self.damaged: set[bytes] = set()
        self._check_format()
        pending = [int.from_bytes(key[1:], "big") for key, _ in scan_all(kv, keys.RELEASE)]
        self._next_release = max(pending, default=-1) + 1
        self._refs: OrderedDict[bytes, VersionRefs] = OrderedDict()
        self._cached_objects = 0

    def session(self, session_id: str) -> SessionRow:
        """Raises NotFound `SESSION_UNKNOWN`."""
        row = self.kv.get(keys.session_key(session_id))
        if row is None:
            text = f"the store has no session {session_id}: it was never opened, or it was deleted"
            raise NotFound("SESSION_UNKNOWN", text, session_id=session_id)
        return SessionRow.decode(row)

    def sessions(self) -> Iterator[tuple[str, SessionRow]]:
        """Every session, by id."""
        for key, row in scan_all(self.kv, keys.SESSION):
            yield keys.session_of(key), SessionRow.decode(row)

    def chain(self, session_id: str) -> list[Chained]:
        """The kept versions of a session, ascending."""
        prefix = keys.versions_prefix(keys.VERSION, session_id)
        return [Chained(keys.version_of(key), VersionRow.decode(row)) for key, row in scan_all(self.kv, prefix)]

    def version(self, session_id: str, version: int) -> VersionRow:
        """Raises NotFound `VERSION_UNKNOWN`."""
        row = self.kv.get(keys.version_key(keys.VERSION, session_id, version))
        if row is None:
            text = f"session {session_id} has no version {version}: it was never saved, was lost, or is no longer kept"
            raise NotFound("VERSION_UNKNOWN", text, session_id=session_id, version=version)
        return VersionRow.decode(row)

    def dropped_executions(self, session_id: str) -> list[tuple[int, str]]:
        """(version, execution) of versions that retention dropped and no later durable version covers, ascending."""
        prefix = keys.versions_prefix(keys.EXECUTION, session_id)
        return [(keys.version_of(key), execution_id.decode()) for key, execution_id in scan_all(self.kv, prefix)]

    def refs(self, session_id: str, version: int, row: VersionRow) -> VersionRefs:
        """What a kept version names; the caller holds `lock`."""
        cached = self._refs.get(row.manifest_hash)
        if cached is not None:
            self._refs.move_to_end(row.manifest_hash)
            return cached
        data = self.kv.get(keys.version_key(keys.REFS, session_id, version))
        if data is None:
            text = f"the list of what version {version} of session {session_id} names is gone"
            raise Corrupt("INDEX_CORRUPT", text, session_id=session_id, version=version)
        refs = VersionRefs.decode(data)
        self.remember_refs(row.manifest_hash, refs)
        return refs

    def remember_refs(self, manifest_hash: bytes, refs: VersionRefs) -> None:
        """Caches what the manifest of that hash names; the caller holds `lock`."""
        if manifest_hash in self._refs:
            return
        self._refs[manifest_hash] = refs
        self._cached_objects += _size(refs)
        while self._cached_objects > CACHED_OBJECTS_MAX and len(self._refs) > 1:
            _, oldest = self._refs.popitem(last=False)
            self._cached_objects -= _size(oldest)

    def region_rows(self, tenant: bytes, region_ids: Sequence[bytes]) -> dict[bytes, RegionRow | None]:
        """The row of each of a tenant's regions, None for an unknown one."""
        found = self.kv.multi_get([keys.region_key(tenant, region_id) for region_id in region_ids])
        return dict(zip(region_ids, map(decode_optional_region, found), strict=True))

    def unit_rows(self, tenant: bytes, unit_hashes: Sequence[bytes]) -> dict[bytes, UnitRow | None]:
        """The row of each of a tenant's units, None for an unknown one."""
        found = self.kv.multi_get([keys.unit_key(tenant, unit_hash) for unit_hash in unit_hashes])
        return dict(zip(unit_hashes, map(decode_optional_unit, found), strict=True))

    def scrub_left_s(self, interval_s: float) -> float:
        """Seconds until all bytes are to be read, at most the interval; without an earlier reading it counts from now.

        Unlike a sleep it goes on over restarts, and a date that is set delays it by no more than the interval.
        """
        row = self.kv.get(keys.SCRUBBED_KEY)
        if row is None:
            self.note_scrub()
            return interval_s
        since_s = (self.clock.unix_ms() - decode_number(row)) / 1000
        return min(interval_s, max(0.0, interval_s - since_s))

    def note_scrub(self) -> None:
        """All bytes have been read."""
        batch = Batch()
        batch.put(keys.SCRUBBED_KEY, encode_number(self.clock.unix_ms()))
        self.kv.write(batch)

    def put_release(self, batch: Batch, released: Counter[bytes]) -> None:
        """Adds to `batch` the rows by which the collector later gives these references back; holds `lock`."""
        objects = sorted(released.elements())
        for start in range(0, len(objects), RELEASE_CHUNK_OBJECTS):
            batch.put(keys.release_key(self._next_release), b"".join(objects[start : start + RELEASE_CHUNK_OBJECTS]))
            self._next_release += 1

    def delete_version(self, batch: Batch, session_id: str, version: int) -> None:
        """Adds to `batch` the deletion of a version's rows; its references are another matter."""
        for kind in (keys.VERSION, keys.MANIFEST, keys.REFS):
            batch.delete(keys.version_key(kind, session_id, version))

    def _check_format(self) -> None:
        found = self.kv.get(keys.FORMAT_KEY)
        if found is None:
            batch = Batch()
            batch.put(keys.FORMAT_KEY, encode_number(FORMAT_VERSION))
            self.kv.write(batch, durable=True)
        elif decode_number(found) != FORMAT_VERSION:
            text = f"the store's folder has format {decode_number(found)}, this version reads {FORMAT_VERSION}"
            raise PreconditionFailed("STORE_FORMAT", text)


def split_release(row: bytes) -> Counter[bytes]:
    """How many references of each object a release row gives back."""
    if len(row) % keys.OBJECT_KEY_BYTES:
        raise Corrupt("INDEX_CORRUPT", "a row of references to give back cannot be read")
    return Counter(row[at : at + keys.OBJECT_KEY_BYTES] for at in range(0, len(row), keys.OBJECT_KEY_BYTES))


def _size(refs: VersionRefs) -> int:
    return len(refs.units) + len(refs.regions) + 1
