"""Regions of this host: put by savers, mapped by restorers, fetched from where else they are (design §7)."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Executor

import structlog

from looseleaf.dirty_tracker import hash128
from looseleaf.errors import CapacityExceeded, Corrupt, InvalidArgument
from looseleaf.ids import HostId
from looseleaf.services.worker_daemon.arena import HostArena
from looseleaf.services.worker_daemon.core.arena_room import (
    ROOM_WAIT_S,
    Admit,
    ArenaRoom,
    Event,
    Evict,
    Levels,
    LevelsChanged,
    Marks,
    Refuse,
    SaveAsked,
    SaveEnded,
    SlotTaken,
)
from looseleaf.services.worker_daemon.core.region_table import RegionKey, RegionTable, Slot
from looseleaf.services.worker_daemon.eviction_news import EvictionNews
from looseleaf.services.worker_daemon.region_fetching import RegionFetching, RegionLocator
from looseleaf.units import REGION_BYTES, format_bytes

log = structlog.get_logger()

# Regions that go at once where room is short for a restore.
EVICT_BATCH = 64


def marks_of(limit: int, high_percent: int, low_percent: int, cache_bytes: int | None) -> Marks:
    """The settings in slots, of which the arena has `limit`.

    `cache_bytes` None: clean regions may fill the arena up to its low mark.
    """
    high = max(1, limit * high_percent // 100)
    low = max(1, limit * low_percent // 100)
    return Marks(limit, high, low, low if cache_bytes is None else cache_bytes // REGION_BYTES)


class HostRegions:
    """The arena with its directory. All methods run on the event loop; copies and hashes in `executor`.

    What an owner put, mapped or counts on stays in its slot until the owner unpins it; see RegionTable. Who may take
    slots, and when clean regions go, is decided by ArenaRoom.
    """

    def __init__(
        self, arena: HostArena, locator: RegionLocator, host_id: HostId, executor: Executor, marks: Marks | None = None
    ) -> None:
        self.arena = arena
        self.table = RegionTable()
        self.room = ArenaRoom(marks or marks_of(arena.slots_max, 100, 100, None))
        self._executor = executor
        self._freed = asyncio.Event()
        self._cooling: asyncio.Handle | None = None
        # Set while only making versions durable can give room.
        self.pressed = asyncio.Event()
        self._asking: dict[Hashable, asyncio.Future[None]] = {}
        self._news = EvictionNews(lambda keys: locator.forget(host_id, keys))
        self._fetching = RegionFetching(locator, self.table, self._put_fetched)

    async def admit(self, save: Hashable, regions: int) -> None:
        """Returns when there is room for a save's `regions` new regions, before a byte of them is copied.

        Raises CapacityExceeded `ARENA_FULL` with `needed_bytes` and `available_bytes`. One call at a time for a save;
        `end_save` gives back what it was admitted for and did not take.
        """
        loop = asyncio.get_running_loop()
        asking = self._asking[save] = loop.create_future()
        timer: asyncio.TimerHandle | None = None
        try:
            self._handle(SaveAsked(save, regions))
            if (deadline_s := self.room.deadline_s(save)) is not None:
                timer = loop.call_at(deadline_s, self._look)
            await asking
        except BaseException:
            self.end_save(save)
            raise
        finally:
            del self._asking[save]
            if timer is not None:
                timer.cancel()

    def end_save(self, save: Hashable) -> None:
        """The save was committed, or will never be."""
        self._handle(SaveEnded(save))

    def _look(self) -> None:
        self._handle(LevelsChanged())

    def _levels(self) -> Levels:
        return Levels(self.arena.used_bytes // REGION_BYTES, self.table.idle)

    def _handle(self, event: Event) -> None:
        now_s = asyncio.get_running_loop().time()
        actions = self.room.handle(event, self._levels(), now_s)
        # What goes now is for the admitted saves: getting memory anew would cost them more than the copies.
        self.arena.keep_warm(self.room.reserved)
        self._start_cooling()
        for action in actions:
            match action:
                case Admit(save):
                    if not (asking := self._asking[save]).done():
                        asking.set_result(None)
                case Refuse(save, needed, available):
                    if not (asking := self._asking[save]).done():
                        asking.set_exception(self._full(needed, available))
                case Evict(slots):
                    self._evict(slots)
        if self.room.pressed(self._levels()):
            self.pressed.set()
        else:
            self.pressed.clear()

    def _full(self, needed: int, available: int) -> CapacityExceeded:
        needed_bytes, available_bytes = needed * REGION_BYTES, available * REGION_BYTES
        return CapacityExceeded(
            "ARENA_FULL",
            f"this host's shared memory for saved state is full: {format_bytes(needed_bytes)} are needed, "
            f"{format_bytes(available_bytes)} of {format_bytes(self.arena.limit_bytes)} are to be had; nothing new was "
            "saved, the last version is valid",
            needed_bytes=needed_bytes,
            available_bytes=available_bytes,
            limit_bytes=self.arena.limit_bytes,
        )

    def missing(self, keys: Sequence[RegionKey], owner: Hashable) -> list[int]:
        """Indices of `keys` that the arena lacks; those it has are pinned for `owner`."""
        return [index for index, key in enumerate(keys) if self.table.pin(key, owner) is None]

    async def put(
        self,
        key: RegionKey,
        source: memoryview,
        owner: Hashable,
        *,
        save: Hashable = None,
        fetched: bool = False,
    ) -> None:
        """Copies one region in, verifies it and pins it for `owner`; `fetched` as in RegionTable.add.

        `save`: the admitted save that it belongs to. Raises InvalidArgument `REGION_LENGTH`, Corrupt
        `CHECKSUM_MISMATCH` or CapacityExceeded `ARENA_FULL`; then nothing is kept.
        """
        if self.table.pin(key, owner) is not None:
            return
        await self._news.takes_back(key)
        slot = await self._allocate(save)
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

        Raises as RegionFetching.fetch, and CapacityExceeded `ARENA_FULL`; then nothing is pinned.
        """
        if (slots := self.table.pin_all(keys, owner)) is not None:
            return slots
        hold = object()
        try:
            await self._fetching.fetch(dict.fromkeys(keys), hold)
            return [slot for key in keys if (slot := self.table.pin(key, owner)) is not None]
        finally:
            self.unpin(hold)

    async def _put_fetched(self, key: RegionKey, source: memoryview, owner: Hashable) -> None:
        await self.put(key, source, owner, fetched=True)

    async def _allocate(self, save: Hashable) -> Slot:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + ROOM_WAIT_S
        while not self.room.may_take(self._levels(), save):
            if self._evict(EVICT_BATCH):
                continue
            self._freed.clear()
            try:
                await asyncio.wait_for(self._freed.wait(), max(0.0, deadline_s - loop.time()))
            except TimeoutError:
                raise self._full(1, 0) from None
        if not self.arena.has_warm:
            self._evict(EVICT_BATCH, superseded_only=True)
        slot = self.arena.allocate()
        self._handle(SlotTaken(save))
        return slot

    def _evict(self, slots: int, *, superseded_only: bool = False) -> bool:
        evicted = self.table.evict(slots, superseded_only=superseded_only)
        self._news.add(key for key, _slot in evicted)
        for _key, slot in evicted:
            self.arena.free(slot)
        if evicted:
            self._start_cooling()
            self._freed.set()
        return bool(evicted)

    def _start_cooling(self) -> None:
        if self._cooling is None and self.arena.too_warm:
            self._cooling = asyncio.get_running_loop().call_soon(self._cool)

    def _cool(self) -> None:
        # In steps: holes for a large save that ended would keep everybody else on this loop waiting.
        self._cooling = None
        self.arena.cool()
        self._start_cooling()

    def _release(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self.arena.free(slot)
        self._freed.set()
        self._look()

    def unpin(self, owner: Hashable, keys: Sequence[RegionKey] | None = None) -> None:
        """Takes back one pin of `owner` on each of `keys`, all its pins if None; abandoned regions go."""
        self._release(self.table.unpin(owner, keys))

    def let_go(self, keys: Iterable[RegionKey]) -> None:
        """These regions need not be here any more; their slots may be reused when nobody pins them."""
        self.table.let_go(keys)
        self._release([])

    def supersede(self, keys: Iterable[RegionKey]) -> None:
        """A session's newest version no longer names these: new regions take their slots rather than new memory."""
        self.table.supersede(keys)

    async def copy_of(self, key: RegionKey) -> bytes | None:
        """A copy of the region's bytes, None if the arena does not hold it; it stays where it is meanwhile."""
        hold = object()
        slot = self.table.pin(key, hold)
        if slot is None:
            return None
        copying = asyncio.get_running_loop().run_in_executor(self._executor, self._copy, slot, key[1])
        # Not before the thread has ended, even if nobody waits for it any more.
        copying.add_done_callback(lambda _ended: self.unpin(hold))
        return await asyncio.shield(copying)

    def _copy(self, slot: Slot, length_bytes: int) -> bytes:
        return bytes(self.arena.view(slot, length_bytes))

    async def close(self) -> None:
        """Ends what goes on beside the calls; the arena and the executor are the caller's."""
        if self._cooling is not None:
            self._cooling.cancel()
        await self._news.stop()
