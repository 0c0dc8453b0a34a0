"""`LinkStateIO` against a scripted daemon, which answers on its link's reader thread."""

from __future__ import annotations

import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.checkpoint.version_list import ListedVersion
from looseleaf.dirty_tracker import Memfd
from looseleaf.errors import CapacityExceeded, Conflict, Corrupt, InvalidArgument, LooseLeafError
from looseleaf.protocol.channel import Channel
from looseleaf.protocol.frames import close_fds
from looseleaf.protocol.region_rows import pack_places, pack_regions, unpack_places, unpack_regions
from looseleaf.protocol.rpc import Reply
from looseleaf.protocol.state_io import PUT_REGIONS_MAX, UNITS_FRAME_BYTES_MAX, LinkStateIO
from looseleaf.protocol.threaded import ThreadedLink
from looseleaf.units import MIB, REGION_BYTES

BreakOff = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Ref:
    region_id: bytes
    length_bytes: int


def region(number: int, length: int = REGION_BYTES) -> tuple[Ref, memoryview]:
    return Ref(number.to_bytes(16, "big"), length), memoryview(number.to_bytes(4, "big") * (length // 4))


class Daemon:
    """Keeps regions in a dict and serves them from one memfd per restore."""

    def __init__(self, sock: socket.socket, ring_slots: int = 4) -> None:
        self.regions: dict[bytes, bytes] = {}
        self.units: dict[bytes, bytes] = {}
        self.versions: list[list[Any]] = []
        self.batches: list[list[Any]] = []
        self.sent_segments: set[int] = set()
        self.overrides: dict[str, Callable[[dict[str, Any], list[int]], Any]] = {}
        self.ring_slots = ring_slots
        self.ring = os.memfd_create("ring")
        os.ftruncate(self.ring, ring_slots * REGION_BYTES)
        self.link = ThreadedLink(Channel(sock), on_request=self._answer).start()

    def _answer(self, message: dict[str, Any], fds: list[int]) -> None:
        name = message["t"]
        try:
            answer = self.overrides.get(name, getattr(self, f"on_{name}"))(message, fds)
        except LooseLeafError as error:
            self.link.reply_error(message["id"], error)
            return
        reply = answer if isinstance(answer, Reply) else Reply(answer)
        self.link.reply(message["id"], reply.body, reply.fds)
        if reply.close_fds:
            close_fds(reply.fds)

    def on_ring(self, message: dict[str, Any], fds: list[int]) -> Reply:
        return Reply({"size_bytes": self.ring_slots * REGION_BYTES, "slot_bytes": REGION_BYTES}, [self.ring])

    def on_have_regions(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        return {"missing": [i for i, (rid, _) in enumerate(message["regions"]) if rid not in self.regions]}

    def on_put_regions(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self.batches.append(message["regions"])
        with mmap.mmap(self.ring, self.ring_slots * REGION_BYTES) as memory:
            for rid, length, slot in message["regions"]:
                self.regions[rid] = memory[slot * REGION_BYTES : slot * REGION_BYTES + length]
        return {}

    def on_put_units(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self.batches.append(message["units"])
        self.units.update(message["units"])
        return {}

    def on_commit(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        if message["parent"] != 0:
            raise Conflict("MANIFEST_MOVED")
        return {"version": 1, "durable": False}

    def on_manifest(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        manifest = None if message["known_version"] == 3 else b"m"
        return {"version": 3, "epoch": 2, "durable_version": 1, "manifest": manifest}

    def on_list_versions(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        return {"versions": self.versions[: message["limit"]]}

    def on_fetch_units(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        return {"units": [[h, self.units[h]] for h in message["hashes"][:2] if h in self.units]}

    def on_map_regions(self, message: dict[str, Any], fds: list[int]) -> Reply:
        segment = len(self.sent_segments)
        self.sent_segments.add(segment)
        regions = unpack_regions(message, count_max=10_000)
        memory = Memfd.create("segment", max(1, len(regions)) * REGION_BYTES)
        for number, (rid, length) in enumerate(regions):
            memory.buffer[number * REGION_BYTES : number * REGION_BYTES + length] = self.regions[rid]
        fd = memory.readonly_fd()
        memory.close()
        places = pack_places((segment, number) for number in range(len(regions)))
        return Reply({"segments": [segment], "places": places}, [fd], close_fds=True)

    def on_unmap_regions(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self.batches.append(message["regions"])
        return {}

    def close(self) -> None:
        self.link.close()
        os.close(self.ring)


@pytest.fixture
def both(pair: tuple[socket.socket, socket.socket]) -> Iterator[tuple[Daemon, LinkStateIO]]:
    daemon = Daemon(pair[0])
    link = ThreadedLink(Channel(pair[1])).start()
    io = LinkStateIO(link)
    yield daemon, io
    io.close()
    link.close()
    daemon.close()


def test_put_regions_more_than_the_ring_holds_all_arrive(both: tuple[Daemon, LinkStateIO]) -> None:
    daemon, io = both
    items = [region(number) for number in range(10)] + [region(10, 4096)]
    io.put_regions(iter(items))
    assert {ref.region_id: data.tobytes() for ref, data in items} == daemon.regions
    assert [len(batch) for batch in daemon.batches] == [2, 2, 2, 2, 2, 1]


def test_put_regions_large_ring_is_filled_in_parts_that_leave_early(pair: tuple[socket.socket, socket.socket]) -> None:
    daemon = Daemon(pair[0], ring_slots=4 * PUT_REGIONS_MAX)
    link = ThreadedLink(Channel(pair[1])).start()
    io = LinkStateIO(link)
    items = [region(number, 4096) for number in range(6 * PUT_REGIONS_MAX + 1)]
    io.put_regions(items)
    assert {ref.region_id: data.tobytes() for ref, data in items} == daemon.regions
    assert [len(batch) for batch in daemon.batches] == [PUT_REGIONS_MAX] * 6 + [1]
    # No slot is written twice before the daemon has answered for it.
    slots = [{row[2] for row in batch} for batch in daemon.batches]
    assert all(not slots[n] & slots[n + 1] for n in range(3)) and slots[4] == slots[0]
    io.close()
    link.close()
    daemon.close()


def test_put_regions_same_region_twice_moves_once(both: tuple[Daemon, LinkStateIO]) -> None:
    daemon, io = both
    io.put_regions([region(1), region(2), region(1)])
    assert sum(len(batch) for batch in daemon.batches) == 2


def test_put_regions_ring_of_one_slot_works(pair: tuple[socket.socket, socket.socket]) -> None:
    daemon = Daemon(pair[0], ring_slots=1)
    link = ThreadedLink(Channel(pair[1])).start()
    io = LinkStateIO(link)
    io.put_regions(region(number) for number in range(3))
    assert len(daemon.regions) == 3
    io.close()
    link.close()
    daemon.close()


def test_put_regions_arena_full_raises_and_a_later_put_works(both: tuple[Daemon, LinkStateIO]) -> None:
    daemon, io = both
    calls = 0

    def full_once(message: dict[str, Any], fds: list[int]) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise CapacityExceeded("ARENA_FULL")
        return daemon.on_put_regions(message, fds)

    daemon.overrides["put_regions"] = full_once
    with pytest.raises(CapacityExceeded):
        io.put_regions(region(number) for number in range(8))
    io.put_regions(region(number) for number in range(20, 24))
    for ref, data in (region(number) for number in range(20, 24)):
        assert daemon.regions[ref.region_id] == data


class BrokenOff(BaseException):
    pass


def test_put_regions_broken_off_waits_for_no_answer_until_the_next_put(both: tuple[Daemon, LinkStateIO]) -> None:
    daemon, io = both
    room = threading.Event()

    def wait_for_room(message: dict[str, Any], fds: list[int]) -> Any:
        assert room.wait(20)
        return daemon.on_put_regions(message, fds)

    def items() -> Iterator[tuple[Ref, memoryview]]:
        yield from (region(number) for number in range(3))
        raise BrokenOff

    daemon.overrides["put_regions"] = wait_for_room
    with pytest.raises(BrokenOff):
        io.put_regions(items())
    assert not daemon.regions
    room.set()
    io.put_regions(region(number) for number in range(20, 24))
    for ref, data in (region(number) for number in (0, 1, *range(20, 24))):
        assert daemon.regions[ref.region_id] == data


def test_put_regions_broken_off_in_its_wait_lets_no_later_put_write_over_what_the_daemon_reads(
    both: tuple[Daemon, LinkStateIO], broken_off: BreakOff
) -> None:
    daemon, io = both
    room = threading.Event()

    def wait_for_room(message: dict[str, Any], fds: list[int]) -> Any:
        assert room.wait(20)
        return daemon.on_put_regions(message, fds)

    daemon.overrides["put_regions"] = wait_for_room
    with broken_off():
        io.put_regions(region(number) for number in range(2))
    opener = threading.Timer(0.1, room.set)
    opener.start()
    io.put_regions(region(number) for number in range(20, 22))
    opener.join()
    for ref, data in (region(number) for number in (0, 1, 20, 21)):
        assert daemon.regions[ref.region_id] == data


def test_put_regions_length_that_does_not_fit_the_bytes_is_refused(both: tuple[Daemon, LinkStateIO]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        both[1].put_regions([(Ref(bytes(16), 8), memoryview(b"1234"))])
    assert caught.value.reason == "REGION_MALFORMED"


def test_have_regions_reports_each_missing_region_once(both: tuple[Daemon, LinkStateIO]) -> None:
    _, io = both
    io.put_regions([region(1)])
    assert io.have_regions([region(n)[0] for n in (2, 1, 3, 2)]) == [0, 2]


def test_map_regions_gives_the_bytes_as_private_writable_memory(
    both: tuple[Daemon, LinkStateIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, io = both
    items = [region(1), region(2), region(3, 4096)]
    io.put_regions(items)
    refs = [ref for ref, _ in items]
    with io.map_regions(refs) as first, io.map_regions(refs) as second:
        assert bytes(first) == b"".join(data for _, data in items)
        first.buffer[0] = 99
        assert second.buffer[0] == 0
    batches = len(daemon.batches)
    monkeypatch.setattr("looseleaf.protocol.state_io.REGIONS_PER_MESSAGE_MAX", 2)
    io.unmap_regions(refs)
    rows = [[ref.region_id, ref.length_bytes] for ref in refs]
    assert daemon.batches[batches:] == [rows[:2], rows[2:]]


def test_map_many_asks_once_and_gives_each_group_its_own_memory(both: tuple[Daemon, LinkStateIO]) -> None:
    daemon, io = both
    groups = [[region(1), region(2)], [], [region(2), region(3, 4096)]]
    io.put_regions(item for group in groups for item in group)
    asked: list[int] = []

    def answer(message: dict[str, Any], fds: list[int]) -> Any:
        asked.append(len(unpack_regions(message, count_max=10_000)))
        return daemon.on_map_regions(message, fds)

    daemon.overrides["map_regions"] = answer
    mapped = io.map_many([[ref for ref, _ in group] for group in groups])
    assert [bytes(memory) for memory in mapped] == [b"".join(data for _, data in group) for group in groups]
    assert asked == [4]
    mapped[0].buffer[REGION_BYTES] = 99
    assert mapped[2].buffer[0] == 0
    for memory in mapped:
        memory.close()


def test_map_regions_of_nothing_is_empty(both: tuple[Daemon, LinkStateIO]) -> None:
    with both[1].map_regions([]) as mapped:
        assert mapped.size_bytes == 0


@pytest.mark.parametrize(
    ("body", "fds"),
    [
        ({"segments": [], "places": pack_places([(5, 0)])}, 0), ({"segments": [1], "places": pack_places([(1, 0)])}, 0),
        ({"segments": [1, 1], "places": pack_places([(1, 0)])}, 2), ({"segments": [1], "places": b""}, 1),
        ({"segments": [1], "places": pack_places([(1, 0)])[:-4]}, 1), ({"segments": [1], "places": b"abc"}, 1),
        ({"segments": [1], "places": [[1, 0]]}, 1), ({"segments": "x", "places": b""}, 1), ({}, 1),
    ],
)
def test_map_regions_nonsense_reply_is_refused(
    both: tuple[Daemon, LinkStateIO], body: dict[str, Any], fds: int
) -> None:
    daemon, io = both
    daemon.overrides["map_regions"] = lambda message, _: Reply(body, [daemon.ring] * fds)
    with pytest.raises(InvalidArgument):
        io.map_regions([region(1)[0]])


@pytest.mark.parametrize("body", [{}, {"missing": [7]}, {"missing": ["x"]}, {"missing": [-1]}, {"missing": 1}])
def test_have_regions_nonsense_reply_is_refused(both: tuple[Daemon, LinkStateIO], body: dict[str, Any]) -> None:
    both[0].overrides["have_regions"] = lambda message, _: body
    with pytest.raises(InvalidArgument):
        both[1].have_regions([region(1)[0]])


@pytest.mark.parametrize(
    ("body", "fds"),
    [
        ({"size_bytes": REGION_BYTES, "slot_bytes": REGION_BYTES}, 0),
        ({"size_bytes": 1 << 40, "slot_bytes": REGION_BYTES}, 1),
        ({"size_bytes": REGION_BYTES, "slot_bytes": 4096}, 1),
        ({"size_bytes": 10, "slot_bytes": REGION_BYTES}, 1),
        ({}, 1),
    ],
)
def test_ring_nonsense_reply_is_refused(both: tuple[Daemon, LinkStateIO], body: dict[str, Any], fds: int) -> None:
    daemon, io = both
    daemon.overrides["ring"] = lambda message, _: Reply(body, [daemon.ring] * fds)
    with pytest.raises(InvalidArgument):
        io.put_regions([region(1)])


def test_put_units_are_sent_in_frames_below_the_limit(both: tuple[Daemon, LinkStateIO]) -> None:
    daemon, io = both
    units = {bytes([number]): bytes([number]) * (5 * MIB) for number in range(8)}
    io.put_units(iter(units.items()))
    assert daemon.units == units
    assert len(daemon.batches) == 3
    assert all(sum(len(data) for _, data in batch) <= UNITS_FRAME_BYTES_MAX for batch in daemon.batches)


def test_fetch_units_asks_again_until_all_have_come(both: tuple[Daemon, LinkStateIO]) -> None:
    daemon, io = both
    daemon.units = {bytes([number]): b"unit" for number in range(5)}
    assert io.fetch_units([*daemon.units, b"\x01"]) == daemon.units
    assert io.fetch_units([]) == {}


def test_fetch_units_one_that_never_comes_raises_corrupt(both: tuple[Daemon, LinkStateIO]) -> None:
    both[0].units = {b"a": b"unit"}
    with pytest.raises(Corrupt) as caught:
        both[1].fetch_units([b"a", b"b"])
    assert caught.value.reason == "UNIT_MISSING"


def test_commit_returns_the_version_or_raises_the_conflict(both: tuple[Daemon, LinkStateIO]) -> None:
    assert both[1].commit(b"manifest", 0, 2, "x-1") == 1
    with pytest.raises(Conflict):
        both[1].commit(b"manifest", 5, 2, "x-1")


def test_versions_are_rows_of_what_people_ask_for(both: tuple[Daemon, LinkStateIO]) -> None:
    both[0].versions = [[3, 2, 1000, True, 2048, 4, "x-3", 9], [2, 1, 900, False, 2048, 4, "x-2", 0]]
    assert both[1].versions(1) == [ListedVersion(3, 2, 1000, True, 2048, 4, "x-3", 9)]
    both[0].versions = [[3, 2, 1000, 1, 2048, 4, "x-3", 9]]
    with pytest.raises(InvalidArgument, match="FIELD_MALFORMED"):
        both[1].versions(1)


def test_manifest_returns_head_and_bytes_unless_known(both: tuple[Daemon, LinkStateIO]) -> None:
    head = {"version": 3, "epoch": 2, "durable_version": 1}
    assert both[1].manifest() == (head, b"m")
    assert both[1].manifest(0, 3) == (head, None)


@given(st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.integers(1, REGION_BYTES))))
def test_packed_regions_come_back(rows: list[tuple[bytes, int]]) -> None:
    assert unpack_regions(pack_regions(rows), count_max=len(rows)) == rows
    if rows:
        with pytest.raises(InvalidArgument, match="MESSAGE_TOO_LONG"):
            unpack_regions(pack_regions(rows), count_max=len(rows) - 1)


@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 1 << 16))))
def test_packed_places_come_back(places: list[tuple[int, int]]) -> None:
    found = unpack_places({"places": pack_places(places)})
    assert found == [(segment, slot * REGION_BYTES) for segment, slot in places]
