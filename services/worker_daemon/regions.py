"""Regions of this host: put by savers, mapped by restorers, fetched from where else they are (design §7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
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

    def fetch(self, keys: Sequence[RegionKey]) -> AsyncGenerator[tuple[RegionKey, bytes], None]:
        """Yields the regions it has, in any order; the rest are left out."""
        ...


class RegionLocator(Protocol):
    """Tells where regions are, nearest source first."""

    async def sources(self, keys: Sequence[RegionKey]) -> list[tuple[RegionSource, list[RegionKey]]]:
        """Each source with those of `keys` that it is said to have; a key may be listed under several."""
        ...

    async def forget(self, host_id: HostId, keys: Sequence[RegionKey]) -> None:
        """Tells whom it concerns that the host's arena no longer holds the regions."""
        ...


class HostRegions:
    """The arena with its directory. All methods run on the event loop; copies and hashes in `executor`.

    What an owner put, mapped or counts on stays in its slot until the owner unpins it; see RegionTable.
    """

    def __init__(self, arena: HostArena, locator: RegionLocator, host_id: HostId, executor: Executor) -> None:
        self.arena = arena
        self.table = RegionTable()
        self._locator = locator
        self._host_id = host_id
        self._executor = executor
        self._room = asyncio.Event()
        self._fetching: dict[RegionKey, asyncio.Future[None]] = {}
        # Evicted regions whose eviction is being announced.
        self._forgetting: dict[RegionKey, asyncio.Future[None]] = {}

    def missing(self, keys: Sequence[RegionKey], owner: Hashable) -> list[int]:
        """Indices of `keys` that the arena lacks; those it has are pinned for `owner`."""
        return [index for index, key in enumerate(keys) if self.table.pin(key, owner) is None]

    async def put(self, key: RegionKey, source: memoryview, owner: Hashable, *, fetched: bool = False) -> None:
        """Copies one region in, verifies it and pins it; `fetched` as in RegionTable.add.

        Raises InvalidArgument `REGION_LENGTH`, Corrupt `CHECKSUM_MISMATCH` or CapacityExceeded `ARENA_FULL`; then
        nothing is kept.
        """
        if self.table.pin(key, owner) is not None:
            return
        if (forgetting := self._forgetting.get(key)) is not None:
            # A late announcement would say of this new copy, too, that it is gone.
            await asyncio.wait([forgetting])
        slot = await self._allocate()
        filling = asyncio.get_running_loop().run_in_executor(self._executor, self._fill, slot, key, source)
        try:
            await asyncio.shield(filling)
        except asyncio.CancelledError:
            # The thread may still write: the slot is nobody else's before it has ended.
            filling.add_done_callback(lambda ended: self._release_after(ended, slot))
            raise
        except BaseException:
            self._release([slot])
            raise
        if self.table.pin(key, owner) is not None:
            self._release([slot])
            return
        self.table.add(key, slot, owner=owner, fetched=fetched)

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

    def _release_after(self, filling: asyncio.Future[None], slot: Slot) -> None:
        if not filling.cancelled():
            filling.exception()  # read it: whoever asked has gone
        self._release([slot])

    async def ensure(self, keys: Sequence[RegionKey], owner: Hashable) -> list[Slot]:
        """Slots of `keys` in their order, fetched first where they are missing; one pin of `owner` for each key.

        Raises NotFound `REGIONS_LOST` if no place has some of them, CapacityExceeded `ARENA_FULL`; then nothing is
        pinned.
        """
        wanted = dict.fromkeys(keys)
        hold = object()
        try:
            while lacking := [key for key in wanted if self.table.pin(key, hold) is None]:
                flights = [self._fetching[key] for key in lacking if key in self._fetching]
                mine = [key for key in lacking if key not in self._fetching]
                if mine:
                    await self._fetch(mine, hold)
                if flights:
                    await asyncio.wait(flights)
            return [slot for key in keys if (slot := self.table.pin(key, owner)) is not None]
        finally:
            self.unpin(hold)

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
            async with aclosing(source.fetch(keys)) as regions:
                async for key, data in regions:
                    await self.put(key, memoryview(data), owner, fetched=True)
                    lacking.discard(key)
        except CapacityExceeded:
            raise
        except Corrupt as error:
            log.error("region_source_corrupt", reason=error.reason, regions=len(keys))
        except LooseLeafError as error:
            log.warning("region_source_failed", reason=error.reason, regions=len(keys))

    async def _allocate(self) -> Slot:
        deadline = asyncio.get_running_loop().time() + ROOM_WAIT_S
        while True:
            if not self.arena.has_warm and await self._evict(superseded_only=True):
                continue
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

    async def _evict(self, *, superseded_only: bool = False) -> bool:
        evicted = self.table.evict(EVICT_BATCH, superseded_only=superseded_only)
        if not evicted:
            return False
        keys = [key for key, _slot in evicted]
        announced = asyncio.get_running_loop().create_future()
        self._forgetting.update(dict.fromkeys(keys, announced))
        self._release([slot for _key, slot in evicted])
        try:
            await self._locator.forget(self._host_id, keys)
        except LooseLeafError as error:
            # Whoever looks for them here in vain goes on to the next place.
            log.warning("eviction_not_announced", reason=error.reason, regions=len(keys))
        finally:
            for key in keys:
                del self._forgetting[key]
            announced.set_result(None)
        return True

    def _release(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self.arena.free(slot)
        self._room.set()

    def unpin(self, owner: Hashable, keys: Sequence[RegionKey] | None = None) -> None:
        """Takes back one pin of `owner` on each of `keys`, all its pins if None; abandoned regions go."""
        self._release(self.table.unpin(owner, keys))

    def let_go(self, keys: Iterable[RegionKey]) -> None:
        """These regions need not be here any more; their slots may be reused when nobody pins them."""
        self.table.let_go(keys)
        self._room.set()

    def supersede(self, keys: Iterable[RegionKey]) -> None:
        """A session's newest version no longer names these: new regions take their slots rather than new memory."""
        self.table.supersede(keys)

    def read(self, key: RegionKey) -> bytes | None:
        """A copy of the region's bytes, None if the arena does not hold it."""
        slot = self.table.slot_of(key)
        return None if slot is None else bytes(self.arena.view(slot, key[1]))
