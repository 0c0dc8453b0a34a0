"""Whether a save would fit, asked before any of its bytes is copied; what comes then is still checked as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from looseleaf.checkpoint.session_size import session_full
from looseleaf.ids import check_id
from looseleaf.services.checkpoint_store.index import StoreIndex
from looseleaf.services.checkpoint_store.regions import Region, Regions
from looseleaf.services.checkpoint_store.usage import Usage, blocks_of

# Of so many regions what is on the disk already is always looked up: more parts of the same save may follow.
LOOKED_UP_MIN: Final = 4_096


class Admission:
    """Quotas of a session and of its tenant, for a save that has not begun. It promises nothing: two may both fit."""

    def __init__(self, index: StoreIndex, regions: Regions, usage: Usage, session_bytes_max: int) -> None:
        self._index = index
        self._regions = regions
        self._usage = usage
        self._session_bytes_max = session_bytes_max

    def check(self, session_id: str, session_bytes: int, regions: Sequence[Region], already_bytes: int = 0) -> int:
        """Returns if a version of `session_bytes` that puts `regions`, each named once, on the disk would fit now.

        What is on the disk already needs no room. `already_bytes`: what this returned for earlier parts of the same
        save, together; it returns the bytes of this part, of fewer regions than LOOKED_UP_MIN the most that they could
        be. Raises CapacityExceeded `SESSION_FULL`, `TENANT_FULL` or `STORE_FULL`
        with `needed_bytes` and `available_bytes`, NotFound `SESSION_UNKNOWN`, InvalidArgument as `Region.check`.
        """
        check_id("session", session_id)
        tenant = self._index.session(session_id).tenant
        if 0 < self._session_bytes_max < session_bytes:
            raise session_full(session_bytes, self._session_bytes_max)
        new_bytes = sum(blocks_of(region.length_bytes) for region in regions)
        is_part = already_bytes > 0 or len(regions) >= LOOKED_UP_MIN
        if not is_part and self._usage.fits(tenant, new_bytes):
            return new_bytes
        # Only then row by row: what most saves write fits by far.
        rows = self._regions.locate(regions, tenant)
        fresh = [region for region, row in zip(regions, rows, strict=True) if row is None or not row.on_disk]
        new_bytes = sum(blocks_of(region.length_bytes) for region in fresh)
        self._usage.check(tenant, already_bytes + new_bytes if new_bytes else 0)
        return new_bytes
