"""The operator's requests: counts, checks, backups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from looseleaf.rpc.dedupe import RequestMemory
from looseleaf.services.checkpoint_store.copying import Copied, check_backup_folder, copy_durable
from looseleaf.services.checkpoint_store.servicer import RunBlocking
from looseleaf.services.checkpoint_store.stats import count_all, totals
from looseleaf.services.checkpoint_store.store import Store
from looseleaf.services.checkpoint_store.verifier import verify_bytes, verify_index
from looseleaf.v1 import checkpoint_store_admin_pb2 as pb
from looseleaf.v1.checkpoint_store_admin_pb2_grpc import CheckpointStoreAdminServiceServicer


class CheckpointStoreAdminServicer(CheckpointStoreAdminServiceServicer):
    """`open_folder` opens the store in another folder, with this store's limits. One copy is made at a time."""

    def __init__(
        self, store: Store, run_blocking: RunBlocking, memory: RequestMemory, open_folder: Callable[[Path], Store]
    ) -> None:
        self._store = store
        self._blocking = run_blocking
        self._memory = memory
        self._open_folder = open_folder
        self._copying = asyncio.Lock()

    async def GetStoreStats(self, request: pb.GetStoreStatsRequest, context: Any) -> pb.GetStoreStatsResponse:
        stats = totals(self._store) if request.totals_only else await self._blocking(count_all, self._store)
        return pb.GetStoreStatsResponse(**asdict(stats), last_collection=self._last_collection())

    def _last_collection(self) -> pb.LastCollection | None:
        last = self._store.collector.last
        if last is None:
            return None
        ended_s, freed = last
        return pb.LastCollection(ended_s_ago=self._store.index.clock.monotonic_s() - ended_s, **asdict(freed))

    async def VerifyStore(
        self, request: pb.VerifyStoreRequest, context: Any
    ) -> AsyncIterator[pb.VerifyStoreResponse]:
        yield pb.VerifyStoreResponse(problems=await self._blocking(verify_index, self._store.index))
        if request.bytes:
            parts = verify_bytes(self._store)
            checked = 0
            while (part := await self._blocking(next, parts, None)) is not None:
                checked += part[0]
                yield pb.VerifyStoreResponse(checked=checked, problems=part[1])

    async def BackupStore(self, request: pb.BackupStoreRequest, context: Any) -> pb.BackupStoreResponse:
        async def work() -> pb.BackupStoreResponse:
            folder = check_backup_folder(request.folder, empty=True)
            async with self._copying:
                return pb.BackupStoreResponse(copied=_message(await self._blocking(self._copy, folder, True)))

        answer: pb.BackupStoreResponse = await self._memory.once(request, work)
        return answer

    async def RestoreStore(self, request: pb.RestoreStoreRequest, context: Any) -> pb.RestoreStoreResponse:
        async def work() -> pb.RestoreStoreResponse:
            folder = check_backup_folder(request.folder, empty=False)
            async with self._copying:
                return pb.RestoreStoreResponse(copied=_message(await self._blocking(self._copy, folder, False)))

        answer: pb.RestoreStoreResponse = await self._memory.once(request, work)
        return answer

    def _copy(self, folder: Path, outwards: bool) -> Copied:
        other = self._open_folder(folder)
        try:
            return copy_durable(self._store, other) if outwards else copy_durable(other, self._store)
        finally:
            other.close()


def _message(copied: Copied) -> pb.CopiedStore:
    behind = [
        pb.CopiedBehind(session_id=session_id, version=version, copied_version=copied_version)
        for session_id, version, copied_version in copied.behind
    ]
    return pb.CopiedStore(
        sessions=copied.sessions, versions=copied.versions, units=copied.units, regions=copied.regions, behind=behind
    )
