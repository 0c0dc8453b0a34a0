"""Tenants: one person or team each, the boundary of sharing and of quotas. Their keys begin their objects' names."""

from __future__ import annotations

from typing import Final

from looseleaf.errors import CapacityExceeded, Corrupt, NotFound
from looseleaf.ids import check_id
from looseleaf.kv import Batch, KvBackend, scan_all
from looseleaf.services.checkpoint_store.core import keys

DEFAULT_TENANT_NAME: Final = "default"


class Tenants:
    """Names and keys of at most `tenants_max` tenants beside the default one. A key is never given out twice."""

    def __init__(self, kv: KvBackend, tenants_max: int) -> None:
        self._kv = kv
        self._tenants_max = tenants_max
        self._keys = {DEFAULT_TENANT_NAME: keys.DEFAULT_TENANT}
        for row_key, tenant in scan_all(kv, keys.TENANT):
            if len(tenant) != keys.TENANT_KEY_BYTES:
                raise Corrupt("INDEX_CORRUPT", "a tenant's row of the store's index has a wrong shape", kind="tenant")
            self._keys[keys.tenant_name_of(row_key)] = tenant
        self._names = {tenant: name for name, tenant in self._keys.items()}
        self._next_key = int.from_bytes(max(self._names), "big") + 1

    def key(self, name: str) -> bytes:
        """Key of the tenant, of the default one for "". Raises NotFound `TENANT_UNKNOWN`."""
        found = self._keys.get(name or DEFAULT_TENANT_NAME)
        if found is None:
            raise NotFound("TENANT_UNKNOWN", f"the store has no tenant {name!r}: none of its sessions was ever opened")
        return found

    def name(self, tenant: bytes) -> str:
        """The tenant's name."""
        return self._names[tenant]

    def all(self) -> list[tuple[str, bytes]]:
        """Every tenant's name and key, by name."""
        return sorted(self._keys.items())

    def make(self, name: str) -> bytes:
        """Key of the tenant, which is entered if need be; the caller holds the index's lock, and flushes.

        Raises InvalidArgument `ID_MALFORMED`, CapacityExceeded `TENANTS_FULL`.
        """
        name = name or DEFAULT_TENANT_NAME
        if name not in self._keys:
            check_id("tenant", name)
            if len(self._keys) > self._tenants_max:
                text = f"the store knows {len(self._keys)} tenants, its limit; raise tenants_max"
                raise CapacityExceeded("TENANTS_FULL", text, tenants_max=self._tenants_max)
            tenant = self._next_key.to_bytes(keys.TENANT_KEY_BYTES, "big")
            # Taken even if the write fails: it may have happened all the same.
            self._next_key += 1
            batch = Batch()
            batch.put(keys.tenant_row_key(name), tenant)
            self._kv.write(batch)
            self._keys[name], self._names[tenant] = tenant, name
        return self._keys[name]
