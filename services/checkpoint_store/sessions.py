"""Sessions and their versions: open, read, list, delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import islice
from typing import Final

from looseleaf.dirty_tracker import hash128
from looseleaf.errors import CapacityExceeded, Corrupt, Forbidden, NotFound
from looseleaf.ids import check_id
from looseleaf.kv import Batch
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.references import count_runs
from looseleaf.services.checkpoint_store.core.rows import SessionRow, TombstoneRow, VersionRow
from looseleaf.services.checkpoint_store.core.version_uses import VersionUses
from looseleaf.services.checkpoint_store.index import Chained, StoreIndex
from looseleaf.services.checkpoint_store.tenants import Tenants
from looseleaf.units import format_bytes

# A list of LIST_MAX sessions, each with the longest title, must fit into one message.
TITLE_CHARS_MAX: Final = 256
# What the text about a full store looks at, and names.
LOOKED_AT_MAX: Final = 1_000
NAMED_LARGEST_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """A session's head and one version's manifest; version 0 and no bytes if there is none yet."""

    session: SessionRow
    version: int
    manifest: bytes


class Sessions:
    """At most `sessions_max` sessions."""

    def __init__(self, index: StoreIndex, tenants: Tenants, sessions_max: int, uses: VersionUses) -> None:
        self._index = index
        self._tenants = tenants
        self._uses = uses
        self._sessions_max = sessions_max
        self._count = sum(1 for _ in index.sessions())

    @property
    def count(self) -> int:
        """Sessions that exist."""
        return self._count

    def open(
        self, session_id: str, *, create: bool, raise_epoch: bool, title: str, tenant: str = ""
    ) -> SessionRow:
        """The session as it stands afterwards; durable when this returns.

        A new session begins with epoch 1, or above the epoch of a deleted one of that name. Of a long title, often a
        path, the last TITLE_CHARS_MAX characters are kept. A new one belongs to `tenant` ("": the default one) for
        good; a caller that names another tenant later is refused.
        Raises InvalidArgument `ID_MALFORMED`, NotFound `SESSION_UNKNOWN`, CapacityExceeded `SESSIONS_FULL` or
        `TENANTS_FULL`, Forbidden `TENANT_MISMATCH`.
        """
        check_id("session", session_id)
        title = title[-TITLE_CHARS_MAX:]
        batch = Batch()
        with self._index.lock:
            known: SessionRow | None = None
            is_new = create and self._index.kv.get(keys.session_key(session_id)) is None
            if is_new:
                row = self._new(batch, session_id, title, tenant)
            else:
                known = self._index.session(session_id)
                if tenant and self._tenants.name(known.tenant) != tenant:
                    text = f"session {session_id} belongs to another tenant than {tenant}; nothing was changed"
                    raise Forbidden("TENANT_MISMATCH", text, session_id=session_id)
                row = replace(known, epoch=known.epoch + raise_epoch, title=title or known.title)
            if row != known:
                batch.put(keys.session_key(session_id), row.encode())
                self._index.kv.write(batch)
            self._count += is_new
        # Also if nothing changed: the call that changed it may have failed after its write.
        self._index.kv.flush()
        return row

    def enter(self, session_id: str, row: SessionRow, fill: Callable[[Batch], None]) -> None:
        """A session from a copy of a store, in one write with what `fill` adds. The caller flushes.

        Raises CapacityExceeded `SESSIONS_FULL`; then nothing changed.
        """
        batch = Batch()
        with self._index.lock:
            self._check_room()
            fill(batch)
            batch.put(keys.session_key(session_id), row.encode())
            self._index.kv.write(batch)
            self._count += 1

    def manifest(self, session_id: str, version: int, known_version: int) -> FoundManifest:
        """One version (0: the newest), without its bytes if the caller knows it; the caller uses it from now on.

        Raises InvalidArgument `ID_MALFORMED`, NotFound `SESSION_UNKNOWN` or `VERSION_UNKNOWN`, Corrupt `INDEX_CORRUPT`
        or `CHECKSUM_MISMATCH`.
        """
        check_id("session", session_id)
        with self._index.lock:
            session = self._index.session(session_id)
            wanted = version or session.version
            if wanted == 0:
                return FoundManifest(session, 0, b"")
            row = self._index.version(session_id, wanted)
            self._uses.read(session_id, wanted, self._index.clock.monotonic_s())
            if wanted == known_version:
                return FoundManifest(session, wanted, b"")
            data = self._index.kv.get(keys.version_key(keys.MANIFEST, session_id, wanted))
        if data is None:
            text = f"the manifest of version {wanted} is gone from the index; check out another version"
            raise Corrupt("INDEX_CORRUPT", text, session_id=session_id, version=wanted)
        if hash128(data) != row.manifest_hash:
            text = f"the manifest of version {wanted} is damaged in the index; check out another version"
            raise Corrupt("CHECKSUM_MISMATCH", text, session_id=session_id, version=wanted)
        return FoundManifest(session, wanted, data)

    def largest(self, tenant: bytes) -> list[str]:
        """The sessions of a tenant whose newest versions are largest, for a text; looks at LOOKED_AT_MAX sessions."""
        sizes = []
        for session_id, session in islice(self._index.sessions(), LOOKED_AT_MAX):
            if session.tenant == tenant and session.version:
                found = self._index.kv.get(keys.version_key(keys.VERSION, session_id, session.version))
                size_bytes = VersionRow.decode(found).logical_bytes if found is not None else 0
                sizes.append((-size_bytes, session_id, session.title))
        return [
            f"{session_id} ({f'{title}, ' if title else ''}{format_bytes(-size)})"
            for size, session_id, title in nsmallest(NAMED_LARGEST_MAX, sizes)
        ]

    def newest(self, limit: int) -> list[tuple[str, SessionRow]]:
        """At most `limit` sessions, the last changed first."""
        rows = sorted(self._index.sessions(), key=lambda item: (-item[1].updated_unix_ms, item[0]))
        return rows[:limit]

    def versions(self, session_id: str, limit: int) -> list[Chained]:
        """At most `limit` kept versions, newest first. Raises as `manifest`."""
        check_id("session", session_id)
        with self._index.lock:
            self._index.session(session_id)
            chain = self._index.chain(session_id)
        return chain[::-1][:limit]

    def delete(self, session_id: str, request_id: str) -> None:
        """Removes the session with all versions; the collector frees what only they named. Durable when this returns.

        A repeat with the same request id succeeds. Raises InvalidArgument `ID_MALFORMED`, NotFound `SESSION_UNKNOWN`.
        """
        check_id("session", session_id)
        with self._index.lock:
            tombstone = self._index.kv.get(keys.tombstone_key(session_id))
            try:
                session = self._index.session(session_id)
            except NotFound:
                if tombstone is None or TombstoneRow.decode(tombstone).request_id != request_id:
                    raise
            else:
                self._index.kv.write(self._deletion(session_id, session, request_id))
                self._count -= 1
        self._index.kv.flush()

    def _new(self, batch: Batch, session_id: str, title: str, tenant: str) -> SessionRow:
        self._check_room()
        owner = self._tenants.make(tenant)
        epoch = 1
        tombstone = self._index.kv.get(keys.tombstone_key(session_id))
        if tombstone is not None:
            epoch += TombstoneRow.decode(tombstone).epoch
            batch.delete(keys.tombstone_key(session_id))
        now = self._index.clock.unix_ms()
        return SessionRow(epoch, 0, 0, now, now, title, tenant=owner)

    def _check_room(self) -> None:
        if self._count >= self._sessions_max:
            text = f"the store holds {self._count} sessions, its limit; delete some (`looseleaf session rm`)"
            raise CapacityExceeded("SESSIONS_FULL", text, sessions_max=self._sessions_max)

    def _deletion(self, session_id: str, session: SessionRow, request_id: str) -> Batch:
        batch = Batch()
        chain = self._index.chain(session_id)
        named = [self._index.refs(session_id, entry.version, entry.row).objects(session.tenant) for entry in chain]
        self._index.put_release(batch, count_runs(named))
        for entry in chain:
            self._index.delete_version(batch, session_id, entry.version)
        for version, _ in self._index.dropped_executions(session_id):
            batch.delete(keys.version_key(keys.EXECUTION, session_id, version))
        batch.delete(keys.session_key(session_id))
        tombstone = TombstoneRow(request_id, self._index.clock.unix_ms(), session.epoch)
        batch.put(keys.tombstone_key(session_id), tombstone.encode())
        return batch
