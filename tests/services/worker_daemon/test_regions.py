from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from daemon_fakes import read, region, told, until

from looseleaf.errors import CapacityExceeded, Corrupt, NotFound, Unavailable
from looseleaf.ids import HostId
from looseleaf.services.worker_daemon import arena as arena_module
from looseleaf.services.worker_daemon import eviction_news, region_fetching
from looseleaf.services.worker_daemon import regions as regions_module
from looseleaf.services.worker_daemon.arena import COOL_SLOTS_PER_STEP, SEGMENT_BYTES_MIN, SEGMENT_SLOTS_MIN, HostArena
from looseleaf.services.worker_daemon.core import arena_room
from looseleaf.services.worker_daemon.core.arena_room import Marks
from looseleaf.services.worker_daemon.core.region_table import RegionKey, Slot
from looseleaf.services.worker_daemon.region_fetching import RegionSource
from looseleaf.services.worker_daemon.regions import HostRegions, marks_of
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


def with_regions(
    locator: Locator,
    work: Callable[[HostRegions], Awaitable[None]],
    marks: Marks | None = None,
    *,
    arena_bytes: int = SEGMENT_BYTES_MIN,
) -> None:
    async def main() -> None:
        arena = HostArena(arena_bytes)
        with ThreadPoolExecutor(2) as executor:
            regions = HostRegions(arena, locator, HostId("h0"), executor, marks)
            try:
                await work(regions)
            finally:
                await regions.close()
                arena.close()

    asyncio.run(main())


def test_put_region_is_read_back() -> None:
    async def work(regions: HostRegions) -> None:
        key, data = region(1)
        await regions.put(key, memoryview(data), "kernel")
        assert read(regions, key) == data
        assert regions.missing([key, region(2)[0]], "worker") == [1]

    with_regions(Locator(), work)


def test_region_stays_where_it_is_while_it_is_copied_for_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_copy = threading.Event(), threading.Event()

    async def work(regions: HostRegions) -> None:
        copy = regions._copy

        def slow(slot: Slot, length_bytes: int) -> bytes:
            began.set()
            assert may_copy.wait(20)
            return copy(slot, length_bytes)

        monkeypatch.setattr(regions, "_copy", slow)
        key, data = region(1)
        await regions.put(key, memoryview(data), "fetch", fetched=True)
        regions.unpin("fetch")
        left, heard = (asyncio.create_task(regions.copy_of(key)) for _ in range(2))
        await asyncio.to_thread(began.wait, 20)
        left.cancel()
        await asyncio.sleep(0)
        assert regions.table.idle == 0
        may_copy.set()
        assert await heard == data and await regions.copy_of(region(2)[0]) is None
        await until(lambda: regions.table.idle == 1)

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


@pytest.fixture(autouse=True)
def resumes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_fetching, "RESUME_DELAY_S", 0.0)


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
        assert read(regions, key) == data
        await told(regions)
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


def test_region_whose_eviction_is_being_told_comes_back_only_afterwards() -> None:
    class SlowLocator(Locator):
        def __init__(self) -> None:
            super().__init__()
            self.may_forget = asyncio.Event()

        async def forget(self, host_id: HostId, keys: Sequence[RegionKey]) -> None:
            self.forgotten.extend(keys)
            await self.may_forget.wait()

    async def work(regions: HostRegions) -> None:
        key, data = region(1)
        await regions.put(key, memoryview(data), "fetch", fetched=True)
        regions.unpin("fetch")
        assert regions._evict(1)
        await until(lambda: locator.forgotten == [key])
        again = asyncio.create_task(regions.put(key, memoryview(data), "save"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert key not in regions.table, "the store would forget this copy too"
        other, other_data = region(2)
        await regions.put(other, memoryview(other_data), "save")
        locator.may_forget.set()
        await again
        assert locator.forgotten == [key] and key in regions.table

    locator = SlowLocator()
    with_regions(locator, work)


def test_eviction_that_cannot_be_told_makes_room_all_the_same_and_is_told_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eviction_news, "RETRY_S", 0.0)

    class DeafLocator(Locator):
        deaf = 1_000_000

        async def forget(self, host_id: HostId, keys: Sequence[RegionKey]) -> None:
            self.deaf -= 1
            if self.deaf >= 0:
                raise Unavailable("STORE_DOWN", "gone")
            await super().forget(host_id, keys)

    async def work(regions: HostRegions) -> None:
        for number in range(SEGMENT_SLOTS_MIN):
            key, data = region(number)
            await regions.put(key, memoryview(data), "fetch", fetched=True)
        regions.unpin("fetch")
        key, data = region(1000)
        await regions.put(key, memoryview(data), "save")
        back, its_data = region(5)
        assert key in regions.table and back not in regions.table
        locator.deaf = 1_000_000
        await regions.put(back, memoryview(its_data), "save")
        locator.deaf = 3
        await told(regions)
        assert len(locator.forgotten) == SEGMENT_SLOTS_MIN - 1 and back not in locator.forgotten

    locator = DeafLocator()
    with_regions(locator, work)


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
        assert read(regions, key) == data and good.asked == [key]

    with_regions(Locator(wrong, good), work)


# -- room ---------------------------------------------------------------------------------------------------


MARKS = Marks(limit=64, high=48, low=32, cache=64)


async def fill(
    regions: HostRegions, numbers: range, owner: str, *, durable: bool = False, save: str | None = None
) -> None:
    for number in numbers:
        key, data = region(number)
        await regions.put(key, memoryview(data), owner, fetched=durable, save=save)


def test_save_with_no_room_is_refused_before_a_byte_is_copied_and_told_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(regions: HostRegions) -> None:
        await fill(regions, range(40), "version")
        await regions.admit("small", 8)
        with pytest.raises(CapacityExceeded, match=r"ARENA_FULL.*98\.0 MiB are needed, 0 B") as caught:
            await regions.admit("never", 49)
        assert caught.value.fields["needed_bytes"] == 49 * REGION_BYTES
        monkeypatch.setattr(arena_room, "ROOM_WAIT_S", 0.02)
        regions.end_save("small")
        with pytest.raises(CapacityExceeded, match="ARENA_FULL") as caught:
            await regions.admit("late", 9)
        assert caught.value.fields["available_bytes"] == 8 * REGION_BYTES
        assert regions.arena.used_bytes == 40 * REGION_BYTES and regions.room.reserved == 0

    with_regions(Locator(), work, MARKS)


def test_save_waits_for_others_to_become_durable_and_keeps_its_place() -> None:
    async def work(regions: HostRegions) -> None:
        await fill(regions, range(40), "version")
        regions.table.stage([region(number)[0] for number in range(40)], "version")
        first = asyncio.create_task(regions.admit("first", 20))
        await asyncio.sleep(0)
        second = asyncio.create_task(regions.admit("second", 1))
        await asyncio.sleep(0)
        assert not first.done() and not second.done() and regions.pressed.is_set()
        regions.let_go([region(number)[0] for number in range(40)])
        regions.unpin("version")
        await asyncio.wait_for(asyncio.gather(first, second), 20)
        assert regions.room.reserved == 21 and len(regions.table) == 11, "down to the low mark, with what was promised"
        await fill(regions, range(100, 120), "first", save="first")
        assert len(regions.table) == 31

    async def stopped_waiting(regions: HostRegions) -> None:
        await fill(regions, range(48), "version")
        waiting = asyncio.create_task(regions.admit("gone", 1))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        regions.unpin("version")
        await regions.admit("next", 48)

    with_regions(Locator(), work, MARKS)
    with_regions(Locator(), stopped_waiting, MARKS)


def test_above_the_high_mark_clean_regions_go_until_the_low_mark_and_staged_ones_never() -> None:
    async def work(regions: HostRegions) -> None:
        await fill(regions, range(20), "version")
        regions.table.stage([region(number)[0] for number in range(20)], "version")
        await fill(regions, range(20, 48), "map", durable=True)
        regions.unpin("map")
        assert len(regions.table) == 48
        await fill(regions, range(48, 49), "map", durable=True)
        assert len(regions.table) == 32
        assert all(region(number)[0] in regions.table for number in (*range(20), 48))
        await fill(regions, range(100, 132), "map", durable=True)
        assert len(regions.table) == 20 + 1 + 32, "restores get all of the arena"

    with_regions(Locator(), work, MARKS)


def test_clean_regions_that_nobody_maps_are_bounded_and_the_oldest_go() -> None:
    async def work(regions: HostRegions) -> None:
        await fill(regions, range(10), "map", durable=True)
        regions.unpin("map")
        assert [number for number in range(10) if region(number)[0] in regions.table] == [7, 8, 9]

    with_regions(Locator(), work, Marks(limit=64, high=64, low=64, cache=3))


def test_admitted_save_finds_its_slots_though_restores_want_them() -> None:
    async def work(regions: HostRegions) -> None:
        monkeypatched = pytest.MonkeyPatch()
        monkeypatched.setattr(regions_module, "ROOM_WAIT_S", 0.02)
        await regions.admit("save", 10)
        with pytest.raises(CapacityExceeded, match="ARENA_FULL"):
            await fill(regions, range(64), "map", durable=True)
        assert len(regions.table) == 54
        await fill(regions, range(100, 110), "save", save="save")
        regions.end_save("save")
        monkeypatched.undo()

    with_regions(Locator(), work, Marks(limit=64, high=48, low=48, cache=0))


def test_marks_follow_the_settings() -> None:
    assert marks_of(100, 90, 75, None) == Marks(100, 90, 75, 75)
    assert marks_of(3, 10, 1, 5 * REGION_BYTES) == Marks(3, 1, 1, 5)


def test_saves_are_admitted_up_to_what_the_arena_can_hold_and_no_further() -> None:
    async def work(regions: HostRegions) -> None:
        with pytest.raises(CapacityExceeded, match="ARENA_FULL"):
            await regions.admit("too large", SEGMENT_SLOTS_MIN + 1)
        await regions.admit("save", SEGMENT_SLOTS_MIN)
        regions.end_save("save")

    with_regions(Locator(), work, arena_bytes=SEGMENT_BYTES_MIN + 9 * REGION_BYTES)


def test_memory_of_many_slots_is_given_back_in_steps_beside_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "WARM_SLOTS_MAX", 2)

    async def work(regions: HostRegions) -> None:
        arena = regions.arena
        arena.keep_warm(0)
        await fill(regions, range(30), "save")
        regions.unpin("save")
        assert len(arena._warm) == 30, "nothing on the call's own time"
        steps = [30]
        while arena.too_warm:
            await asyncio.sleep(0)
            steps.append(len(arena._warm))
        assert max(before - after for before, after in pairwise(steps)) <= COOL_SLOTS_PER_STEP
        assert steps[-1] == 2 and len(arena._free) == SEGMENT_SLOTS_MIN - 2

    with_regions(Locator(), work)
