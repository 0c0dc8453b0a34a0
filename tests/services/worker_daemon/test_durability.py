from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import structlog
from daemon_fakes import SESSION, Parts, down, read, region, until, within

from looseleaf.errors import CapacityExceeded, NotFound
from looseleaf.ids import SessionId, Version
from looseleaf.services.worker_daemon import durability
from looseleaf.services.worker_daemon.arena import SEGMENT_SLOTS_MIN
from looseleaf.services.worker_daemon.core import upload_order
from looseleaf.services.worker_daemon.core.region_table import RegionKey
from looseleaf.services.worker_daemon.durability import DurabilityQueue

OTHER = SessionId("s-2")


def queue_of(parts: Parts, *, eager: bool = True) -> DurabilityQueue:
    """Over a store that shares no memory with the daemon."""
    store: Any = parts.store

    async def put(keys: Sequence[RegionKey]) -> None:
        await store.put_regions(_copies(parts, keys))

    return DurabilityQueue(store, parts.regions, put, eager=eager)


async def _copies(parts: Parts, keys: Sequence[RegionKey]) -> AsyncIterator[tuple[bytes, int, bytes]]:
    for key in keys:
        if (data := read(parts.regions, key)) is not None:
            yield *key, data


@pytest.fixture
async def queue(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DurabilityQueue]:
    monkeypatch.setattr(upload_order, "RETRY_DELAY_S_MIN", 0.001)
    monkeypatch.setattr(upload_order, "RETRY_DELAY_S_MAX", 0.002)
    monkeypatch.setattr(durability, "STOP_LIMIT_S", 0.05)
    made = queue_of(parts)
    made.start()
    yield made
    await made.stop()


async def stage(
    parts: Parts, queue: DurabilityQueue, version: int, *numbers: int, session: SessionId = SESSION
) -> None:
    """A save puts regions and commits; the version is announced as the commit does it."""
    save = object()
    for number in numbers:
        key, data = region(number)
        await parts.regions.put(key, memoryview(data), save)
    keys = [region(number)[0] for number in numbers]
    parts.store.versions[version] = keys
    queue.add(session, Version(version), keys)
    parts.regions.unpin(save)


def expendable(parts: Parts) -> int:
    """Regions that the arena might drop; drops them."""
    return len(parts.regions.table.evict(100))


async def test_staged_version_is_uploaded_then_its_slots_may_go(parts: Parts, queue: DurabilityQueue) -> None:
    parts.store.errors["mark_durable"] = [down()]
    await stage(parts, queue, 1, 1, 2)
    assert expendable(parts) == 0, "nobody else has them yet"
    await within(queue.flushed())
    assert parts.store.marked == [1] and parts.store.on_disk == {region(1)[0], region(2)[0]}
    assert expendable(parts) == 2


async def test_store_that_is_away_or_full_is_asked_again(parts: Parts, queue: DurabilityQueue) -> None:
    parts.store.errors["mark_durable"] = [down(), down()]
    parts.store.errors["put_regions"] = [CapacityExceeded("STORE_FULL", "full")]
    await stage(parts, queue, 1, 1)
    await within(queue.flushed())
    assert parts.store.marked == [1]


async def test_version_that_cannot_be_uploaded_does_not_hold_up_other_sessions(
    parts: Parts, queue: DurabilityQueue
) -> None:
    await stage(parts, queue, 1, 1)
    parts.store.versions[1] = [region(99)[0]]  # what it names is nowhere
    await stage(parts, queue, 2, 2, session=OTHER)
    await until(lambda: parts.store.marked == [2])
    assert queue.waiting == 1 and expendable(parts) == 2, "its own regions are not what is missing"


async def test_version_waits_for_regions_that_another_host_uploads(parts: Parts, queue: DurabilityQueue) -> None:
    await stage(parts, queue, 2, 2)
    elsewhere = region(50)[0]
    parts.store.versions[2].append(elsewhere)
    await until(lambda: region(2)[0] in parts.store.on_disk)
    assert queue.waiting == 1
    parts.store.on_disk.add(elsewhere)
    await within(queue.flushed())
    assert parts.store.marked == [2]


async def test_version_whose_regions_are_lost_is_given_up_after_a_while(
    parts: Parts, queue: DurabilityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_order, "FOREIGN_REGIONS_WAIT_S", 0.01)
    await stage(parts, queue, 1, 1)
    parts.store.versions[1].append(region(99)[0])
    await within(queue.flushed())
    assert queue.waiting == 0 and parts.store.marked == []


async def test_regions_of_a_forgotten_version_stay_for_the_next_one(parts: Parts, queue: DurabilityQueue) -> None:
    await stage(parts, queue, 1, 1)
    del parts.store.versions[1]
    await within(queue.flushed())
    assert expendable(parts) == 0, "a newer version may name them"
    parts.store.versions[2] = [region(1)[0]]
    queue.add(SESSION, Version(2), [])
    await within(queue.flushed())
    assert parts.store.marked == [2] and region(1)[0] in parts.store.on_disk and expendable(parts) == 1


async def test_regions_of_a_version_that_stays_forgotten_are_rescued_once_and_let_go(
    parts: Parts, queue: DurabilityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_order, "GIVEN_UP_RETRY_S", 0.0)
    parts.store.errors["put_regions"] = [down()]
    await stage(parts, queue, 1, 1)
    del parts.store.versions[1]
    await until(lambda: region(1)[0] in parts.store.on_disk)
    await until(lambda: not queue._order.waiting)
    assert expendable(parts) == 1


async def test_stop_names_versions_that_stay_given_up(
    parts: Parts, queue: DurabilityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_order, "FOREIGN_REGIONS_WAIT_S", 0.01)
    await stage(parts, queue, 1, 1)
    parts.store.versions[1].append(region(99)[0])
    await within(queue.flushed())
    with structlog.testing.capture_logs() as logs:
        await within(queue.stop())
    assert [(line["session"], line["version"]) for line in logs if line["event"] == "staged_version_lost"] == [
        (SESSION, 1)
    ]


async def test_stop_rescues_the_regions_of_a_version_that_was_given_up(parts: Parts, queue: DurabilityQueue) -> None:
    await stage(parts, queue, 1, 1)
    del parts.store.versions[1]
    await within(queue.flushed())
    assert region(1)[0] not in parts.store.on_disk
    await within(queue.stop())
    assert region(1)[0] in parts.store.on_disk


async def test_stop_uploads_a_version_that_was_given_up_if_it_can_now(
    parts: Parts, queue: DurabilityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_order, "FOREIGN_REGIONS_WAIT_S", 0.01)
    await stage(parts, queue, 1, 1)
    parts.store.versions[1].append(region(99)[0])
    await within(queue.flushed())
    assert queue.waiting == 0 and parts.store.marked == []
    parts.store.on_disk.add(region(99)[0])
    await within(queue.stop())
    assert parts.store.marked == [1]


async def test_regions_of_a_deleted_session_are_let_go(parts: Parts, queue: DurabilityQueue) -> None:
    parts.store.errors["mark_durable"] = [NotFound("SESSION_UNKNOWN", "deleted")]
    await stage(parts, queue, 1, 1)
    await until(lambda: queue.waiting == 0)
    assert expendable(parts) == 1


async def test_region_of_two_versions_stays_until_both_are_durable(parts: Parts, queue: DurabilityQueue) -> None:
    await stage(parts, queue, 1, 1)
    await stage(parts, queue, 2, 1, session=OTHER)
    parts.store.versions[2].append(region(99)[0])
    await until(lambda: parts.store.marked == [1])
    # The region itself is on the disk now, whatever else the second version lacks.
    await until(lambda: expendable(parts) == 1)


async def test_many_versions_of_one_session_are_bounded_and_the_newest_counts(
    parts: Parts, queue: DurabilityQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_order, "VERSIONS_PER_SESSION_MAX", 3)
    parts.store.errors["mark_durable"] = [down() for _ in range(1000)]
    for version in range(1, 9):
        await stage(parts, queue, version, version)
    assert queue.waiting == 3 and expendable(parts) == 0
    parts.store.errors.clear()
    await within(queue.flushed())
    assert parts.store.marked[-2:] == [7, 8] and len(parts.store.marked) == 3 and expendable(parts) == 8


async def test_fault_in_an_upload_is_logged_and_tried_again(parts: Parts, queue: DurabilityQueue) -> None:
    planted: Any = ZeroDivisionError("planted")
    parts.store.errors["mark_durable"] = [planted]
    await stage(parts, queue, 1, 1)
    await within(queue.flushed())
    assert parts.store.marked == [1]


async def test_stop_uploads_what_it_can_and_no_longer(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_of(parts)
    await stage(parts, queue, 1, 1)
    queue.start()
    await within(queue.stop())
    assert parts.store.marked == [1]

    monkeypatch.setattr(durability, "STOP_LIMIT_S", 0.05)
    stuck = queue_of(parts)
    parts.store.errors["mark_durable"] = [down() for _ in range(1000)]
    await stage(parts, stuck, 2, 2)
    stuck.start()
    began_s = time.monotonic()
    await within(stuck.stop())
    assert time.monotonic() - began_s < 5 and stuck.waiting == 1
    await asyncio.sleep(0)


async def test_staged_is_enough_until_room_is_short_or_the_daemon_stops(parts: Parts) -> None:
    queue = queue_of(parts, eager=False)
    queue.start()
    await stage(parts, queue, 1, 1)
    await stage(parts, queue, 2, 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not parts.store.on_disk and queue.waiting == 2
    parts.store.versions[2].append(region(1)[0])
    asking = asyncio.create_task(parts.regions.admit("save", SEGMENT_SLOTS_MIN - 1))
    await within(asking)
    parts.regions.end_save("save")
    assert parts.store.marked == [2] and len(parts.regions.table) == 1, "it went, and one of its slots to the save"

    await stage(parts, queue, 3, 3)
    await within(queue.stop())
    assert parts.store.marked == [2, 3]
