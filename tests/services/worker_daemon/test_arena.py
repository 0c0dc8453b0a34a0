from __future__ import annotations

import os

import pytest

from looseleaf.dirty_tracker import Memfd
from looseleaf.errors import CapacityExceeded, InvalidArgument
from looseleaf.services.worker_daemon.arena import (
    SEGMENT_BYTES_MIN,
    SEGMENT_SLOTS_MIN,
    SEGMENTS_MAX,
    WARM_SLOTS_MAX,
    HostArena,
    Ring,
)
from looseleaf.services.worker_daemon.core.region_table import Slot
from looseleaf.units import REGION_BYTES


class FakeSegment:
    """As a memfd, without memory."""

    fd = -1

    def readonly_fd(self) -> int:
        return -1


def test_slots_are_given_out_up_to_the_limit_and_again_when_freed() -> None:
    arena = HostArena(SEGMENT_BYTES_MIN)
    slots = [arena.allocate() for _ in range(SEGMENT_SLOTS_MIN)]
    assert len(set(slots)) == SEGMENT_SLOTS_MIN and arena.used_bytes == SEGMENT_BYTES_MIN
    with pytest.raises(CapacityExceeded, match="ARENA_FULL"):
        arena.allocate()
    arena.free(slots[3])
    assert arena.allocate() == slots[3]
    arena.close()
    arena.free(slots[0])


def test_free_slots_keep_their_memory_up_to_a_limit_and_are_taken_first() -> None:
    arena = HostArena(2 * SEGMENT_BYTES_MIN)
    try:
        slots = [arena.allocate() for _ in range(WARM_SLOTS_MAX + 3)]
        for slot in slots:
            arena.write(slot, memoryview(b"old bytes"))
            arena.free(slot)
        cool(arena)
        assert arena.used_bytes == 0
        kept = [slot for slot in slots if bytes(arena.view(slot, 9)) == b"old bytes"]
        assert len(kept) == WARM_SLOTS_MAX
        assert {arena.allocate() for _ in kept} == set(kept) and not arena.has_warm
        assert arena.allocate() not in kept
    finally:
        arena.close()


def test_slots_that_are_about_to_be_used_keep_their_memory() -> None:
    arena = HostArena(2 * SEGMENT_BYTES_MIN)
    slots = [arena.allocate() for _ in range(WARM_SLOTS_MAX + 9)]
    for slot in slots:
        arena.write(slot, memoryview(b"x"))
    arena.keep_warm(WARM_SLOTS_MAX + 6)
    for slot in slots:
        arena.free(slot)
    cool(arena)
    assert written(arena, slots) == WARM_SLOTS_MAX + 6
    arena.keep_warm(0)
    cool(arena)
    assert written(arena, slots) == WARM_SLOTS_MAX
    arena.close()


def cool(arena: HostArena) -> None:
    """All the steps."""
    while arena.too_warm:
        arena.cool()


def written(arena: HostArena, slots: list[Slot]) -> int:
    """How many of these slots still show what was written: a hole shows zeros."""
    return sum(bytes(arena.view(slot, 1)) == b"x" for slot in slots)


def test_descriptor_for_others_cannot_be_written() -> None:
    arena = HostArena(SEGMENT_BYTES_MIN)
    slot = arena.allocate()
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(arena.readonly_fd(slot.segment), b"x")
        with pytest.raises(TypeError):
            arena.view(slot, 4)[0] = 1
    finally:
        arena.close()


def test_ring_slot_outside_is_refused() -> None:
    ring = Ring(3 * REGION_BYTES)
    try:
        assert len(ring.view(2, 10)) == 10
        for slot, length in ((3, 10), (0, REGION_BYTES + 1)):
            with pytest.raises(InvalidArgument, match="RING_SLOT_UNKNOWN"):
                ring.view(slot, length)
    finally:
        ring.close()


def test_arena_below_one_segment_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="ARENA_TOO_SMALL"):
        HostArena(SEGMENT_BYTES_MIN - 1)


def test_arena_has_few_segments_however_large_it_is() -> None:
    arena = HostArena(1000 * SEGMENT_BYTES_MIN)
    try:
        segments = {arena.allocate().segment for _ in range(5)}
        assert segments == {0} and os.fstat(arena.readonly_fd(0)).st_size * SEGMENTS_MAX >= arena.limit_bytes - (
            SEGMENTS_MAX * REGION_BYTES
        )
    finally:
        arena.close()


@pytest.mark.parametrize("limit_slots", [64, 127, 128, 150, 2047, 2048, 2100, 5000])
def test_slots_that_are_promised_are_those_that_its_segments_have(
    limit_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Memfd, "create", lambda _name, _size: FakeSegment())
    monkeypatch.setattr(os, "fchmod", lambda _fd, _mode: None)
    arena = HostArena(limit_slots * REGION_BYTES)
    for _ in range(arena.slots_max):
        arena.allocate()
    with pytest.raises(CapacityExceeded, match="ARENA_FULL"):
        arena.allocate()
    assert limit_slots // 2 < arena.slots_max <= limit_slots
