from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from daemon_fakes import region, until

from looseleaf.errors import CapacityExceeded, Corrupt, NotFound, Unavailable
from looseleaf.ids import HostId
from looseleaf.services.worker_daemon import regions as regions_module
from looseleaf.services.worker_daemon.arena import SEGMENT_BYTES_MIN, SEGMENT_SLOTS_MIN, HostArena
from looseleaf.services.worker_daemon.core.region_table import RegionKey, Slot
from looseleaf.services.worker_daemon.regions import HostRegions, RegionSource
from looseleaf.units import REGION_BYTES


class Elsewhere:
    """Another place that holds regions; counts what it is asked for."""

    def __init__(self, held: dict[RegionKey, bytes], broken: bool = False) -> None:
        self.held = held
        self.broken = broken
        self.asked: list[RegionKey] = []

    async def fetch(self, keys: Sequence[RegionKey]) -> AsyncGenerator[tuple[RegionKey, bytes], None]:
        self.asked.extend(keys)
        if self.broken:
            raise Unavailable("HOST_DOWN", "gone")
        for key in keys:
            if key in self.held:
                await asyncio.sleep(0)
                yield key, self.held[key]


class Locator:
    def __init__(self, *places: Elsewhere) -> None:
        self.places = places
        self.forgotten: list[RegionKey] = []

    async def sources(self, keys: Sequence[RegionKey]) -> list[tuple[RegionSource, list[RegionKey]]]:
        return [(place, list(keys)) for place in self.places]

    async def forget(self, host_id: HostId, keys: Sequence[RegionKey]) -> None:
        self.forgotten.extend(keys)


def with_regions(locator: Locator, work: Callable[[HostRegions], Awaitable[None]]) -> None:
    async def main() -> None:
        arena = HostArena(SEGMENT_BYTES_MIN)
        with ThreadPoolExecutor(2) as executor:
            try:
                await work(HostRegions(arena, locator, HostId("h0"), executor))
            finally:
                arena.close()

    asyncio.run(main())


def test_put_region_is_read_back() -> None:
    async def work(regions: HostRegions) -> None:
        key, data = region(1)
        await regions.put(key, memoryview(data), "kernel")
        assert regions.read(key) == data
        assert regions.missing([key, region(2)[0]], "worker") == [1]

    with_regions(Locator(), work)


def test_put_with_wrong_hash_is_refused_and_keeps_nothing() -> None:
    async def work(regions: HostRegions) -> None:
        key, data = region(1)
        with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH"):
            await regions.put(key, memoryview(data[:-1] + b"x"), "kernel")
        assert regions.arena.used_bytes == 0 and key not in regions.table

    with_regions(Locator(), work)


def test_put_twice_at_once_uses_one_slot() -> None:
    async def work(regions: HostRegions) -> None:
        key, data = region(1)
        await asyncio.gather(*(regions.put(key, memoryview(data), owner) for owner in ("a", "b", "c")))
        assert regions.arena.used_bytes == REGION_BYTES

    with_regions(Locator(), work)


def test_uncommitted_regions_go_with_their_connection() -> None:
    async def work(regions: HostRegions) -> None:
        kept, lost = region(1), region(2)
        for key, data in (kept, lost):
            await regions.put(key, memoryview(data), "worker")
        regions.table.stage([kept[0]], "version")
        regions.unpin("worker")
        assert kept[0] in regions.table and lost[0] not in regions.table
        assert regions.arena.used_bytes == REGION_BYTES

    with_regions(Locator(), work)


def test_ensure_fetches_from_the_next_place_when_one_fails() -> None:
    items = dict(region(number) for number in range(5))
    broken, good = Elsewhere(items, broken=True), Elsewhere(items)

    async def work(regions: HostRegions) -> None:
        slots = await regions.ensure(list(items), "worker")
        assert [bytes(regions.arena.view(slot, key[1])) for slot, key in zip(slots, items, strict=True)] == list(
            items.values()
        )
        assert len(good.asked) == 5

    with_regions(Locator(broken, good), work)


def test_ensure_at_once_fetches_each_region_once() -> None:
    items = dict(region(number) for number in range(8))
    place = Elsewhere(items)

    async def work(regions: HostRegions) -> None:
        await asyncio.gather(*(regions.ensure(list(items), owner) for owner in ("a", "b", "c")))
        assert sorted(place.asked) == sorted(items)

    with_regions(Locator(place), work)


def test_ensure_of_lost_region_names_what_to_do() -> None:
    async def work(regions: HostRegions) -> None:
        with pytest.raises(NotFound, match="REGIONS_LOST.*restore an older version"):
            await regions.ensure([region(1)[0]], "worker")

    with_regions(Locator(Elsewhere({})), work)


def test_full_arena_evicts_what_is_kept_elsewhere_and_says_so() -> None:
    locator = Locator()

    async def work(regions: HostRegions) -> None:
        items = [region(number) for number in range(SEGMENT_SLOTS_MIN)]
        for key, data in items:
            await regions.put(key, memoryview(data), "kernel")
        regions.table.stage([key for key, _data in items], "version")
        regions.unpin("kernel")
        regions.let_go([items[0][0], items[1][0]])
        regions.unpin("version", [items[0][0], items[1][0]])
        key, data = region(1000)
        await regions.put(key, memoryview(data), "kernel")
        assert regions.read(key) == data
        assert set(locator.forgotten) == {items[0][0], items[1][0]}

    with_regions(locator, work)


def test_arena_full_of_staged_regions_refuses_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions_module, "ROOM_WAIT_S", 0.05)

    async def work(regions: HostRegions) -> None:
        for number in range(SEGMENT_SLOTS_MIN):
            key, data = region(number)
            await regions.put(key, memoryview(data), "kernel")
        with pytest.raises(CapacityExceeded, match="ARENA_FULL"):
            await regions.put(region(1000)[0], memoryview(region(1000)[1]), "kernel")
        regions.unpin("kernel")
        await regions.put(region(1000)[0], memoryview(region(1000)[1]), "kernel")

    with_regions(Locator(), work)


def test_waiting_put_goes_on_when_room_appears() -> None:
    async def work(regions: HostRegions) -> None:
        for number in range(SEGMENT_SLOTS_MIN):
            key, data = region(number)
            await regions.put(key, memoryview(data), "old")
        waiting = asyncio.create_task(regions.put(region(1000)[0], memoryview(region(1000)[1]), "new"))
        await asyncio.sleep(0)
        regions.unpin("old")
        await asyncio.wait_for(waiting, 5)

    with_regions(Locator(), work)


def test_put_that_is_cancelled_keeps_its_slot_until_its_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_write = threading.Event(), threading.Event()

    async def work(regions: HostRegions) -> None:
        write = regions.arena.write

        def slow(slot: Slot, source: memoryview) -> None:
            began.set()
            assert may_write.wait(20)
            write(slot, source)

        monkeypatch.setattr(regions.arena, "write", slow)
        key, data = region(1)
        putting = asyncio.create_task(regions.put(key, memoryview(data), "worker"))
        await asyncio.to_thread(began.wait, 20)
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        assert regions.arena.used_bytes == REGION_BYTES, "the thread may still write into it"
        may_write.set()
        await until(lambda: regions.arena.used_bytes == 0)
        assert key not in regions.table

    with_regions(Locator(), work)


def test_region_whose_eviction_is_being_announced_comes_back_only_afterwards() -> None:
    class SlowLocator(Locator):
        def __init__(self) -> None:
            super().__init__()
            self.may_forget = asyncio.Event()

        async def forget(self, host_id: HostId, keys: Sequence[RegionKey]) -> None:
            await self.may_forget.wait()
            await super().forget(host_id, keys)

    async def work(regions: HostRegions) -> None:
        locator = regions._locator
        assert isinstance(locator, SlowLocator)
        key, data = region(1)
        await regions.put(key, memoryview(data), "fetch", fetched=True)
        regions.unpin("fetch")
        evicting = asyncio.create_task(regions._evict())
        await asyncio.sleep(0)
        again = asyncio.create_task(regions.put(key, memoryview(data), "save"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert key not in regions.table, "the store would forget this copy too"
        locator.may_forget.set()
        assert await evicting
        await again
        assert locator.forgotten == [key] and key in regions.table

    with_regions(SlowLocator(), work)


def test_eviction_that_cannot_be_announced_makes_room_all_the_same() -> None:
    class DeafLocator(Locator):
        async def forget(self, host_id: HostId, keys: Sequence[RegionKey]) -> None:
            raise Unavailable("STORE_DOWN", "gone")

    async def work(regions: HostRegions) -> None:
        for number in range(SEGMENT_SLOTS_MIN):
            key, data = region(number)
            await regions.put(key, memoryview(data), "fetch", fetched=True)
        regions.unpin("fetch")
        key, data = region(1000)
        await regions.put(key, memoryview(data), "save")
        assert key in regions.table

    with_regions(DeafLocator(), work)


def test_ensure_that_fails_leaves_no_pin() -> None:
    items = dict([region(1)])

    async def work(regions: HostRegions) -> None:
        wanted = [*items, region(2)[0]]
        with pytest.raises(NotFound, match="REGIONS_LOST"):
            await regions.ensure(wanted, "kernel")
        assert len(regions.table.evict(5)) == 1

    with_regions(Locator(Elsewhere(items)), work)


def test_ensure_holds_what_it_has_while_it_fetches_the_rest() -> None:
    items = dict(region(number) for number in range(SEGMENT_SLOTS_MIN + 1))

    async def work(regions: HostRegions) -> None:
        keys = list(items)
        assert len(await regions.ensure(keys[:SEGMENT_SLOTS_MIN], "kernel")) == SEGMENT_SLOTS_MIN
        regions.unpin("kernel")
        # One of the old ones has to go for the new one, but none of those that are asked for.
        slots = await regions.ensure([keys[-1], *keys[1:SEGMENT_SLOTS_MIN]], "kernel")
        assert len(set(slots)) == SEGMENT_SLOTS_MIN and keys[0] not in regions.table

    with_regions(Locator(Elsewhere(items)), work)


def test_bytes_of_a_source_that_are_not_what_was_asked_for_are_not_kept() -> None:
    key, data = region(1)
    wrong, good = Elsewhere({key: data[:-1] + b"x"}), Elsewhere({key: data})

    async def work(regions: HostRegions) -> None:
        await regions.ensure([key], "kernel")
        assert regions.read(key) == data and good.asked == [key]

    with_regions(Locator(wrong, good), work)
