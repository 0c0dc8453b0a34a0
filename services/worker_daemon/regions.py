"""Regions of this host: put by savers, mapped by restorers, fetched from where else they are (design §7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Protocol

import structlog

from looseleaf.dirty_tracker import hash128
from looseleaf.errors import CapacityExceeded, Corrupt, InvalidArgument, LooseLeafError, NotFound
from looseleaf.ids import HostId
from looseleaf.services.worker_daemon.arena import HostArena
from looseleaf.services.worker_daemon.core.region_table import RegionKey, RegionTable, Slot
from looseleaf.units import REGION_BYTES

log = structlog.get_logger()

ROOM_WAIT_S = 30.0
EVICT_BATCH = 64


class RegionSource(Protocol):
    """Somewhere else that may hold regions: another host's arena or the store's disk."""

    def fetch(self, keys: Sequence[RegionKey]) -> AsyncIterator[tuple[RegionKey, bytes]]:
        """Yields the regions it has, in any order; the rest are left out."""
        ...


class RegionLocator(Protocol):
    """Tells where regions are, nearest source first."""

    async def sources(self, keys: Sequence[RegionKey]) -> list[tuple[RegionSource, list[RegionKey]]]: ...

    async def forget(self, host_id: HostId, keys: Sequence[RegionKey]) -> None: ...


class HostRegions:
    """The arena with its directory. All methods run on the event loop; copies and hashes in `executor`.

    `owner` is a connection: what it put or mapped stays in place until it unpins or closes.
    """

    def __init__(self, arena: HostArena, locator: RegionLocator, host_id: HostId, executor: Executor) -> None:
        self.arena = arena
        self.table = RegionTable()
        self._locator = locator
        self._host_id = host_id
        self._executor = executor
        self._room = asyncio.Event()
        self._fetching: dict[RegionKey, asyncio.Future[None]] = {}

    def missing(self, keys: Sequence[RegionKey], owner: Hashable) -> list[int]:
        """Indices of `keys` that the arena lacks; those it has are pinned for `owner`."""
        return [index for index, key in enumerate(keys) if self.table.pin(key, owner) is None]

    async def put(self, key: RegionKey, source: memoryview, owner: Hashable) -> None:
        """Copies one region in and verifies it.

        Raises Corrupt `CHECKSUM_MISMATCH` (nothing is kept) or CapacityExceeded `ARENA_FULL`.
        """
        if self.table.pin(key, owner) is not None:
            return
        slot = await self._allocate()
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._fill, slot, key, source)
        except BaseException:
            self._release([slot])
            raise
        if self.table.pin(key, owner) is not None:
            self._release([slot])
            return
        self.table.add(key, slot, owner=owner, committed=False)

    def _fill(self, slot: Slot, key: RegionKey, source: memoryview) -> None:
        region_id, length_bytes = key
        if len(source) != length_bytes or not 0 < length_bytes <= REGION_BYTES:
            raise InvalidArgument(
                "REGION_LENGTH", "a region's length does not match its bytes", length_bytes=length_bytes
            )
        self.arena.write(slot, source)
        if hash128(self.arena.view(slot, length_bytes)) != region_id:
            raise Corrupt(
                "CHECKSUM_MISMATCH",
                "a region's bytes are not what was announced; the save was refused and the last version is valid",
                region_id=region_id.hex(),
            )

    async def ensure(self, keys: Sequence[RegionKey], owner: Hashable) -> list[Slot]:
        """Slots of `keys` in their order, fetched first where they are missing, pinned for `owner`.

        Raises NotFound `REGIONS_LOST` if no place has some of them, CapacityExceeded `ARENA_FULL`.
        """
        wanted = dict.fromkeys(keys)
        while lacking := [key for key in wanted if self.table.pin(key, owner) is None]:
            others = [self._fetching[key] for key in lacking if key in self._fetching]
            mine = [key for key in lacking if key not in self._fetching]
            if mine:
                await self._fetch(mine, owner)
            if others:
                await asyncio.wait(others)
            if not mine and not others:
                raise AssertionError("unreachable")
        slots = [self.table.slot_of(key) for key in keys]
        return [slot for slot in slots if slot is not None]

    async def _fetch(self, keys: Sequence[RegionKey], owner: Hashable) -> None:
        loop = asyncio.get_running_loop()
        flights = {key: loop.create_future() for key in keys}
        self._fetching.update(flights)
        try:
            lacking = set(keys)
            for source, its_keys in await self._locator.sources(keys):
                await self._fetch_from(source, [key for key in its_keys if key in lacking], owner, lacking)
            if lacking:
                raise NotFound(
                    "REGIONS_LOST",
                    f"{len(lacking)} pieces of saved state are on no host and not on the store's "
                    "disk; restore an older version",
                    regions=len(lacking),
                )
        finally:
            for key, flight in flights.items():
                self._fetching.pop(key, None)
                flight.set_result(None)

    async def _fetch_from(
        self, source: RegionSource, keys: list[RegionKey], owner: Hashable, lacking: set[RegionKey]
    ) -> None:
        if not keys:
            return
        try:
            async for key, data in source.fetch(keys):
                await self.put(key, memoryview(data), owner)
                self.table.commit([key])
                self.table.keep_elsewhere([key])
                lacking.discard(key)
        except CapacityExceeded:
            raise
        except LooseLeafError as error:
            log.warning("region_source_failed", reason=error.reason, regions=len(keys))

    async def _allocate(self) -> Slot:
        deadline = asyncio.get_running_loop().time() + ROOM_WAIT_S
        while True:
            try:
                return self.arena.allocate()
            except CapacityExceeded:
                if await self._evict():
                    continue
                left = deadline - asyncio.get_running_loop().time()
                self._room.clear()
                try:
                    await asyncio.wait_for(self._room.wait(), max(left, 0.0))
                except TimeoutError:
                    raise CapacityExceeded(
                        "ARENA_FULL",
                        "this host's shared memory for saved state stayed full; nothing new was saved, the last "
                        "version is valid",
                        limit_bytes=self.arena.limit_bytes,
                    ) from None

    async def _evict(self) -> bool:
        evicted = self.table.evict(EVICT_BATCH)
        if evicted:
            self._release([slot for _key, slot in evicted])
            await self._locator.forget(self._host_id, [key for key, _slot in evicted])
        return bool(evicted)

    def _release(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self.arena.free(slot)
        self._room.set()

    def unpin(self, owner: Hashable, keys: Sequence[RegionKey] | None = None) -> None:
        """Ends `owner`'s pins, all of them if `keys` is None."""
        self._release(self.table.unpin(owner, keys))

    def committed(self, keys: Iterable[RegionKey]) -> None:
        """A manifest names these regions from now on."""
        self.table.commit(keys)

    def made_durable(self, keys: Iterable[RegionKey]) -> None:
        """The store's disk holds these; their slots may be reused when nobody maps them."""
        self.table.keep_elsewhere(keys)
        self._room.set()

    def read(self, key: RegionKey) -> bytes | None:
        """A copy of the region's bytes, None if the arena does not hold it."""
        slot = self.table.slot_of(key)
        return None if slot is None else bytes(self.arena.view(slot, key[1]))
