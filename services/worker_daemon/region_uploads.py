"""Sends regions of the arena to the store's disk: by shared memory where the store is on this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final

import structlog

from looseleaf.errors import PreconditionFailed, Unsupported
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.worker_daemon.core.region_table import RegionKey, Slot
from looseleaf.services.worker_daemon.region_sources import region_ref
from looseleaf.services.worker_daemon.regions import HostRegions
from looseleaf.units import REGION_BYTES
from looseleaf.v1 import shared_regions_pb2 as pb

log = structlog.get_logger()

# 128 MiB a call: what a store that restarts meanwhile has to take again, for each of ...
TAKE_REGIONS_MAX: Final = 64
# ... the calls at once.
TAKES_MAX: Final = 2
TAKE_TIMEOUT_S: Final = 120.0


class RegionUploads:
    """`shared`: the store's SharedRegionService; it is asked until it says once that it does not share memory."""

    def __init__(self, store: StoreClient, shared: Any, regions: HostRegions) -> None:
        self._store = store
        self._shared = shared
        self._regions = regions
        self._shares = True

    async def put(self, keys: Sequence[RegionKey]) -> None:
        """Those of `keys` that the arena holds are on the store's disk, durable, when it returns.

        Raises as `StoreClient.put_regions`; what was stored by then stays.
        """
        hold = object()
        slots = {key: slot for key in keys if (slot := self._regions.table.pin(key, hold)) is not None}
        try:
            if not self._shares or not await self._share(slots):
                await self._store.put_regions(self._copies(slots), sum(length for _id, length in slots))
        finally:
            self._regions.unpin(hold)

    async def _share(self, slots: Mapping[RegionKey, Slot]) -> bool:
        """False if the store does not read this host's memory."""
        parts = _parts(list(slots.items()))

        async def take() -> None:
            for part in parts:
                await self._shared.TakeRegions(self._request(part), timeout_s=TAKE_TIMEOUT_S)

        # While the disk syncs one part, the next is written.
        ends = await asyncio.gather(*(take() for _ in range(TAKES_MAX)), return_exceptions=True)
        for error in ends:
            if isinstance(error, BaseException) and not _not_shared(error):
                raise error
        for error in filter(_not_shared, ends):
            log.info("store_memory_not_shared", why=str(error))
            self._shares = False
        return self._shares

    def _request(self, part: Sequence[tuple[RegionKey, Slot]]) -> pb.TakeRegionsRequest:
        numbers = sorted({slot.segment for _key, slot in part})
        fds = [self._regions.arena.readonly_fd(number) for number in numbers]
        return pb.TakeRegionsRequest(
            pid=os.getpid(),
            tenant=self._store.tenant,
            segments=[pb.MemorySegment(fd=fd, inode=os.fstat(fd).st_ino) for fd in fds],
            regions=[
                pb.SharedRegion(
                    region=region_ref(key),
                    segment=numbers.index(slot.segment),
                    offset_bytes=slot.index * REGION_BYTES,
                )
                for key, slot in part
            ],
        )

    async def _copies(self, slots: Mapping[RegionKey, Slot]) -> AsyncIterator[tuple[bytes, int, bytes]]:
        for (region_id, length_bytes), slot in slots.items():
            yield region_id, length_bytes, bytes(self._regions.arena.view(slot, length_bytes))
            await asyncio.sleep(0)


def _parts(items: list[tuple[RegionKey, Slot]]) -> Iterator[list[tuple[RegionKey, Slot]]]:
    return (items[start : start + TAKE_REGIONS_MAX] for start in range(0, len(items), TAKE_REGIONS_MAX))


def _not_shared(end: object) -> bool:
    """Whether a call ended because the store reads no memory of this host, or knows no such call."""
    return isinstance(end, Unsupported) or (isinstance(end, PreconditionFailed) and end.reason == "MEMORY_NOT_SHARED")
