"""What the store holds, counted row by row beside its work."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from looseleaf.kv import scan_all
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.rows import ZERO_SLOT, RegionRow, UnitRow
from looseleaf.services.checkpoint_store.store import Store
from looseleaf.services.checkpoint_store.usage import disk_bytes_of


@dataclass(frozen=True)
class TenantCounts:
    """What one tenant holds, and may hold."""

    tenant: str
    sessions: int
    used_bytes: int
    bytes_max: int


@dataclass
class StoreStats:
    """Counts and bytes; `logical_bytes` is of the sessions' newest versions, as if nothing were shared."""

    sessions: int = 0
    versions: int = 0
    durable_versions: int = 0
    logical_bytes: int = 0
    units: int = 0
    unit_bytes: int = 0
    regions: int = 0
    regions_on_disk: int = 0
    region_bytes: int = 0
    regions_staged: int = 0
    orphans: int = 0
    used_bytes: int = 0
    bytes_max: int = 0
    regions_zero: int = 0
    regions_damaged: int = 0
    tenants: list[TenantCounts] = field(default_factory=list)


def totals(store: Store) -> StoreStats:
    """Only what is known without reading every row."""
    return StoreStats(
        sessions=store.sessions.count, used_bytes=store.usage.used_bytes, bytes_max=store.usage.bytes_max,
        regions_damaged=len(store.index.damaged),
    )


def count_all(store: Store) -> StoreStats:
    """Reads every row once, without the index's lock: the counts are of slightly different moments."""
    kv = store.index.kv
    stats = StoreStats(used_bytes=store.usage.used_bytes, bytes_max=store.usage.bytes_max)
    sessions: Counter[bytes] = Counter()
    for session_id, session in store.index.sessions():
        sessions[session.tenant] += 1
        chain = store.index.chain(session_id)
        stats.sessions += 1
        stats.versions += len(chain)
        stats.durable_versions += sum(entry.row.durable for entry in chain)
        stats.logical_bytes += chain[-1].row.logical_bytes if chain else 0
    for _, data in scan_all(kv, keys.UNIT):
        stats.units += 1
        stats.unit_bytes += UnitRow.decode(data).size_bytes
    for _, data in scan_all(kv, keys.REGION):
        row = RegionRow.decode(data)
        stats.regions += 1
        stats.regions_on_disk += row.on_disk
        stats.regions_damaged += row.damaged
        stats.regions_zero += row.slot == ZERO_SLOT
        stats.region_bytes += disk_bytes_of(row)
        stats.regions_staged += row.slot is None and bool(row.hosts)
    stats.orphans = sum(1 for _ in scan_all(kv, keys.ORPHAN))
    for name, tenant in store.tenants.all():
        used_bytes = store.usage.of_tenant(tenant)
        if sessions[tenant] or used_bytes:
            bytes_max = store.usage.tenant_bytes_max
            stats.tenants.append(TenantCounts(name, sessions[tenant], used_bytes, bytes_max))
    return stats
