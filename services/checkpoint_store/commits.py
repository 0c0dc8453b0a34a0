"""Commits: a manifest becomes a session's newest version, all at once, and later durable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from looseleaf.checkpoint.manifest import Manifest, decode_manifest
from looseleaf.checkpoint.session_size import check_size
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import InvalidArgument
from looseleaf.ids import check_id
from looseleaf.kv import Batch
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.commit import (
    CommitRequest,
    RegionPlan,
    check_commit,
    check_manifest,
    is_repeat,
    missing_error,
    plan_regions,
)
from looseleaf.services.checkpoint_store.core.references import VersionRefs
from looseleaf.services.checkpoint_store.core.rows import SessionRow, VersionRow
from looseleaf.services.checkpoint_store.index import StoreIndex
from looseleaf.units import REGION_BYTES

NO_REFS: Final = VersionRefs()


@dataclass(frozen=True, slots=True)
class Committed:
    """The new head, and whether the store's disk holds all its regions already."""

    version: int
    durable: bool


class Commits:
    """Commit and MarkDurable."""

    def __init__(self, index: StoreIndex, *, manifest_bytes_max: int, session_bytes_max: int) -> None:
        self._index = index
        self._manifest_bytes_max = manifest_bytes_max
        self._session_bytes_max = session_bytes_max

    def commit(
        self, session_id: str, *, epoch: int, parent: int, execution_id: str, manifest: bytes, host_id: str
    ) -> Committed:
        """Makes `manifest` the session's newest version: one write of head, manifest, references and locations.

        Survives a loss of power when it returns. The same execution committing the same bytes again succeeds.
        Raises, with nothing changed: InvalidArgument `ID_MALFORMED`, `MANIFEST_TOO_LARGE`, `MANIFEST_MISMATCH` or
        `REGION_LENGTH`, what `decode_manifest` raises, NotFound `SESSION_UNKNOWN`, PreconditionFailed `STALE_EPOCH`,
        `UNITS_MISSING` or `REGIONS_UNKNOWN`, Conflict `MANIFEST_MOVED`, CapacityExceeded `SESSION_FULL`.
        """
        check_id("session", session_id)
        check_id("execution", execution_id)
        if host_id:
            check_id("host", host_id)
        if len(manifest) > self._manifest_bytes_max:
            text = f"the manifest has {len(manifest)} bytes, more than the store's limit; nothing was saved"
            raise InvalidArgument("MANIFEST_TOO_LARGE", text, bytes_max=self._manifest_bytes_max)
        # The slow parts need no lock: they depend on the bytes alone.
        decoded = decode_manifest(manifest)
        request = CommitRequest(session_id, epoch, parent, execution_id, host_id, hash128(manifest))
        check_manifest(decoded, request)
        refs = VersionRefs.of(decoded)
        if max(refs.regions.values(), default=0) > REGION_BYTES:
            text = f"the manifest has regions of more than {REGION_BYTES} bytes; nothing was saved"
            raise InvalidArgument("REGION_LENGTH", text)
        with self._index.lock:
            committed = self._repeated(request)
            if committed is None:
                check_size(decoded, self._session_bytes_max)
                committed = self._append(request, manifest, decoded, refs)
        self._index.kv.flush()
        return committed

    def mark_durable(self, session_id: str, version: int) -> tuple[bool, list[tuple[bytes, int]]]:
        """Marks a version durable if the store's disk holds all its regions, else returns those that are missing.

        Durable when it returns. Raises InvalidArgument `ID_MALFORMED`, NotFound `SESSION_UNKNOWN`, `VERSION_UNKNOWN`.
        """
        check_id("session", session_id)
        with self._index.lock:
            session = self._index.session(session_id)
            row = self._index.version(session_id, version)
            if not row.durable:
                refs = self._index.refs(session_id, version, row)
                missing = self._not_on_disk(session.tenant, refs.regions)
                if missing:
                    return False, [(region_id, refs.regions[region_id]) for region_id in missing]
                batch = Batch()
                batch.put(keys.version_key(keys.VERSION, session_id, version), replace(row, durable=True).encode())
                head = replace(session, durable_version=max(session.durable_version, version))
                batch.put(keys.session_key(session_id), head.encode())
                self._index.kv.write(batch)
        self._index.kv.flush()
        return True, []

    def _repeated(self, request: CommitRequest) -> Committed | None:
        self._index.session(request.session_id)
        found = self._index.kv.get(keys.version_key(keys.VERSION, request.session_id, request.version))
        row = None if found is None else VersionRow.decode(found)
        if row is None or not is_repeat(request, row):
            return None
        return Committed(request.version, row.durable)

    def _append(self, request: CommitRequest, manifest: bytes, decoded: Manifest, refs: VersionRefs) -> Committed:
        session = self._index.session(request.session_id)
        check_commit(request, session)
        parent_row = self._index.version(request.session_id, request.parent) if request.parent else None
        parent = NO_REFS if parent_row is None else self._index.refs(request.session_id, request.parent, parent_row)
        batch = Batch()
        self._add_units(batch, session.tenant, refs.units - parent.units)
        plan = self._add_regions(batch, session.tenant, refs, parent, request.host_id)
        carried = refs.regions.keys() & parent.regions.keys()
        carried_durable = parent_row is None or parent_row.durable
        durable = plan.durable and (carried_durable or not self._not_on_disk(session.tenant, carried))
        # So that what is damaged is taken again from the host that saves, if it has it.
        durable = durable and not self._names_damaged(session.tenant, refs)
        now = self._index.clock.unix_ms()
        version_row = VersionRow(
            request.parent, request.epoch, request.execution_id, now, durable, decoded.logical_bytes(),
            len(decoded.roots), request.host_id, request.manifest_hash, decoded.lazy_bytes(),
        )  # fmt: skip
        for kind, value in (
            (keys.VERSION, version_row.encode()), (keys.MANIFEST, manifest), (keys.REFS, refs.encode()),
        ):  # fmt: skip
            batch.put(keys.version_key(kind, request.session_id, request.version), value)
        head = _moved_head(session, request.version, durable, now)
        batch.put(keys.session_key(request.session_id), head.encode())
        self._index.kv.write(batch)
        self._index.remember_refs(request.manifest_hash, refs)
        return Committed(request.version, durable)

    def _add_units(self, batch: Batch, tenant: bytes, added: Iterable[bytes]) -> None:
        rows = self._index.unit_rows(tenant, sorted(added))
        missing = [unit_hash for unit_hash, row in rows.items() if row is None]
        if missing:
            raise missing_error("UNITS_MISSING", "units", missing)
        for unit_hash, row in rows.items():
            assert row is not None
            unit_key = keys.unit_key(tenant, unit_hash)
            batch.put(unit_key, replace(row, refs=row.refs + 1).encode())
            if row.refs == 0:
                batch.delete(keys.orphan_key(unit_key))

    def _add_regions(
        self, batch: Batch, tenant: bytes, refs: VersionRefs, parent: VersionRefs, host_id: str
    ) -> RegionPlan:
        added = {
            region_id: length for region_id, length in refs.regions.items() if parent.regions.get(region_id) != length
        }
        plan = plan_regions(added, self._index.region_rows(tenant, sorted(added)), host_id)
        for region_id, row in plan.rows.items():
            batch.put(keys.region_key(tenant, region_id), row.encode())
        for region_id in plan.revived:
            batch.delete(keys.orphan_key(keys.region_key(tenant, region_id)))
        for region_id in plan.held:
            batch.put(keys.host_region_key(host_id, keys.region_key(tenant, region_id)), b"")
        return plan

    def _names_damaged(self, tenant: bytes, refs: VersionRefs) -> bool:
        damaged = self._index.damaged
        return bool(damaged) and any(keys.region_key(tenant, region_id) in damaged for region_id in refs.regions)

    def _not_on_disk(self, tenant: bytes, region_ids: Iterable[bytes]) -> list[bytes]:
        rows = self._index.region_rows(tenant, sorted(region_ids))
        return [region_id for region_id, row in rows.items() if row is None or not row.on_disk]


def _moved_head(session: SessionRow, version: int, durable: bool, now_unix_ms: int) -> SessionRow:
    return replace(
        session,
        version=version,
        durable_version=version if durable else session.durable_version,
        updated_unix_ms=now_unix_ms,
    )
