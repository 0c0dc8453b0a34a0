"""A host's state path over a real store in a process of its own: savers, the store and the host die at chosen steps.

Whatever dies, a version that was committed is read back whole as long as its host or the disk has it, and when all is
quiet no slot of the arena is held for nothing. A failure names its seed: it plays the same steps again.
"""

from __future__ import annotations

import asyncio
import mmap
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from looseleaf.checkpoint.manifest import decode_manifest
from looseleaf.dirty_tracker import Memfd
from looseleaf.errors import LooseLeafError
from looseleaf.ids import Epoch, HostId, SessionId
from looseleaf.protocol.region_rows import pack_regions, unpack_places
from looseleaf.rpc.client import Channel, open_channel
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.worker_daemon import durability, eviction_news
from looseleaf.services.worker_daemon.arena import SEGMENT_BYTES_MIN, HostArena
from looseleaf.services.worker_daemon.core import upload_order
from looseleaf.services.worker_daemon.core.arena_room import Marks
from looseleaf.services.worker_daemon.durability import DurabilityQueue
from looseleaf.services.worker_daemon.region_sources import StoreLocator
from looseleaf.services.worker_daemon.region_uploads import RegionUploads
from looseleaf.services.worker_daemon.regions import HostRegions
from looseleaf.services.worker_daemon.state_requests import StateOwner, StateRequests
from looseleaf.units import REGION_BYTES
from looseleaf.v1.shared_regions_pb2_grpc import SharedRegionServiceStub

from .conftest import Server, State, make_state

SESSIONS = [SessionId("s-1"), SessionId("s-2")]
HOST = HostId("h0")
STEPS = 12
# Small enough that savers wait for each other's uploads and clean regions go.
MARKS = Marks(limit=64, high=28, low=14, cache=2)
LIMIT_S = 30.0


class Host:
    """A daemon's arena, directory, uploads and requests; `lose` is the end of its machine."""

    def __init__(self, address: str, *, eager: bool) -> None:
        self.channel: Channel = open_channel(address, peer="store")
        self.store = StoreClient(self.channel, restart_patience_s=0)
        self.executor = ThreadPoolExecutor(2)
        self.arena = HostArena(SEGMENT_BYTES_MIN)

        async def nobody(_wanted: Any) -> dict[str, str]:
            return {}

        locator = StoreLocator(self.store, HOST, nobody, lambda _address: None)
        self.regions = HostRegions(self.arena, locator, HOST, self.executor, MARKS)
        uploads = RegionUploads(self.store, SharedRegionServiceStub(self.channel), self.regions)
        self.durability = DurabilityQueue(self.store, self.regions, uploads.put, eager=eager)
        self.durability.start()

    def peer(self, session: SessionId, epoch: int) -> StateRequests:
        owner = StateOwner(session, Epoch(epoch))
        return StateRequests(owner, self.regions, self.store, HOST, 16 * REGION_BYTES, self.durability.add)

    async def lose(self) -> None:
        await self.durability.stop()
        await self.regions.close()
        self.executor.shutdown()
        self.arena.close()
        await self.channel.close()


@dataclass
class Truth:
    """What a session may be at: the states, by version, that its head may have."""

    versions: dict[int, State] = field(default_factory=dict)
    # The outcome of its commit is not known.
    perhaps: tuple[int, State] | None = None

    def settle(self, version: int) -> None:
        if self.perhaps is not None and self.perhaps[0] == version and version not in self.versions:
            self.versions[version] = self.perhaps[1]
        self.perhaps = None
        self.versions = {number: state for number, state in self.versions.items() if number <= version}


class Play:
    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        # Every other play keeps versions in the arena alone until room is short.
        self.eager = seed % 2 == 0
        self.host = Host(server.address, eager=self.eager)
        self.truths = {session: Truth() for session in SESSIONS}
        self.saves = 0
        self.crashes = 0

    async def run(self) -> None:
        await self.host.channel.wait_ready(LIMIT_S)
        steps: list[Callable[[], Awaitable[None]]] = [
            self.save, self.save, self.killed_save, self.killed_save, self.check, self.lose_store, self.lose_host,
        ]  # fmt: skip
        for _ in range(STEPS):
            await self.random.choice(steps)()
        # Quiet: each session saves once more, all becomes durable, everybody leaves.
        for session in SESSIONS:
            await self.save(session)
        self.host.durability._order.eager = True
        self.host.durability._added.set()
        async with asyncio.timeout(LIMIT_S):
            await self.host.durability.flushed()
        for session in SESSIONS:
            await self.check(session)
        telling = self.host.regions._news._task
        if telling is not None:
            await asyncio.wait({telling})
        regions = self.host.regions
        assert regions.room.reserved == 0 and regions.table.idle == len(regions.table), "a region is held for nothing"
        regions._evict(len(regions.table))
        assert self.host.arena.used_bytes == 0, "a slot leaked"
        await self.host.lose()

    async def open(self, session: SessionId) -> tuple[int, int, bytes]:
        """(version, epoch, manifest) as a kernel finds them that joins; its truth is settled by them."""
        store = self.host.store
        async with asyncio.timeout(LIMIT_S):
            head = await self.patiently(lambda: store.open_session(session, create=True, raise_epoch=True))
            found = await self.patiently(lambda: store.manifest(session))
        truth = self.truths[session]
        allowed = {max(truth.versions, default=0)} | ({truth.perhaps[0]} if truth.perhaps else set())
        assert found.version in allowed, f"{session} is at {found.version}, not at one of {allowed}"
        truth.settle(found.version)
        return found.version, head.epoch, found.manifest

    async def patiently(self, call: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await call()
            except LooseLeafError as error:
                if error.code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                    raise
                await asyncio.sleep(0.01)

    def next_state(self, session: SessionId) -> State:
        """New regions, some of the other session's, and some that the version before had."""
        self.saves += 1
        versions = self.truths[session].versions
        old = list(versions[max(versions)].regions)[:3] if versions else []
        kept = [name.removeprefix("r") for name in old]
        new = [f"{self.saves}-{number}" for number in range(self.random.randint(0, 6))]
        return make_state(["x"], [*kept, *new, f"both{self.saves // 3}"], 700)

    async def steps_of_save(self, session: SessionId, peer: StateRequests, state: State, parent: int) -> None:
        store, epoch = self.host.store, peer.owner.epoch
        await store.put_units(state.unit_pairs())
        chunks = state.region_chunks()
        reply = await peer.have_regions({"regions": [list(key) for key, _data in chunks]}, [])
        missing = [chunks[index] for index in reply.body["missing"]]
        if missing:
            ring = await peer.ring({}, [])
            with mmap.mmap(ring.fds[0], ring.body["size_bytes"]) as memory:
                for slot, (_key, data) in enumerate(missing):
                    memory[slot * REGION_BYTES : slot * REGION_BYTES + len(data)] = data
            rows = [[*key, slot] for slot, (key, _data) in enumerate(missing)]
            await peer.put_regions({"regions": rows}, [])
        execution = f"x-{self.saves}"
        manifest = state.manifest(session, parent, epoch, execution)
        self.truths[session].perhaps = (parent + 1, state)
        body = {"manifest": manifest, "parent": parent, "epoch": epoch, "execution_id": execution}
        answer = await peer.commit(body, [])
        assert answer.body["version"] == parent + 1
        self.truths[session].settle(parent + 1)

    async def save(self, session: SessionId | None = None) -> None:
        session = session or self.random.choice(SESSIONS)
        version, epoch, _manifest = await self.open(session)
        peer = self.host.peer(session, epoch)
        try:
            async with asyncio.timeout(LIMIT_S):
                await self.steps_of_save(session, peer, self.next_state(session), version)
        finally:
            await peer.close()

    async def killed_save(self) -> None:
        """The saver dies at some step; the store may die with it."""
        self.crashes += 1
        session = self.random.choice(SESSIONS)
        version, epoch, _manifest = await self.open(session)
        peer = self.host.peer(session, epoch)
        saving = asyncio.create_task(self.steps_of_save(session, peer, self.next_state(session), version))
        for _ in range(self.random.choice([1, 3, 10, 30, 100])):
            await asyncio.sleep(0)
        if self.random.random() < 0.4:
            self.kill_store()
            # The saver lives and is told, or it was through.
            ends = await asyncio.gather(saving, return_exceptions=True)
            assert all(end is None or isinstance(end, LooseLeafError) for end in ends), ends
            self.server.start()
        else:
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)
        await peer.close()

    def kill_store(self) -> None:
        self.server.kill()

    async def lose_store(self) -> None:
        self.crashes += 1
        self.kill_store()
        for _ in range(self.random.choice([0, 5])):
            await asyncio.sleep(0.001)
        self.server.start()

    async def lose_host(self) -> None:
        """Its arena is gone: sessions are at the newest versions that lost nothing, never before a durable one."""
        self.crashes += 1
        for session in SESSIONS:
            await self.open(session)
        store = self.host.store
        durable = {
            session: (await self.patiently(lambda s=session: store.open_session(s))).durable_version  # type: ignore[misc]
            for session in SESSIONS
        }
        lost = self.host
        lost.durability._order._sessions.clear()
        lost.durability._idle.set()
        await lost.lose()
        self.host = Host(self.server.address, eager=self.eager)
        await self.patiently(lambda: self.host.store.forget_host(HOST))
        for session, truth in self.truths.items():
            found = await self.patiently(lambda s=session: self.host.store.manifest(s))  # type: ignore[misc]
            assert found.version >= durable[session], "a durable version was lost"
            truth.settle(found.version)
        for session in SESSIONS:
            await self.check(session)

    async def check(self, session: SessionId | None = None) -> None:
        """A restore of the newest version finds each byte."""
        session = session or self.random.choice(SESSIONS)
        version, epoch, manifest = await self.open(session)
        if not version:
            return
        refs = list(decode_manifest(manifest).region_refs())
        state = self.truths[session].versions[version]
        assert {ref.region_id for ref in refs} == {key[0] for key, _data in state.region_chunks()}
        peer = self.host.peer(session, epoch)
        rows = pack_regions([(ref.region_id, ref.length_bytes) for ref in refs])
        try:
            async with asyncio.timeout(LIMIT_S):
                reply = await self.patiently(lambda: peer.map_regions(rows, []))
            wanted = dict(state.region_chunks())
            with Memfd.open_fd(reply.fds[0], SEGMENT_BYTES_MIN, False) as memory:
                for ref, (_segment, offset) in zip(refs, unpack_places(reply.body), strict=True):
                    data = bytes(memoryview(memory.buffer)[offset : offset + ref.length_bytes])
                    assert data == wanted[ref.region_id, ref.length_bytes]
        finally:
            await peer.close()


def play(make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, seed: int) -> int:
    monkeypatch.setattr(durability, "STOP_LIMIT_S", 0.0)
    monkeypatch.setattr(eviction_news, "RETRY_S", 0.01)
    monkeypatch.setattr(upload_order, "RETRY_DELAY_S_MIN", 0.01)
    monkeypatch.setattr(upload_order, "RETRY_DELAY_S_MAX", 0.05)
    server = make_server(versions_kept_max=3)

    async def main() -> int:
        playing = Play(server, seed)
        await playing.run()
        return playing.crashes

    return asyncio.run(main())


@pytest.mark.parametrize("seed", range(2))
def test_no_committed_version_is_lost_and_no_slot_leaks(
    make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    assert play(make_server, monkeypatch, seed) > 0


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_five_hundred_crashes_of_a_host(make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    crashes, seed = 0, 1000
    while crashes < 500:
        crashes += play(make_server, monkeypatch, seed)
        seed += 1
