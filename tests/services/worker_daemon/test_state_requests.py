from __future__ import annotations

import asyncio
import mmap
import os
from typing import Any

import pytest
from daemon_fakes import SESSION, Parts, down, manifest_of, region, until, within

from looseleaf.dirty_tracker import Memfd
from looseleaf.errors import CapacityExceeded, Conflict, Corrupt, InvalidArgument, LooseLeafError, PreconditionFailed
from looseleaf.ids import Epoch, ExecutionId, SessionId, Version
from looseleaf.protocol.region_rows import pack_regions, unpack_places
from looseleaf.services.worker_daemon import regions as regions_module
from looseleaf.services.worker_daemon import save_patience, state_requests
from looseleaf.services.worker_daemon.arena import SEGMENT_SLOTS_MIN
from looseleaf.services.worker_daemon.core import arena_room
from looseleaf.services.worker_daemon.save_patience import SavePatience
from looseleaf.services.worker_daemon.state_requests import StateOwner, StateRequests
from looseleaf.units import REGION_BYTES
from looseleaf.v1 import checkpoint_store_pb2 as pb


class Peer:
    """A kernel or worker that sends requests."""

    def __init__(self, parts: Parts, session: SessionId = SESSION) -> None:
        self.requests: StateRequests = parts.requests(StateOwner(session, Epoch(1)))
        self._ring: mmap.mmap | None = None

    async def ask(self, kind: str, **body: Any) -> dict[str, Any]:
        return (await self.requests.handlers()[kind](body, [])).body

    async def put(self, *numbers: int, spoil: int = -1) -> None:
        """Regions by way of the ring; the one of number `spoil` has a wrong byte."""
        if self._ring is None:
            reply = await self.requests.ring({}, [])
            self._ring = mmap.mmap(reply.fds[0], reply.body["size_bytes"])
        rows = []
        for slot, number in enumerate(numbers):
            (region_id, length), data = region(number)
            start = slot * REGION_BYTES
            self._ring[start : start + length] = data if number != spoil else b"?" + data[1:]
            rows.append([region_id, length, slot])
        await self.ask("put_regions", regions=rows)

    async def commit(
        self, *numbers: int, parent: int = 0, session: SessionId = SESSION, execution: str = "x-1"
    ) -> dict[str, Any]:
        manifest = manifest_of([region(number)[0] for number in numbers], parent=parent, session=session)
        return await self.ask("commit", manifest=manifest, parent=parent, epoch=1, execution_id=execution)

    async def close(self) -> None:
        if self._ring is not None:
            self._ring.close()
        await self.requests.close()


@pytest.fixture
async def peer(parts: Parts) -> Any:
    made = Peer(parts)
    yield made
    await made.close()


def keys(*numbers: int) -> list[Any]:
    return [region(number)[0] for number in numbers]


def rows(*numbers: int) -> list[list[Any]]:
    return [list(key) for key in keys(*numbers)]


def packed(*numbers: int) -> dict[str, Any]:
    return dict(pack_regions(keys(*numbers)))


async def test_saved_regions_are_staged_and_its_pins_end_with_the_commit(parts: Parts, peer: Peer) -> None:
    assert await peer.ask("have_regions", regions=rows(1, 2)) == {"missing": [0, 1]}
    await peer.put(1, 2)
    assert await peer.commit(1, 2) == {"version": 1, "durable": False}
    assert parts.staged == [(SESSION, 1, keys(1, 2))]
    assert parts.regions.table.pinned(peer.requests._save) == []


async def test_commit_of_carried_regions_stages_only_what_is_new(parts: Parts, peer: Peer) -> None:
    await peer.put(1)
    await peer.commit(1)
    await peer.put(2)
    await peer.commit(1, 2, parent=1)
    assert parts.staged[1] == (SESSION, 2, keys(2))


async def test_new_regions_take_the_slots_of_those_that_the_newest_version_no_longer_names(
    parts: Parts, peer: Peer
) -> None:
    await peer.put(1, 2)
    await peer.commit(1, 2)
    await peer.put(3)
    await peer.commit(2, 3, parent=1)
    used = parts.regions.arena.used_bytes
    await peer.put(4)
    assert parts.regions.arena.used_bytes > used, "version 2 may still be lost, and region 1 is its parent's"
    parts.make_durable(SESSION, 1)
    parts.make_durable(SESSION, 2)
    used = parts.regions.arena.used_bytes
    await peer.put(5)
    assert parts.regions.arena.used_bytes == used
    assert [key in parts.regions.table for key in keys(1, 2, 3, 4, 5)] == [False, True, True, True, True]


async def test_region_that_a_save_found_here_stays_until_its_commit(parts: Parts, peer: Peer) -> None:
    await peer.put(1)
    await peer.commit(1)
    parts.make_durable(SESSION, 1)
    other = Peer(parts, SessionId("s-2"))
    assert await other.ask("have_regions", regions=rows(1)) == {"missing": []}
    assert parts.regions.table.evict(10) == []
    await other.commit(1, session=SessionId("s-2"))
    assert parts.staged[-1] == ("s-2", 1, keys(1))
    await other.close()


async def test_durable_commit_stages_nothing(parts: Parts, peer: Peer) -> None:
    parts.store.committed_durable = True
    await peer.put(1)
    assert (await peer.commit(1))["durable"]
    assert parts.staged == [] and len(parts.regions.table.evict(10)) == 1


@pytest.mark.parametrize("error", [Conflict("MANIFEST_MOVED", "moved"), PreconditionFailed("STALE_EPOCH", "old")])
async def test_refused_commit_keeps_its_pins_for_a_repeat(parts: Parts, peer: Peer, error: LooseLeafError) -> None:
    parts.store.errors["commit"] = [error]
    await peer.put(1)
    with pytest.raises(type(error)):
        await peer.commit(1)
    assert parts.staged == [] and parts.regions.table.pinned(peer.requests._save) == keys(1)
    await peer.commit(1)
    assert parts.staged == [(SESSION, 1, keys(1))]


async def test_commit_without_an_answer_counts_as_staged(parts: Parts, peer: Peer) -> None:
    parts.store.errors["commit"] = [down()]
    await peer.put(1)
    with pytest.raises(LooseLeafError, match="STORE_DOWN"):
        await peer.commit(1)
    assert parts.staged == [(SESSION, 1, keys(1))]


async def test_commit_goes_on_when_its_peer_is_gone(parts: Parts) -> None:
    peer = Peer(parts)
    await peer.put(1)
    parts.store.may_commit.clear()
    committing = asyncio.create_task(peer.commit(1))
    await until(lambda: bool(peer.requests._commits))
    committing.cancel()
    closing = asyncio.create_task(peer.close())
    await asyncio.sleep(0)
    assert keys(1)[0] in parts.regions.table
    parts.store.may_commit.set()
    await within(closing)
    assert parts.staged == [(SESSION, 1, keys(1))] and peer.requests.owner.committed == ("x-1", 1)


async def test_commit_that_waits_for_another_one_is_not_known_until_the_store_has_said_so(parts: Parts) -> None:
    peer = Peer(parts)
    owner = peer.requests.owner
    parts.store.may_commit.clear()
    commits = [asyncio.create_task(peer.commit(1, execution=execution)) for execution in ("x-1", "x-2")]
    await until(lambda: len(peer.requests._commits) == 2 and peer.requests._committing.locked())
    assert not owner.may_have_committed(ExecutionId("x-3"))
    # The worker is killed, and its end is not waited for any longer.
    for execution in ("x-1", "x-2"):
        assert owner.may_have_committed(ExecutionId(execution))
    parts.store.may_commit.set()
    await within(asyncio.gather(*commits))
    await peer.close()
    assert owner.committed[0] == "x-2"
    assert not any(owner.may_have_committed(ExecutionId(execution)) for execution in ("x-1", "x-2"))


@pytest.mark.parametrize("then", ["refused", "put", "repeated"])
async def test_commit_under_way_and_what_its_peer_does_meanwhile_keep_their_regions_apart(
    parts: Parts, peer: Peer, then: str
) -> None:
    await peer.put(1)
    parts.store.may_commit.clear()
    committing = asyncio.create_task(peer.commit(1))
    await until(peer.requests._committing.locked)
    expected = [(SESSION, 1, keys(1))]
    more: list[Any] = []
    if then == "refused":
        parts.store.errors["admit_save"] = [CapacityExceeded("SESSION_FULL", "too large")]
        with pytest.raises(CapacityExceeded):
            await peer.ask("have_regions", regions=rows(1, 2))
    elif then == "put":
        assert await peer.ask("have_regions", regions=rows(1, 2)) == {"missing": [1]}
        await peer.put(2)
    else:
        parts.store.errors["commit"] = [CapacityExceeded("STORE_FULL", "full")]
        more = [asyncio.create_task(peer.commit(1))]
    parts.store.may_commit.set()
    ended = await within(asyncio.gather(committing, *more, return_exceptions=True))
    assert [isinstance(one, CapacityExceeded) for one in ended] == ([True, False] if more else [False])
    if then == "put":
        await peer.commit(1, 2, parent=1)
        expected.append((SESSION, 2, keys(1, 2)))
    assert parts.staged == expected
    assert all(key in parts.regions.table for _, _, staged in expected for key in staged)


async def test_regions_of_a_save_without_commit_go_with_the_connection(parts: Parts) -> None:
    peer = Peer(parts)
    await peer.put(1, 2)
    await peer.close()
    assert parts.regions.arena.used_bytes == 0


async def test_put_with_one_bad_region_keeps_nothing_of_the_message(parts: Parts, peer: Peer) -> None:
    with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH"):
        await peer.put(1, 2, 3, spoil=2)
    assert parts.regions.arena.used_bytes == 0
    await peer.put(1, 2, 3)


async def test_failed_put_gives_back_the_room_of_its_save_and_not_that_of_the_next(parts: Parts, peer: Peer) -> None:
    await peer.ask("have_regions", regions=rows(1, 2, 3))
    with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH"):
        await peer.put(1, spoil=1)
    assert parts.regions.room.reserved == 0
    await peer.ask("have_regions", regions=rows(1, 2, 3))
    late = asyncio.create_task(peer.put(1, spoil=1))
    await asyncio.sleep(0)
    await peer.ask("have_regions", regions=rows(1, 2, 3))
    with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH"):
        await within(late)
    assert parts.regions.room.reserved >= 2


async def test_room_is_for_all_parts_of_an_ask(parts: Parts, peer: Peer) -> None:
    for continues, reserved in ((False, 2), (True, 4), (True, 6), (False, 2)):
        first = 10 * reserved
        await peer.ask("have_regions", regions=rows(first, first + 1), continues=continues)
        assert parts.regions.room.reserved == reserved


async def test_save_without_room_is_refused_before_it_puts_anything_and_may_ask_again(
    parts: Parts, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena_room, "ROOM_WAIT_S", 0.02)
    for number in range(SEGMENT_SLOTS_MIN - 2):
        key, data = region(100 + number)
        await parts.regions.put(key, memoryview(data), "other")
    with pytest.raises(CapacityExceeded, match="ARENA_FULL") as refused:
        await peer.ask("have_regions", regions=rows(100, 1, 2, 3))
    told = refused.value.fields
    assert (told["needed_bytes"], told["available_bytes"]) == (3 * REGION_BYTES, 2 * REGION_BYTES)
    assert parts.regions.room.reserved == 0
    assert (await peer.ask("have_regions", regions=rows(100, 1, 2)))["missing"] == [1, 2]
    assert parts.regions.room.reserved == 2
    await peer.put(1, 2)
    await peer.commit(1, 2)
    assert parts.regions.room.reserved == 0
    parts.regions.unpin("other")


async def test_room_of_a_save_that_never_comes_is_given_back_with_its_connection_or_the_next_ask(parts: Parts) -> None:
    peer, next_one = Peer(parts), Peer(parts, SessionId("s-2"))
    await peer.ask("have_regions", regions=rows(*range(SEGMENT_SLOTS_MIN)))
    waiting = asyncio.create_task(next_one.ask("have_regions", regions=rows(*range(200, 220))))
    await asyncio.sleep(0)
    await peer.ask("have_regions", regions=rows(*range(SEGMENT_SLOTS_MIN - 20)))
    assert len((await within(waiting))["missing"]) == 20 and parts.regions.room.reserved == SEGMENT_SLOTS_MIN
    for ended in (peer, next_one):
        await ended.close()
    assert parts.regions.room.reserved == 0


async def test_commit_that_is_refused_gives_its_room_back(parts: Parts, peer: Peer) -> None:
    await peer.ask("have_regions", regions=rows(1, 2))
    parts.store.errors["commit"] = [Conflict("MANIFEST_MOVED", "moved")]
    with pytest.raises(Conflict):
        await peer.commit()
    assert parts.regions.room.reserved == 0


async def test_put_into_a_full_arena_keeps_nothing_of_the_message(
    parts: Parts, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions_module, "ROOM_WAIT_S", 0.05)
    for number in range(SEGMENT_SLOTS_MIN - 1):
        key, data = region(100 + number)
        await parts.regions.put(key, memoryview(data), "other")
    with pytest.raises(CapacityExceeded, match="ARENA_FULL"):
        await peer.put(1, 2)
    assert len(parts.regions.table) == SEGMENT_SLOTS_MIN - 1
    parts.regions.unpin("other")


async def test_put_outside_the_ring_or_without_one_is_refused(parts: Parts, peer: Peer) -> None:
    with pytest.raises(PreconditionFailed, match="NO_RING"):
        await peer.ask("put_regions", regions=[])
    await peer.put(1)
    with pytest.raises(InvalidArgument, match="RING_SLOT_UNKNOWN"):
        await peer.ask("put_regions", regions=[[b"r" * 16, 10, 10_000]])


async def test_mapped_regions_stay_until_each_mapping_is_given_back(parts: Parts, peer: Peer) -> None:
    await peer.put(1)
    await peer.commit(1)
    for _ in range(2):
        reply = await peer.requests.map_regions(packed(1), [])
    assert reply.fds == [] and reply.body["segments"] == [], "the segment was sent before"
    parts.make_durable(SESSION, 1)
    await peer.ask("unmap_regions", regions=rows(1))
    assert parts.regions.table.evict(1) == []
    await peer.ask("unmap_regions", regions=rows(1))
    assert len(parts.regions.table.evict(1)) == 1


async def test_mapped_place_holds_the_bytes(parts: Parts, peer: Peer) -> None:
    await peer.put(1, 2)
    reply = await peer.requests.map_regions(packed(2, 1, 2), [])
    (_segment, offset), _one, again = unpack_places(reply.body)
    assert (offset, len(reply.fds)) == (again[1], 1)
    size_bytes = os.fstat(reply.fds[0]).st_size
    with Memfd.open_fd(reply.fds[0], size_bytes, False) as memory:
        data = region(2)[1]
        assert bytes(memoryview(memory.buffer)[offset : offset + len(data)]) == data


async def test_units_come_in_frames_and_the_rest_is_asked_again(
    parts: Parts, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_requests, "UNITS_REPLY_BYTES_MAX", 10)
    await peer.ask("put_units", units=[[bytes([n]) * 16, b"x" * 6] for n in range(3)])
    reply = await peer.ask("fetch_units", hashes=[bytes([n]) * 16 for n in range(3)])
    assert [unit_hash[0] for unit_hash, _data in reply["units"]] == [0]


async def test_units_of_this_host_come_without_the_store(parts: Parts, peer: Peer) -> None:
    there, elsewhere = b"t" * 16, b"e" * 16
    parts.store.units[elsewhere] = b"saved on another host"
    await peer.ask("put_units", units=[[there, b"saved here"]])
    first = await peer.ask("fetch_units", hashes=[there, elsewhere])
    parts.store.units.clear()
    assert sorted(first["units"]) == [[elsewhere, b"saved on another host"], [there, b"saved here"]]
    assert sorted((await peer.ask("fetch_units", hashes=[elsewhere, there]))["units"]) == sorted(first["units"])


async def test_units_that_the_store_refused_are_not_kept(parts: Parts, peer: Peer) -> None:
    parts.store.errors["put_units"] = [CapacityExceeded("STORE_BUSY", "busy")]
    with pytest.raises(CapacityExceeded):
        await peer.ask("put_units", units=[[b"t" * 16, b"data"]])
    with pytest.raises(KeyError):
        await peer.ask("fetch_units", hashes=[b"t" * 16])


async def test_units_of_a_save_wait_for_room_at_a_full_store_for_a_time(
    parts: Parts, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_patience, "RETRY_S", 0.0)
    parts.store.errors["put_units"] = [CapacityExceeded(reason, "full") for reason in ("STORE_FULL", "TENANT_FULL")]
    patience = peer.requests.patience
    patience.patience_s = 60.0
    heard: list[LooseLeafError] = []
    patience.on_held_up = heard.append
    await peer.ask("put_units", units=[[b"t" * 16, b"data"]])
    assert [full.reason for full in heard] == ["STORE_FULL"]
    assert parts.store.units == {b"t" * 16: b"data"}
    parts.store.errors["put_units"] = [CapacityExceeded("STORE_FULL", "full")]
    patience.patience_s = 0.0
    with pytest.raises(CapacityExceeded, match="STORE_FULL"):
        await peer.ask("put_units", units=[[b"u" * 16, b"data"]])


@pytest.mark.parametrize("store", ["refuses", "is silent", "has it"])
async def test_commit_of_a_peer_that_has_gone_is_asked_for_once_more_and_not_repeated(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    peer = Peer(parts)
    peer.requests.patience = SavePatience(3600.0, last_patience_s=0.05)
    calls: list[str] = []
    saved: dict[int, bytes] = {}

    async def commit(_session: str, **request: Any) -> Any:
        calls.append("commit")
        if store == "has it":
            saved[request["parent"] + 1] = request["manifest"]
        if store == "is silent":
            await asyncio.Event().wait()
        raise down()

    async def manifest(_session: str, version: int = 0) -> Any:
        calls.append("manifest")
        if store == "is silent":
            await asyncio.Event().wait()
        if store == "refuses":
            raise down()
        return pb.GetManifestResponse(version=version, manifest=saved[version])

    monkeypatch.setattr(save_patience, "RETRY_S", 3600.0)
    monkeypatch.setattr(parts.store, "commit", commit)
    monkeypatch.setattr(parts.store, "manifest", manifest)
    await peer.put(1)
    committing = asyncio.create_task(peer.commit(1))
    await until(lambda: bool(calls))
    committing.cancel()
    await within(peer.close())
    assert calls == ["commit", "manifest"]
    owner = peer.requests.owner
    if store == "has it":
        assert (owner.committed, owner.unanswered) == (("x-1", 1), "")
    else:
        assert (owner.committed, owner.unanswered) == (("", 0), "x-1")
    # What nobody knows of stays until the store has told.
    assert parts.staged == [(SESSION, 1, keys(1))]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("have_regions", {"regions": [[b"short", 10]]}),
        ("have_regions", {"regions": "no"}),
        ("put_units", {"units": [[1, 2]]}),
        ("commit", {"manifest": b"", "parent": 0, "epoch": 1, "execution_id": "x-1"}),
        ("fetch_units", {"hashes": [3]}),
        ("map_regions", {"ids": b"r" * 16, "lengths": b""}),
        ("map_regions", {"ids": b"", "lengths": b"abc"}),
        ("map_regions", {"ids": "r" * 16, "lengths": b"abcd"}),
        ("unmap_regions", {}),
    ],
)
async def test_malformed_request_is_refused(peer: Peer, kind: str, body: dict[str, Any]) -> None:
    with pytest.raises((InvalidArgument, Corrupt)):
        await peer.ask(kind, **body)


async def test_manifest_of_a_session_without_versions_is_none(peer: Peer) -> None:
    assert await peer.ask("manifest") == {
        "version": 0, "head": 0, "epoch": 1, "durable_version": 0, "manifest": None,
    }  # fmt: skip


async def test_message_of_too_many_regions_is_refused(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_requests, "REGIONS_PER_REQUEST_MAX", 2)
    with pytest.raises(InvalidArgument, match="MESSAGE_TOO_LONG"):
        await peer.ask("have_regions", regions=rows(1, 2, 3))


async def test_versions_are_listed_newest_first(parts: Parts, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    parts.store.head = 3
    reply = await peer.ask("list_versions", limit=2)
    assert reply == {"versions": [[3, 2, 0, False, 0, 0, "x", 0], [2, 1, 0, False, 0, 0, "x", 0]]}
    monkeypatch.setattr(state_requests, "VERSIONS_LISTED_MAX", 1)
    assert [len((await peer.ask("list_versions", limit=limit))["versions"]) for limit in (0, 9)] == [1, 1]


@pytest.mark.parametrize("kind", ["put_units", "commit", "manifest", "list_versions", "fetch_units", "map_regions"])
async def test_connection_without_a_session_may_ask_for_no_state(parts: Parts, kind: str) -> None:
    peer = Peer(parts, SessionId(""))
    with pytest.raises(PreconditionFailed, match="NO_SESSION"):
        await peer.ask(kind, units=[], manifest=b"", hashes=[], ids=b"", lengths=b"")


async def test_manifest_of_another_session_is_refused(parts: Parts, peer: Peer) -> None:
    with pytest.raises(InvalidArgument, match="MANIFEST_FOREIGN"):
        await peer.commit(session=SessionId("s-2"))


async def test_save_that_the_store_would_refuse_copies_nothing_and_holds_nothing(parts: Parts, peer: Peer) -> None:
    await peer.put(1)
    full = CapacityExceeded("TENANT_FULL", "the tenant is full", needed_bytes=7, available_bytes=3)
    parts.store.errors["admit_save"] = [full]
    with pytest.raises(CapacityExceeded, match="TENANT_FULL"):
        await peer.ask("have_regions", regions=rows(1, 2, 3), session_bytes=99)
    assert parts.regions.room.reserved == 0
    assert parts.regions.table.pinned(peer.requests._save) == []
    assert await peer.ask("have_regions", regions=rows(2, 3), session_bytes=99) == {"missing": [0, 1]}
    assert parts.store.admitted == [(SESSION, 99, keys(2, 3))]


async def test_store_is_asked_for_no_room_that_a_save_does_not_need(parts: Parts, peer: Peer) -> None:
    await peer.put(1)
    await peer.ask("have_regions", regions=rows(1), session_bytes=99)
    assert parts.store.admitted == []
    peer.requests.stores_soon = False
    await peer.ask("have_regions", regions=rows(1, 2), session_bytes=99)
    assert parts.store.admitted == [(SESSION, 99, [])]


@pytest.mark.parametrize("reason", ["TENANT_FULL", "STORE_FULL"])
async def test_save_of_what_nobody_else_has_waits_here_for_room_at_the_store(
    parts: Parts, peer: Peer, reason: str
) -> None:
    peer.requests.only_copy = True
    parts.store.errors["admit_save"] = [CapacityExceeded(reason, "full", needed_bytes=7, available_bytes=3)]
    assert await peer.ask("have_regions", regions=rows(1, 2)) == {"missing": [0, 1]}
    await peer.put(1, 2)
    await peer.commit(1, 2)
    assert parts.staged == [(SESSION, 1, keys(1, 2))]
    full = peer.requests.take_store_full()
    assert full is not None and full.reason == reason and peer.requests.take_store_full() is None
    parts.store.errors["admit_save"] = [CapacityExceeded("SESSION_FULL", "too large")]
    with pytest.raises(CapacityExceeded, match="SESSION_FULL"):
        await peer.ask("have_regions", regions=rows(3))


async def test_store_is_asked_for_all_parts_of_a_save_together(parts: Parts, peer: Peer) -> None:
    for first, continues in ((1, False), (3, True), (5, True), (7, False)):
        await peer.ask("have_regions", regions=rows(first, first + 1), continues=continues)
    two = sum(length for _id, length in keys(1, 2))
    assert parts.store.already_bytes == [0, two, 2 * two, 0]


class AskedStore:
    """Answers for versions, each when `may` is set; `asked`: what it was asked for."""

    def __init__(self, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, int]] = []
        self.may = asyncio.Event()
        self.errors: list[LooseLeafError] = []
        monkeypatch.setattr(parts.store, "manifest", self._manifest)

    async def _manifest(self, _session: str, version: int = 0, known_version: int = 0) -> Any:
        self.asked.append((version, known_version))
        await self.may.wait()
        if self.errors:
            raise self.errors.pop()
        return pb.GetManifestResponse(version=version, manifest=b"of %d" % version)


async def test_expected_version_is_asked_for_before_the_peer_asks_and_once(
    parts: Parts, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AskedStore(parts, monkeypatch)
    peer.requests.expected.ask(SESSION, Version(3))
    await until(lambda: store.asked == [(3, 0)])
    store.may.set()
    assert (await peer.ask("manifest", version=3))["manifest"] == b"of 3"
    assert store.asked == [(3, 0)]
    # What it knows may be old by then: from now on each ask goes to the store.
    assert (await peer.ask("manifest", version=3))["manifest"] == b"of 3"
    assert store.asked == [(3, 0), (3, 0)]


async def test_peer_that_asks_for_another_version_than_expected_gets_that(
    parts: Parts, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AskedStore(parts, monkeypatch)
    peer.requests.expected.ask(SESSION, Version(3))
    store.may.set()
    reply = await peer.ask("manifest", version=4, known_version=2)
    assert (reply["version"], reply["manifest"], store.asked[-1]) == (4, b"of 4", (4, 2))


async def test_expected_version_that_the_store_did_not_give_is_asked_for_again(
    parts: Parts, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AskedStore(parts, monkeypatch)
    store.errors = [down()]
    store.may.set()
    peer.requests.expected.ask(SESSION, Version(3))
    assert (await peer.ask("manifest", version=3))["manifest"] == b"of 3"
    assert store.asked == [(3, 0), (3, 0)]


async def test_expected_version_that_nobody_asks_for_ends_with_the_peer(
    parts: Parts, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AskedStore(parts, monkeypatch)
    peer.requests.expected.ask(SESSION, Version(3))
    await until(lambda: store.asked == [(3, 0)])
    assert peer.requests.expected._asked is not None
    task = peer.requests.expected._asked[1]
    await peer.close()
    await asyncio.wait({task}, timeout=5)
    assert task.cancelled()
