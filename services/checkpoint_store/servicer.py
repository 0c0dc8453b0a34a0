"""Messages in, parts of the store called on threads, messages out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from looseleaf.errors import CapacityExceeded, InvalidArgument
from looseleaf.logs import get_logger
from looseleaf.rpc.dedupe import RequestMemory
from looseleaf.services.checkpoint_store.collector import Collected
from looseleaf.services.checkpoint_store.core.rows import SessionRow
from looseleaf.services.checkpoint_store.metrics import StoreMetrics
from looseleaf.services.checkpoint_store.regions import Region, RegionUpload
from looseleaf.services.checkpoint_store.store import Store
from looseleaf.services.checkpoint_store.turns import Turns
from looseleaf.units import MIB
from looseleaf.v1 import checkpoint_pb2 as cp
from looseleaf.v1 import checkpoint_store_pb2 as pb
from looseleaf.v1.checkpoint_store_pb2_grpc import CheckpointStoreServiceServicer

T = TypeVar("T")
# A method of the service that runs blocking calls: `Service.run_blocking`.
RunBlocking = Callable[..., Awaitable[Any]]

# Objects that one request may name.
NAMED_MAX: Final = 100_000
LIST_DEFAULT: Final = 1_000
LIST_MAX: Final = 10_000
# What a stream gathers before it goes to a thread, and what it fetches ahead of its reader.
UNITS_BATCH_BYTES: Final = 4 * MIB
UNITS_BATCH_MAX: Final = 1_024
UNITS_READ_MAX: Final = 16
REGIONS_BATCH_MAX: Final = 4
# Streams at once, each way; each holds UNITS_BATCH_BYTES or UNITS_READ_MAX units in memory ...
UNIT_STREAMS_MAX: Final = 32
# ... or REGIONS_BATCH_MAX regions. What comes beyond waits for its turn within its deadline; so many of each kind.
REGION_STREAMS_MAX: Final = 16
STREAMS_WAITING_MAX: Final = 256
# How often a save without room may ask for a collection, and how long it waits for one: less than its call may take.
COLLECTED_FOR_ROOM_S: Final = 10.0

log = get_logger()


class CheckpointStoreServicer(CheckpointStoreServiceServicer):
    """Never unpickles; each mutating unary call runs once per request id."""

    def __init__(
        self, store: Store, run_blocking: RunBlocking, memory: RequestMemory, metrics: StoreMetrics,
        streams_waiting_max: int = STREAMS_WAITING_MAX,
    ) -> None:  # fmt: skip
        self._store = store
        self._blocking = run_blocking
        self._memory = memory
        self._metrics = metrics
        self._unit_puts = Turns("puts of units", UNIT_STREAMS_MAX, streams_waiting_max)
        self._unit_gets = Turns("reads of units", UNIT_STREAMS_MAX, streams_waiting_max)
        self._uploads = Turns("uploads of regions", REGION_STREAMS_MAX, streams_waiting_max)
        self._downloads = Turns("reads of regions", REGION_STREAMS_MAX, streams_waiting_max)
        metrics.follow(
            units=self._unit_puts, uploads=self._uploads, unit_reads=self._unit_gets, region_reads=self._downloads
        )  # fmt: skip
        self._aborting: set[asyncio.Future[None]] = set()
        self._collecting = asyncio.Lock()
        self._collecting_for_room: asyncio.Future[Collected] | None = None

    async def collect(self) -> Collected:
        """One run of the collector; a second caller waits here, not on one of the few threads."""
        async with self._collecting:
            freed: Collected = await self._blocking(self._store.collector.collect)
        self._metrics.collected(freed)
        return freed

    async def drain(self) -> None:
        """Waits for what goes on after its call has ended; for `Service.on_stop`."""
        await self._memory.drain()
        await asyncio.gather(*self._aborting, return_exceptions=True)

    async def OpenSession(self, request: pb.OpenSessionRequest, context: Any) -> pb.OpenSessionResponse:
        async def work() -> pb.OpenSessionResponse:
            row = await self._blocking(
                self._store.sessions.open, request.session_id,
                create=request.create, raise_epoch=request.raise_epoch, title=request.title, tenant=request.tenant,
            )  # fmt: skip
            return pb.OpenSessionResponse(head=self._head(request.session_id, row))

        return await self._once(request, work)

    async def PutUnits(self, request_iterator: AsyncIterator[pb.PutUnitsRequest], context: Any) -> pb.PutUnitsResponse:
        stored = 0
        batch: list[tuple[bytes, bytes]] = []
        size_bytes = 0
        tenant: bytes | None = None
        async with self._unit_puts:
            async for request in request_iterator:
                if tenant is None:
                    tenant = self._store.tenants.key(request.tenant)
                batch.append((request.unit.unit_hash, request.unit.data))
                size_bytes += len(request.unit.data)
                if size_bytes >= UNITS_BATCH_BYTES or len(batch) >= UNITS_BATCH_MAX:
                    stored += await self._with_room(self._store.units.put, batch, tenant)
                    batch, size_bytes = [], 0
            if batch:
                stored += await self._with_room(self._store.units.put, batch, tenant)
        return pb.PutUnitsResponse(stored=stored)

    async def GetUnits(self, request: pb.GetUnitsRequest, context: Any) -> AsyncIterator[pb.GetUnitsResponse]:
        hashes = list(request.unit_hashes)
        _check_count(hashes)
        tenant = self._store.tenants.key(request.tenant)
        async with self._unit_gets:
            for start in range(0, len(hashes), UNITS_READ_MAX):
                wanted = hashes[start : start + UNITS_READ_MAX]
                units = await self._blocking(self._store.units.get, wanted, tenant)
                for unit_hash, data in zip(wanted, units, strict=True):
                    yield pb.GetUnitsResponse(unit=cp.UnitBlob(unit_hash=unit_hash, data=data))

    async def CommitVersion(self, request: pb.CommitVersionRequest, context: Any) -> pb.CommitVersionResponse:
        # Not remembered by request id: the store itself knows a repeated commit by its execution and bytes, for good.
        _check_request_id(request.request_id)
        committed = await self._blocking(
            self._store.commits.commit, request.session_id,
            epoch=request.epoch, parent=request.parent, execution_id=request.execution_id,
            manifest=request.manifest, host_id=request.host_id,
        )  # fmt: skip
        return pb.CommitVersionResponse(version=committed.version, durable=committed.durable)

    async def GetManifest(self, request: pb.GetManifestRequest, context: Any) -> pb.GetManifestResponse:
        found = await self._blocking(
            self._store.sessions.manifest, request.session_id, request.version, request.known_version
        )
        head = self._head(request.session_id, found.session)
        return pb.GetManifestResponse(head=head, version=found.version, manifest=found.manifest)

    async def PutRegions(
        self, request_iterator: AsyncIterator[pb.PutRegionsRequest], context: Any
    ) -> pb.PutRegionsResponse:
        async with self._uploads:
            first = await anext(aiter(request_iterator), None)
            if first is None:
                return pb.PutRegionsResponse()
            tenant = self._store.tenants.key(first.tenant)
            upload = self._store.regions.begin_upload(tenant)
            try:
                # In here: a call that is cancelled leaves its thread running, and what that reserves must come back.
                await self._blocking(upload.reserve, first.stream_bytes)
                async for batch in _region_batches(first, request_iterator):
                    await self._blocking(upload.add, batch)
                stored = await self._blocking(upload.finish)
            except BaseException:
                # Not awaited: a client that went away has cancelled this call, and so any wait in it.
                self._abort(upload)
                raise
        return pb.PutRegionsResponse(stored=stored)

    async def GetRegions(self, request: pb.GetRegionsRequest, context: Any) -> AsyncIterator[pb.GetRegionsResponse]:
        regions = _regions(request.regions)
        tenant = self._store.tenants.key(request.tenant)
        async with self._downloads:
            for start in range(0, len(regions), REGIONS_BATCH_MAX):
                wanted = regions[start : start + REGIONS_BATCH_MAX]
                found = await self._blocking(self._store.regions.get, wanted, tenant)
                for region, data in zip(wanted, found, strict=True):
                    yield pb.GetRegionsResponse(chunk=cp.RegionChunk(region=_ref(region), data=data))

    async def LocateRegions(self, request: pb.LocateRegionsRequest, context: Any) -> pb.LocateRegionsResponse:
        regions = _regions(request.regions)
        rows = await self._blocking(self._store.regions.locate, regions, self._store.tenants.key(request.tenant))
        return pb.LocateRegionsResponse(locations=[
            cp.RegionLocation(
                region=_ref(region), host_ids=row.hosts if row else (), durable=row is not None and row.on_disk
            )
            for region, row in zip(regions, rows, strict=True)
        ])

    async def AdmitSave(self, request: pb.AdmitSaveRequest, context: Any) -> pb.AdmitSaveResponse:
        asked = request.session_id, request.session_bytes, _regions(request.regions), request.already_bytes
        return pb.AdmitSaveResponse(new_bytes=await self._with_room(self._store.admission.check, *asked))

    async def _with_room(self, call: Callable[..., Any], *args: Any) -> Any:
        """`call(*args)` on a thread, which does nothing where there is no room; then once more after a collection."""
        try:
            return await self._blocking(call, *args)
        except CapacityExceeded as error:
            # What nothing names is counted until a collection.
            if error.reason not in ("TENANT_FULL", "STORE_FULL") or not await self._collect_for_room():
                raise
        return await self._blocking(call, *args)

    async def _collect_for_room(self) -> bool:
        """Runs the collector, at most every COLLECTED_FOR_ROOM_S; whether it makes sense to look again for room.

        All who wait share one run. One that takes long goes on after they have gone.
        """
        if self._collecting_for_room is None:
            last, now_s = self._store.collector.last, self._store.index.clock.monotonic_s()
            if last is not None and now_s - last[0] < COLLECTED_FOR_ROOM_S:
                return False
            self._collecting_for_room = asyncio.ensure_future(self.collect())
            self._collecting_for_room.add_done_callback(self._collected_for_room)
        run = self._collecting_for_room
        await asyncio.wait([run], timeout=COLLECTED_FOR_ROOM_S)
        return run.done() and not run.cancelled() and run.exception() is None

    def _collected_for_room(self, run: asyncio.Future[Collected]) -> None:
        self._collecting_for_room = None
        if not run.cancelled() and (error := run.exception()) is not None:
            log.warning("garbage_collection_failed", reason=str(getattr(error, "reason", type(error))))

    async def ForgetHostRegions(
        self, request: pb.ForgetHostRegionsRequest, context: Any
    ) -> pb.ForgetHostRegionsResponse:
        async def work() -> pb.ForgetHostRegionsResponse:
            region_ids = [region.region_id for region in _regions(request.regions)]
            fell = await self._blocking(
                self._store.hosts.forget, request.host_id, region_ids,
                everything=request.all, request_id=request.request_id, tenant=self._store.tenants.key(request.tenant),
            )  # fmt: skip
            self._metrics.fallbacks.inc(len(fell))
            return pb.ForgetHostRegionsResponse(fallbacks=[
                pb.SessionFallback(
                    session_id=item.session_id, lost_version=item.fallback.lost_version,
                    version=item.fallback.version, lost_execution_ids=item.fallback.lost_execution_ids,
                )
                for item in fell
            ])  # fmt: skip

        return await self._once(request, work)

    async def MarkDurable(self, request: pb.MarkDurableRequest, context: Any) -> pb.MarkDurableResponse:
        # Not remembered: "not yet" is no answer to keep, and asking twice changes nothing.
        _check_request_id(request.request_id)
        durable, missing = await self._blocking(self._store.commits.mark_durable, request.session_id, request.version)
        named = [cp.RegionRef(region_id=region_id, length_bytes=length) for region_id, length in missing[:NAMED_MAX]]
        return pb.MarkDurableResponse(durable=durable, missing=named)

    async def ListSessions(self, request: pb.ListSessionsRequest, context: Any) -> pb.ListSessionsResponse:
        rows = await self._blocking(self._store.sessions.newest, _limit(request.limit))
        return pb.ListSessionsResponse(sessions=[self._head(session_id, row) for session_id, row in rows])

    async def ListVersions(self, request: pb.ListVersionsRequest, context: Any) -> pb.ListVersionsResponse:
        chain = await self._blocking(self._store.sessions.versions, request.session_id, _limit(request.limit))
        return pb.ListVersionsResponse(versions=[
            cp.VersionInfo(
                version=entry.version, parent=entry.row.parent, epoch=entry.row.epoch,
                execution_id=entry.row.execution_id, created_unix_ms=entry.row.created_unix_ms,
                durable=entry.row.durable, logical_bytes=entry.row.logical_bytes, roots=entry.row.roots,
                lazy_bytes=entry.row.lazy_bytes,
            )
            for entry in chain
        ])  # fmt: skip

    async def DeleteSession(self, request: pb.DeleteSessionRequest, context: Any) -> pb.DeleteSessionResponse:
        async def work() -> pb.DeleteSessionResponse:
            await self._blocking(self._store.sessions.delete, request.session_id, request.request_id)
            return pb.DeleteSessionResponse()

        return await self._once(request, work)

    async def CollectGarbage(self, request: pb.CollectGarbageRequest, context: Any) -> pb.CollectGarbageResponse:
        async def work() -> pb.CollectGarbageResponse:
            freed = await self.collect()
            return pb.CollectGarbageResponse(
                versions_dropped=freed.versions_dropped, units_deleted=freed.units_deleted,
                regions_deleted=freed.regions_deleted,
            )  # fmt: skip

        return await self._once(request, work)

    def _head(self, session_id: str, row: SessionRow) -> cp.SessionHead:
        return cp.SessionHead(
            session_id=session_id, version=row.version, durable_version=row.durable_version, epoch=row.epoch,
            created_unix_ms=row.created_unix_ms, updated_unix_ms=row.updated_unix_ms, title=row.title,
            tenant=self._store.tenants.name(row.tenant),
        )  # fmt: skip

    async def _once(self, request: Any, work: Callable[[], Awaitable[T]]) -> T:
        answer: T = await self._memory.once(request, work)
        return answer

    def _abort(self, upload: RegionUpload) -> None:
        task = asyncio.ensure_future(self._blocking(upload.abort))
        self._aborting.add(task)
        task.add_done_callback(self._aborted)

    def _aborted(self, task: asyncio.Future[None]) -> None:
        self._aborting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Its slots and their bytes come back at the next start.
            log.error("upload_not_aborted", exc_info=error)


async def _region_batches(
    first: pb.PutRegionsRequest, others: AsyncIterator[pb.PutRegionsRequest]
) -> AsyncIterator[list[tuple[Region, bytes]]]:
    batch = [_chunk(first)]
    async for request in others:
        batch.append(_chunk(request))
        if len(batch) >= REGIONS_BATCH_MAX:
            yield batch
            batch = []
    if batch:
        yield batch


def _chunk(request: pb.PutRegionsRequest) -> tuple[Region, bytes]:
    region = request.chunk.region
    return Region(region.region_id, region.length_bytes), request.chunk.data


def _ref(region: Region) -> cp.RegionRef:
    return cp.RegionRef(region_id=region.region_id, length_bytes=region.length_bytes)


def _regions(refs: Sequence[cp.RegionRef]) -> list[Region]:
    _check_count(refs)
    return [Region(ref.region_id, ref.length_bytes) for ref in refs]


def _check_count(named: Sequence[Any]) -> None:
    if len(named) > NAMED_MAX:
        text = f"a request names {len(named)} objects; at most {NAMED_MAX} are allowed, ask in parts"
        raise InvalidArgument("TOO_MANY_NAMED", text, named_max=NAMED_MAX)


def _check_request_id(request_id: str) -> None:
    if not request_id:
        raise InvalidArgument("REQUEST_ID_MISSING", "a request that changes something needs a request_id")


def _limit(asked: int) -> int:
    return min(asked or LIST_DEFAULT, LIST_MAX)
