"""How many bytes the store and each tenant hold, and what may still come in."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from looseleaf.errors import CapacityExceeded
from looseleaf.services.checkpoint_store.core.rows import RegionRow
from looseleaf.units import KIB, format_bytes

# What a file system hands out.
BLOCK_BYTES: Final = 4 * KIB
RETRY_AFTER_S: Final = 5.0


def blocks_of(size_bytes: int) -> int:
    """Bytes of disk that `size_bytes` of content take."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def disk_bytes_of(row: RegionRow) -> int:
    """Bytes of the store's disk that a region takes."""
    return 0 if row.written_slot is None else blocks_of(row.length_bytes)


def _fits(size_bytes: int, rooms: Mapping[str, int]) -> bool:
    # What is there already needs no room, and is welcome on a full disk too.
    return size_bytes <= max(0, min(rooms.values()))


@dataclass(frozen=True)
class UsageLimits:
    """Bytes of units and regions: of all, of one tenant (0: as many as of all); what of the disk stays free."""

    bytes_max: int
    tenant_bytes_max: int = 0
    disk_free_bytes_min: int = 0


class Usage:
    """Counts bytes of units and regions by tenant. `largest(tenant)` names sessions to delete when there is no room."""

    def __init__(
        self, folder: Path, limits: UsageLimits, used: Mapping[bytes, int],
        largest: Callable[[bytes], Sequence[str]] = lambda tenant: (),
    ) -> None:  # fmt: skip
        self._folder = folder
        self._limits = limits
        self._largest = largest
        self._lock = threading.Lock()
        self._used = Counter(used)
        self._used_bytes = sum(used.values())
        # Of these, what was promised and is not written yet: the disk does not know of it.
        self._promised_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes held now, reservations included."""
        return self._used_bytes

    @property
    def bytes_max(self) -> int:
        """The limit of all tenants together."""
        return self._limits.bytes_max

    @property
    def tenant_bytes_max(self) -> int:
        """The limit of each tenant."""
        return min(self._limits.tenant_bytes_max or self.bytes_max, self.bytes_max)

    def of_tenant(self, tenant: bytes) -> int:
        """Bytes that a tenant holds now, reservations included."""
        return self._used[tenant]

    def reserve(self, tenant: bytes, size_bytes: int, *, later: bool = False) -> None:
        """Counts bytes that are about to be written; raises CapacityExceeded before any is.

        With `later` the room is kept for them until `arrived`.

        `TENANT_FULL` if the tenant's own limit is the nearest, else `STORE_FULL`; both carry `needed_bytes` and
        `available_bytes`, and say what to delete.
        """
        with self._lock:
            rooms = self._rooms(tenant)
            if _fits(size_bytes, rooms):
                self._used[tenant] += size_bytes
                self._used_bytes += size_bytes
                self._promised_bytes += size_bytes if later else 0
                return
        raise self._full(tenant, size_bytes, rooms)

    def fits(self, tenant: bytes, size_bytes: int) -> bool:
        """Whether `reserve` would take the bytes now."""
        with self._lock:
            return _fits(size_bytes, self._rooms(tenant))

    def check(self, tenant: bytes, size_bytes: int) -> None:
        """Raises as `reserve`; counts nothing."""
        with self._lock:
            rooms = self._rooms(tenant)
        if not _fits(size_bytes, rooms):
            raise self._full(tenant, size_bytes, rooms)

    def _rooms(self, tenant: bytes) -> dict[str, int]:
        # Asked under the lock: what arrives between the two would be counted as free and as no longer promised.
        disk = os.statvfs(self._folder)
        disk_bytes = disk.f_bavail * disk.f_frsize - self._limits.disk_free_bytes_min
        return {
            "tenant": self.tenant_bytes_max - self._used[tenant],
            "store": self.bytes_max - self._used_bytes,
            "disk": disk_bytes - self._promised_bytes,
        }

    def arrived(self, size_bytes: int) -> None:
        """Of the bytes reserved for later so many are written now, or never will be."""
        with self._lock:
            self._promised_bytes -= size_bytes

    def give_back(self, tenant: bytes, size_bytes: int) -> None:
        """Bytes that were freed, or reserved and not written."""
        with self._lock:
            self._used[tenant] -= size_bytes
            self._used_bytes -= size_bytes

    def _full(self, tenant: bytes, needed_bytes: int, rooms: Mapping[str, int]) -> CapacityExceeded:
        # Of equal ones the store's: a tenant without a limit of its own hears of no other.
        nearest = min(("store", "disk", "tenant"), key=lambda name: rooms[name])
        available_bytes = max(0, rooms[nearest])
        cure = {
            "tenant": "raise tenant_bytes_max", "store": "raise stored_bytes_max",
            "disk": f"free space on the disk of {self._folder}",
        }[nearest]  # fmt: skip
        largest = list(self._largest(tenant))
        examples = f"; the largest: {', '.join(largest)}" if largest else ""
        text = (
            f"the {'tenant' if nearest == 'tenant' else 'store'} needs {format_bytes(needed_bytes)} and has "
            f"{format_bytes(available_bytes)} left; nothing was stored: delete sessions you no longer need "
            f"(`looseleaf session rm`{examples}), or {cure}"
        )
        fields = {"needed_bytes": needed_bytes, "available_bytes": available_bytes, "largest_sessions": largest}
        if nearest == "tenant":
            return CapacityExceeded("TENANT_FULL", text, retry_after_s=RETRY_AFTER_S, **fields)
        return CapacityExceeded("STORE_FULL", text, retry_after_s=RETRY_AFTER_S, **fields)
