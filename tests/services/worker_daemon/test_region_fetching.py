"""Sources that break, lie, cut short or stay silent; the arena and its directory are real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from daemon_fakes import Parts, region, until, within

from looseleaf.errors import CapacityExceeded, Forbidden, LooseLeafError, NotFound, Timeout, Unavailable
from looseleaf.services.worker_daemon import region_fetching
from looseleaf.services.worker_daemon.core.region_table import RegionKey

DOWN = Unavailable("HOST_DOWN", "gone")


class Source:
    """Sends `per_stream` regions, then breaks with the next of `errors`; sends all once there is none left."""

    def __init__(self, *numbers: int, per_stream: int = 0, errors: Sequence[LooseLeafError] = ()) -> None:
        self.held = dict(region(number) for number in numbers)
        self.per_stream = per_stream
        self.errors = list(errors)
        self.asked: list[list[RegionKey]] = []
        self.running = 0
        self.may_send = asyncio.Event()
        self.may_send.set()

    async def fetch(self, keys: Sequence[RegionKey]) -> AsyncGenerator[tuple[RegionKey, bytes], None]:
        self.asked.append(list(keys))
        self.running += 1
        try:
            await self.may_send.wait()
            for sent, key in enumerate(key for key in keys if key in self.held):
                if self.errors and sent == self.per_stream:
                    raise self.errors.pop(0)
                yield key, self.held[key]
            if self.errors:
                raise self.errors.pop(0)
        finally:
            self.running -= 1


@pytest.fixture(autouse=True)
def resumes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_fetching, "RESUME_DELAY_S", 0.0)


def keys(*numbers: int) -> list[RegionKey]:
    return [region(number)[0] for number in numbers]


def places(parts: Parts, *sources: Source) -> None:
    parts.locator.places = list(sources)


async def ensure(parts: Parts, *numbers: int) -> None:
    slots = await within(parts.regions.ensure(keys(*numbers), "worker"))
    for number, slot in zip(numbers, slots, strict=True):
        assert bytes(parts.regions.arena.view(slot, 5000)) == region(number)[1]


async def test_broken_stream_goes_on_with_what_it_has_not_brought(parts: Parts) -> None:
    source = Source(*range(9), per_stream=2, errors=[DOWN, Timeout("HOST_TIMEOUT", "slow"), DOWN, DOWN])
    places(parts, source)
    await ensure(parts, *range(9))
    assert [len(asked) for asked in source.asked] == [9, 7, 5, 3, 1]


async def test_source_that_brings_nothing_any_more_is_left_for_the_next(parts: Parts) -> None:
    silent, good = Source(*range(4), errors=[DOWN] * 9), Source(*range(4))
    places(parts, silent, good)
    await ensure(parts, *range(4))
    assert len(silent.asked) == region_fetching.BREAKS_MAX and len(good.asked) == 1


@pytest.mark.parametrize("error", [Forbidden("NOT_YOURS", "no"), Timeout("HOST_TIMEOUT", "silent")])
async def test_source_that_refuses_or_says_nothing_is_asked_once(parts: Parts, error: LooseLeafError) -> None:
    refusing, good = Source(1, errors=[error]), Source(1)
    places(parts, refusing, good)
    await ensure(parts, 1)
    assert len(refusing.asked) == 1


async def test_state_that_cannot_be_reached_is_not_called_lost(parts: Parts) -> None:
    places(parts, Source(1, 2, errors=[DOWN] * 9), Source(2))
    with pytest.raises(Unavailable, match=r"REGIONS_UNREACHABLE: 1 pieces.*HOST_DOWN.*nothing is lost"):
        await within(parts.regions.ensure(keys(1, 2), "worker"))
    places(parts, Source(2))
    with pytest.raises(NotFound, match="REGIONS_LOST: 1 pieces"):
        await within(parts.regions.ensure(keys(1, 2), "worker"))
    assert parts.regions.table.pinned("worker") == []


@pytest.mark.parametrize("damage", ["flipped", "short", "long", "empty"])
async def test_damaged_region_comes_from_the_next_source_and_the_others_from_the_first(
    parts: Parts, damage: str
) -> None:
    first, second = Source(1, 2, 3), Source(1, 2, 3)
    key, data = region(2)
    first.held[key] = {"flipped": b"?" + data[1:], "short": data[:-1], "long": data + b"x", "empty": b""}[damage]
    places(parts, first, second)
    await ensure(parts, 1, 2, 3)
    assert [len(source.asked[0]) for source in (first, second)] == [3, 1] and second.asked[0] == [key]


async def test_region_that_nobody_asked_for_is_not_kept(parts: Parts) -> None:
    source: Any = Source(1)
    stray_key, stray = region(99)

    async def fetch(wanted: Sequence[RegionKey]) -> AsyncGenerator[tuple[RegionKey, bytes], None]:
        yield stray_key, stray
        for key in (*wanted, *wanted):
            yield key, source.held[key]

    source.fetch = fetch
    places(parts, source)
    await ensure(parts, 1)
    assert stray_key not in parts.regions.table


async def test_sources_are_read_side_by_side_within_the_limit_of_streams(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [Source(number) for number in range(region_fetching.STREAMS_MAX + 3)]
    for source in sources:
        source.may_send.clear()

    async def apart(wanted: Sequence[RegionKey]) -> list[Any]:
        return [(source, [key for key in wanted if key in source.held]) for source in sources]

    monkeypatch.setattr(parts.locator, "sources", apart)
    fetching = asyncio.create_task(ensure(parts, *range(len(sources))))
    await until(lambda: sum(source.running for source in sources) == region_fetching.STREAMS_MAX)
    for source in sources:
        source.may_send.set()
    await within(fetching)


async def test_fetch_that_is_broken_off_leaves_neither_stream_nor_pin(parts: Parts) -> None:
    source = Source(1)
    source.may_send.clear()
    places(parts, source)
    fetching = asyncio.create_task(parts.regions.ensure(keys(1), "worker"))
    await until(lambda: source.running == 1)
    also = asyncio.create_task(ensure(parts, 1))
    await asyncio.sleep(0)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    source.may_send.set()
    await within(also)
    assert source.running == 0 and parts.regions.table.pinned("worker") == keys(1)


async def test_want_of_room_ends_the_fetch_and_every_stream(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_args: Any, **_named: Any) -> None:
        raise CapacityExceeded("ARENA_FULL", "planted")

    slow, quick = Source(1), Source(2)
    slow.may_send.clear()

    async def apart(wanted: Sequence[RegionKey]) -> list[Any]:
        return [(source, [key for key in wanted if key in source.held]) for source in (slow, quick)]

    monkeypatch.setattr(parts.locator, "sources", apart)
    monkeypatch.setattr(parts.regions, "put", full)
    with pytest.raises(CapacityExceeded, match="planted"):
        await within(parts.regions.ensure(keys(1, 2), "worker"))
    assert slow.running == quick.running == 0
