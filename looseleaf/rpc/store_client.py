"""The checkpoint store as its clients see it: typed calls, streams in parts, patience while it restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from looseleaf.errors import CapacityExceeded, Unavailable
from looseleaf.ids import new_request_id
from looseleaf.rpc.client import Channel
from looseleaf.v1 import checkpoint_pb2 as cp
from looseleaf.v1 import checkpoint_store_pb2 as pb
from looseleaf.v1.checkpoint_store_pb2_grpc import CheckpointStoreServiceStub

T = TypeVar("T")
# (region id, length in bytes)
RegionKey = tuple[bytes, int]

CALL_TIMEOUT_S: Final = 30.0
STREAM_TIMEOUT_S: Final = 600.0
# For so long a call that found no store is repeated; a restart takes one to two seconds.
RESTART_PATIENCE_S: Final = 10.0
RESTART_RETRY_S: Final = 0.25
# Objects named in one message: at most 3 MiB with their answers.
NAMED_PER_CALL_MAX: Final = 50_000


class StoreClient:
    """Calls over `channel`, which the caller closes. Every failure is a LooseLeafError; see the store for reasons.

    All but `put_regions` wait up to `restart_patience_s` for a store that is away or too busy.
    Calls that change something carry one request id through all their repeats, so that none happens twice.
    `tenant`: whose units and regions it puts and gets, and whose sessions it makes; "" is the default tenant. One that
    has no session yet is not known to the store.
    """

    def __init__(
        self, channel: Channel, *, restart_patience_s: float = RESTART_PATIENCE_S, tenant: str = ""
    ) -> None:
        self._stub: Any = CheckpointStoreServiceStub(channel)
        self._patience_s = restart_patience_s
        self._tenant = tenant

    @property
    def tenant(self) -> str:
        """Whose units and regions it puts and gets."""
        return self._tenant

    async def open_session(
        self, session_id: str, *, create: bool = False, raise_epoch: bool = False, title: str = ""
    ) -> cp.SessionHead:
        """The session as it stands afterwards. Raises NotFound `SESSION_UNKNOWN`, CapacityExceeded `SESSIONS_FULL`."""
        request = pb.OpenSessionRequest(
            request_id=new_request_id(), session_id=session_id, create=create, raise_epoch=raise_epoch, title=title,
            tenant=self._tenant,
        )  # fmt: skip
        response = await self._unary(self._stub.OpenSession, request)
        head: cp.SessionHead = response.head
        return head

    async def put_units(self, units: Sequence[tuple[bytes, bytes]]) -> int:
        """Stores (hash, bytes) pairs, each below 1 MiB; returns how many were new."""
        if not units:
            return 0

        def requests() -> Iterator[pb.PutUnitsRequest]:
            tenant = self._tenant
            for unit_hash, data in units:
                yield pb.PutUnitsRequest(unit=cp.UnitBlob(unit_hash=unit_hash, data=data), tenant=tenant)
                tenant = ""

        response = await self._patiently(lambda: self._stub.PutUnits(requests(), timeout_s=STREAM_TIMEOUT_S))
        return int(response.stored)

    async def get_units(self, unit_hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """The units' bytes by hash. Raises NotFound `UNITS_UNKNOWN`, Corrupt `CHECKSUM_MISMATCH`."""
        found: dict[bytes, bytes] = {}

        async def read(hashes: Sequence[bytes]) -> None:
            request = pb.GetUnitsRequest(unit_hashes=hashes, tenant=self._tenant)
            async with self._stub.GetUnits(request, timeout_s=STREAM_TIMEOUT_S) as stream:
                async for message in stream:
                    found[message.unit.unit_hash] = message.unit.data

        for part in _parts(list(dict.fromkeys(unit_hashes))):
            await self._patiently(lambda part=part: read(part))  # type: ignore[misc]
        return found

    async def commit(
        self, session_id: str, *, epoch: int, parent: int, execution_id: str, manifest: bytes, host_id: str
    ) -> tuple[int, bool]:
        """(the new version, whether it is durable already). The same commit may be repeated at any time.

        Raises PreconditionFailed `STALE_EPOCH`, `UNITS_MISSING`, `REGIONS_UNKNOWN`, Conflict `MANIFEST_MOVED`,
        CapacityExceeded `SESSION_FULL`.
        """
        request = pb.CommitVersionRequest(
            request_id=new_request_id(), session_id=session_id, epoch=epoch, parent=parent,
            execution_id=execution_id, manifest=manifest, host_id=host_id,
        )  # fmt: skip
        response = await self._unary(self._stub.CommitVersion, request)
        return int(response.version), bool(response.durable)

    async def manifest(self, session_id: str, *, version: int = 0, known_version: int = 0) -> pb.GetManifestResponse:
        """Head, version (0: none yet) and bytes of one version; 0 asks for the newest, empty if the caller knows it.

        A version number means one state only within an epoch: compare `head.epoch` before trusting `known_version`.
        Raises NotFound `SESSION_UNKNOWN` or `VERSION_UNKNOWN`.
        """
        request = pb.GetManifestRequest(session_id=session_id, version=version, known_version=known_version)
        response: pb.GetManifestResponse = await self._unary(self._stub.GetManifest, request)
        return response

    async def put_regions(self, regions: AsyncIterable[tuple[bytes, int, bytes]], size_bytes: int = 0) -> int:
        """Stores (id, length, bytes) on the store's disk, durable on return; returns how many were new.

        With `size_bytes`, of all of them together, they are refused before one is stored, or there is room for all.
        Not repeated, as `regions` can be read only once: on Unavailable or Conflict call again with all of them.
        Raises CapacityExceeded `STORE_FULL`, `TENANT_FULL` or `STORE_BUSY`, Corrupt `CHECKSUM_MISMATCH`.
        """

        async def requests() -> AsyncIterator[pb.PutRegionsRequest]:
            plan: dict[str, Any] = {"tenant": self._tenant, "stream_bytes": size_bytes}
            async for region_id, length_bytes, data in regions:
                chunk = cp.RegionChunk(region=_ref((region_id, length_bytes)), data=data)
                yield pb.PutRegionsRequest(chunk=chunk, **plan)
                plan = {}

        response = await self._stub.PutRegions(requests(), timeout_s=STREAM_TIMEOUT_S)
        return int(response.stored)

    async def get_regions(self, regions: Sequence[RegionKey]) -> AsyncIterator[tuple[bytes, int, bytes]]:
        """(id, length, bytes) of each region on the store's disk, in order, each once.

        Raises NotFound `REGIONS_UNKNOWN`, Corrupt `CHECKSUM_MISMATCH`.
        """
        for part in _parts(regions):
            received = 0
            began_s = time.monotonic()
            while received < len(part):
                request = pb.GetRegionsRequest(regions=map(_ref, part[received:]), tenant=self._tenant)
                try:
                    async with self._stub.GetRegions(request, timeout_s=STREAM_TIMEOUT_S) as stream:
                        async for message in stream:
                            region = message.chunk.region
                            yield region.region_id, region.length_bytes, message.chunk.data
                            received += 1
                            began_s = time.monotonic()
                    break
                except (Unavailable, CapacityExceeded) as error:
                    if not _is_passing(error) or time.monotonic() - began_s >= self._patience_s:
                        raise
                await asyncio.sleep(RESTART_RETRY_S)

    async def locate(self, regions: Sequence[RegionKey]) -> list[cp.RegionLocation]:
        """Where each region is, in order; an unknown one has no host and is not durable."""
        found: list[cp.RegionLocation] = []
        for part in _parts(regions):
            request = pb.LocateRegionsRequest(regions=map(_ref, part), tenant=self._tenant)
            found.extend((await self._unary(self._stub.LocateRegions, request)).locations)
        return found

    async def admit_save(
        self, session_id: str, session_bytes: int, regions: Sequence[RegionKey], already_bytes: int = 0
    ) -> int:
        """Returns if a save would fit that makes the session's variables `session_bytes` and stores `regions`.

        Of a save that is asked for in parts, it is with the `already_bytes` that this returned for the earlier ones.
        Raises CapacityExceeded `SESSION_FULL`, `TENANT_FULL` or `STORE_FULL`, NotFound `SESSION_UNKNOWN`.
        """
        new_bytes = 0
        for part in list(_parts(regions)) or [()]:
            request = pb.AdmitSaveRequest(
                session_id=session_id, session_bytes=session_bytes, regions=map(_ref, part),
                already_bytes=already_bytes + new_bytes,
            )  # fmt: skip
            new_bytes += (await self._unary(self._stub.AdmitSave, request)).new_bytes
        return new_bytes

    async def forget_host(self, host_id: str) -> list[pb.SessionFallback]:
        """The host's arena is gone as a whole; returns the sessions whose newest version was lost with it."""
        request = pb.ForgetHostRegionsRequest(request_id=new_request_id(), host_id=host_id, all=True)
        return list((await self._unary(self._stub.ForgetHostRegions, request)).fallbacks)

    async def forget_host_regions(self, host_id: str, regions: Sequence[RegionKey]) -> list[pb.SessionFallback]:
        """The host's arena no longer holds `regions`; as `forget_host`."""
        fallbacks: list[pb.SessionFallback] = []
        for part in _parts(regions):
            request = pb.ForgetHostRegionsRequest(
                request_id=new_request_id(), host_id=host_id, regions=map(_ref, part), all=False, tenant=self._tenant
            )
            fallbacks.extend((await self._unary(self._stub.ForgetHostRegions, request)).fallbacks)
        return fallbacks

    async def mark_durable(self, session_id: str, version: int) -> tuple[bool, list[RegionKey]]:
        """(durable, the regions that are not on the store's disk yet, at most 100,000). Raises NotFound."""
        request = pb.MarkDurableRequest(request_id=new_request_id(), session_id=session_id, version=version)
        response = await self._unary(self._stub.MarkDurable, request)
        return bool(response.durable), [(ref.region_id, ref.length_bytes) for ref in response.missing]

    async def list_sessions(self, limit: int = 0) -> list[cp.SessionHead]:
        """The sessions last changed, newest first; 0 means 1,000."""
        return list((await self._unary(self._stub.ListSessions, pb.ListSessionsRequest(limit=limit))).sessions)

    async def list_versions(self, session_id: str, limit: int = 0) -> list[cp.VersionInfo]:
        """The kept versions, newest first; 0 means 1,000. Raises NotFound `SESSION_UNKNOWN`."""
        request = pb.ListVersionsRequest(session_id=session_id, limit=limit)
        return list((await self._unary(self._stub.ListVersions, request)).versions)

    async def delete_session(self, session_id: str) -> None:
        """Deletes the session with all its versions. Raises NotFound `SESSION_UNKNOWN`."""
        request = pb.DeleteSessionRequest(request_id=new_request_id(), session_id=session_id)
        await self._unary(self._stub.DeleteSession, request)

    async def collect_garbage(self) -> pb.CollectGarbageResponse:
        """Frees what no kept version names; returns when done."""
        request = pb.CollectGarbageRequest(request_id=new_request_id())
        response: pb.CollectGarbageResponse = await self._unary(
            self._stub.CollectGarbage, request, timeout_s=STREAM_TIMEOUT_S
        )
        return response

    async def _unary(self, method: Any, request: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        return await self._patiently(lambda: method(request, timeout_s=timeout_s))

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """`call()`, repeated while the store is away or too busy; the channel's own repeats are over in a second."""
        began_s = time.monotonic()
        while True:
            try:
                return await call()
            except (Unavailable, CapacityExceeded) as error:
                if not _is_passing(error) or time.monotonic() - began_s >= self._patience_s:
                    raise
            await asyncio.sleep(RESTART_RETRY_S)


def _is_passing(error: Unavailable | CapacityExceeded) -> bool:
    """Whether the store is away or too busy, rather than full."""
    return isinstance(error, Unavailable) or error.reason == "STORE_BUSY"


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + NAMED_PER_CALL_MAX] for start in range(0, len(items), NAMED_PER_CALL_MAX))


def _ref(key: RegionKey) -> cp.RegionRef:
    return cp.RegionRef(region_id=key[0], length_bytes=key[1])
