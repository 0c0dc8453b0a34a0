"""What happens to regions and sessions when a host no longer holds what its arena held."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from looseleaf.ids import check_id
from looseleaf.kv import Batch, scan_all
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.references import released_by_drops
from looseleaf.services.checkpoint_store.core.retention import Fallback, plan_fallback
from looseleaf.services.checkpoint_store.core.rows import (
    LastFallback,
    RegionRow,
    SessionRow,
    decode_optional_region,
)
from looseleaf.services.checkpoint_store.index import Chained, StoreIndex


@dataclass(frozen=True, slots=True)
class SessionFell:
    """A session whose newest version was lost."""

    session_id: str
    fallback: LastFallback


class Hosts:
    """Forgets regions of hosts."""

    def __init__(self, index: StoreIndex) -> None:
        self._index = index

    def forget(
        self, host_id: str, region_ids: Iterable[bytes], *, everything: bool, request_id: str,
        tenant: bytes = keys.DEFAULT_TENANT,
    ) -> list[SessionFell]:  # fmt: skip
        """A host's arena lost a tenant's `region_ids`, or `everything`; returns the sessions whose newest version went.

        A version that needs a lost region which nobody else holds is gone. Its session falls back to the newest version
        that lost nothing (at the least the last durable one) and its epoch rises: whoever still holds the lost state
        must open the session again. All in one write, durable when this returns; a repeat with the same request id
        answers the same. Raises InvalidArgument `ID_MALFORMED`.
        """
        check_id("host", host_id)
        with self._index.lock:
            named = None if everything else [keys.region_key(tenant, region_id) for region_id in region_ids]
            held = self._held(host_id, named)
            batch = Batch()
            lost: set[bytes] = set()
            for object_key, row in held.items():
                left = replace(row, hosts=tuple(host for host in row.hosts if host != host_id))
                batch.put(object_key, left.encode())
                batch.delete(keys.host_region_key(host_id, object_key))
                if row.refs and not left.located:
                    lost.add(object_key)
            fell = []
            for session_id, session in self._index.sessions():
                last = self._fall_back(batch, session_id, session, lost, request_id) if lost else None
                last = last or session.fallback
                if last is not None and last.request_id == request_id:
                    fell.append(SessionFell(session_id, last))
            self._index.kv.write(batch)
        self._index.kv.flush()
        return fell

    def _held(self, host_id: str, named: Iterable[bytes] | None) -> dict[bytes, RegionRow]:
        """Rows of what the host holds, by their keys: of all, or of those that have the keys `named`."""
        kv = self._index.kv
        if named is None:
            named = [keys.region_on_host(host_id, key) for key, _ in scan_all(kv, keys.host_prefix(host_id))]
        wanted = sorted(set(named))
        rows = zip(wanted, map(decode_optional_region, kv.multi_get(wanted)), strict=True)
        return {key: row for key, row in rows if row is not None and host_id in row.hosts}

    def _fall_back(
        self, batch: Batch, session_id: str, session: SessionRow, lost: set[bytes], request_id: str
    ) -> LastFallback | None:
        """Adds the session's fall to `batch`; None if its head survives."""
        chain = self._index.chain(session_id)
        mine = {keys.hash_of(key) for key in lost if keys.tenant_of(key) == session.tenant}
        torn = [entry.version for entry in chain if not entry.row.durable and self._names_any(session_id, entry, mine)]
        if not torn:
            return None
        plan = plan_fallback([entry.kept for entry in chain], torn, self._index.dropped_executions(session_id))
        if plan is None:
            return None
        self._drop(batch, session_id, session.tenant, chain, plan)
        if plan.version == session.version:
            return None
        last = LastFallback(request_id, session.version, plan.version, plan.lost_execution_ids)
        now = self._index.clock.unix_ms()
        fallen = replace(session, version=plan.version, epoch=session.epoch + 1, updated_unix_ms=now, fallback=last)
        batch.put(keys.session_key(session_id), fallen.encode())
        return last

    def _names_any(self, session_id: str, entry: Chained, lost: set[bytes]) -> bool:
        return not lost.isdisjoint(self._index.refs(session_id, entry.version, entry.row).regions)

    def _drop(self, batch: Batch, session_id: str, tenant: bytes, chain: list[Chained], plan: Fallback) -> None:
        named = [(e.version, self._index.refs(session_id, e.version, e.row).objects(tenant)) for e in chain]
        self._index.put_release(batch, released_by_drops(named, plan.drops))
        for version in plan.drops:
            self._index.delete_version(batch, session_id, version)
        for version, _ in self._index.dropped_executions(session_id):
            if version > plan.version:
                batch.delete(keys.version_key(keys.EXECUTION, session_id, version))
