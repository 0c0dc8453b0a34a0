"""The store as a whole: opens its folder, puts its parts together, closes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from looseleaf.clock import Clock, SystemClock
from looseleaf.kv import KvBackend, open_kv, scan_all
from looseleaf.services.checkpoint_store.admission import Admission
from looseleaf.services.checkpoint_store.collector import Collector
from looseleaf.services.checkpoint_store.commits import Commits
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.retention import Retention
from looseleaf.services.checkpoint_store.core.rows import RegionRow, UnitRow
from looseleaf.services.checkpoint_store.core.version_uses import VersionUses
from looseleaf.services.checkpoint_store.disk import Disk
from looseleaf.services.checkpoint_store.hosts import Hosts
from looseleaf.services.checkpoint_store.index import StoreIndex
from looseleaf.services.checkpoint_store.region_files import RegionFiles, sync_folder
from looseleaf.services.checkpoint_store.regions import Regions
from looseleaf.services.checkpoint_store.sessions import Sessions
from looseleaf.services.checkpoint_store.tenants import Tenants
from looseleaf.services.checkpoint_store.unit_codec import UnitCodec
from looseleaf.services.checkpoint_store.units import Units
from looseleaf.services.checkpoint_store.usage import Usage, UsageLimits, disk_bytes_of
from looseleaf.units import GIB, MIB


@dataclass(frozen=True)
class StoreLimits:
    """What the store may hold and keep; `looseleaf.config.StoreConfig` says more."""

    sessions_max: int = 10_000
    versions_kept_max: int = 20
    versions_kept_s: float = 0.0
    version_use_s: float = 0.0
    manifest_bytes_max: int = 8 * MIB
    stored_bytes_max: int = 256 * GIB
    tenants_max: int = 1_000
    tenant_bytes_max: int = 0
    session_bytes_max: int = 0
    compress_units: bool = True
    disk_free_bytes_min: int = 0
    orphan_grace_s: float = 600.0


class Store:
    """Every method of its parts blocks, may be called from any thread, and raises errors of ours only."""

    def __init__(
        self, kv: KvBackend, folder: Path, limits: StoreLimits, clock: Clock, disk: Disk | None = None
    ) -> None:
        self.index = StoreIndex(kv, clock)
        slots, used, self.index.damaged = _what_is_stored(kv)
        self.files = RegionFiles(folder / "regions", slots, disk)
        uses = VersionUses(limits.version_use_s, clock.monotonic_s())
        self.tenants = Tenants(kv, limits.tenants_max)
        self.sessions = Sessions(self.index, self.tenants, limits.sessions_max, uses)
        bounds = UsageLimits(limits.stored_bytes_max, limits.tenant_bytes_max, limits.disk_free_bytes_min)
        self.usage = Usage(folder, bounds, used, self.sessions.largest)
        self.units = Units(self.index, self.usage, UnitCodec(compress=limits.compress_units))
        self.regions = Regions(self.index, self.files, self.usage)
        self.commits = Commits(
            self.index, manifest_bytes_max=limits.manifest_bytes_max, session_bytes_max=limits.session_bytes_max
        )
        self.admission = Admission(self.index, self.regions, self.usage, limits.session_bytes_max)
        self.hosts = Hosts(self.index)
        self.collector = Collector(
            self.index, self.files, self.usage,
            retention=Retention(limits.versions_kept_max, int(limits.versions_kept_s * 1000)), uses=uses,
            grace_ms=int(limits.orphan_grace_s * 1000),
        )  # fmt: skip
        self._kv = kv

    def close(self) -> None:
        """Ends a running collection after its step, waits for region reads and writes, closes the database."""
        self.collector.stop()
        self.files.close()
        self._kv.close()


def open_store(
    folder: Path, limits: StoreLimits | None = None, *, kind: str = "rocksdb-py", clock: Clock | None = None
) -> Store:
    """Opens or creates the store in `folder`; raises as `open_kv`, and PreconditionFailed `STORE_FORMAT`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kv = open_kv(folder / "index", kind)
    try:
        store = Store(kv, folder, limits or StoreLimits(), clock or SystemClock())
        # What is durable in the folders below is so only if they are found again.
        sync_folder(folder)
        return store
    except BaseException:
        kv.close()
        raise


def _what_is_stored(kv: KvBackend) -> tuple[set[int], Counter[bytes], set[bytes]]:
    """The slots that the index names, the bytes of all units and regions by tenant, and the damaged regions' keys."""
    slots: set[int] = set()
    damaged: set[bytes] = set()
    used: Counter[bytes] = Counter()
    for key, data in scan_all(kv, keys.REGION):
        row = RegionRow.decode(data)
        if row.written_slot is not None:
            slots.add(row.written_slot)
        if row.damaged:
            damaged.add(key)
        used[keys.tenant_of(key)] += disk_bytes_of(row)
    for key, data in scan_all(kv, keys.UNIT):
        used[keys.tenant_of(key)] += UnitRow.decode(data).size_bytes
    return slots, used, damaged
