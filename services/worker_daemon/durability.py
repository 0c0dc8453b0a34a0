"""Brings staged versions to the store's disk in the background (design §7: staged, then durable)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import structlog

from looseleaf.errors import LooseLeafError
from looseleaf.ids import SessionId, Version
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.worker_daemon.core.region_table import RegionKey
from looseleaf.services.worker_daemon.regions import HostRegions

log = structlog.get_logger()

VERSIONS_WAITING_MAX = 4096
RETRY_DELAY_S = 2.0


@dataclass(frozen=True)
class _Staged:
    session_id: SessionId
    version: Version


class DurabilityQueue:
    """Uploads versions one after another, in the order of their commits.

    A version that cannot be uploaded now is tried again; until then its regions stay in the arena, and a full arena
    refuses new saves rather than lose a staged one.
    """

    def __init__(self, store: StoreClient, regions: HostRegions) -> None:
        self._store = store
        self._regions = regions
        self._queue: asyncio.Queue[_Staged] = asyncio.Queue(VERSIONS_WAITING_MAX)
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Versions that are staged and not durable yet."""
        return self._queue.qsize()

    def start(self) -> None:
        """Begins to upload."""
        self._task = asyncio.create_task(self._run())

    def add(self, session_id: SessionId, version: Version, _manifest: bytes) -> None:
        """A version was staged here. When the queue is full the version waits for its session's next one."""
        try:
            self._queue.put_nowait(_Staged(session_id, version))
        except asyncio.QueueFull:
            log.warning("durability_queue_full", session=session_id, version=version, limit=VERSIONS_WAITING_MAX)

    async def flushed(self) -> None:
        """Returns when everything added so far is durable or was given up."""
        await self._queue.join()

    async def _run(self) -> None:
        while True:
            staged = await self._queue.get()
            try:
                await self._upload(staged)
            finally:
                self._queue.task_done()

    async def _upload(self, staged: _Staged) -> None:
        while True:
            try:
                durable, missing = await self._store.mark_durable(staged.session_id, staged.version)
                if durable:
                    return
                await self._store.put_regions(self._read(missing))
                self._regions.made_durable(missing)
                durable, missing = await self._store.mark_durable(staged.session_id, staged.version)
                if durable:
                    log.info("version_durable", session=staged.session_id, version=staged.version)
                    return
                lost = [key for key in missing if key not in self._regions.table]
                if lost:
                    log.error(
                        "staged_regions_missing", session=staged.session_id, version=staged.version, regions=len(lost)
                    )
                    return
            except LooseLeafError as error:
                if error.code in ("NOT_FOUND", "FAILED_PRECONDITION"):
                    log.info(
                        "version_gone_before_durable",
                        session=staged.session_id,
                        version=staged.version,
                        reason=error.reason,
                    )
                    return
                log.warning("upload_failed", session=staged.session_id, version=staged.version, reason=error.reason)
            await asyncio.sleep(RETRY_DELAY_S)

    async def _read(self, keys: Sequence[RegionKey]) -> AsyncIterator[tuple[bytes, int, bytes]]:
        for key in keys:
            if (data := self._regions.read(key)) is not None:
                yield key[0], key[1], data
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Stops uploading; what is not durable is lost with this host's arena."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
