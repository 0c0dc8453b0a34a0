"""The server as a process: killed at any moment, stopped, started twice."""

from __future__ import annotations

import asyncio
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from looseleaf.dirty_tracker import hash128
from looseleaf.errors import NotFound, PreconditionFailed, Unavailable
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.checkpoint_store.store import open_store
from looseleaf.services.checkpoint_store.verifier import verify_index
from looseleaf.units import REGION_BYTES

from .conftest import Server, State, make_state, region_chunks

MakeServer = Callable[..., Server]

SECONDS_MAX = 60.0
VERSIONS_KEPT = 5


@dataclass
class Owner:
    """One session's owner and oracle: what it was told is saved must be there for good."""

    session_id: str
    epoch: int = 0
    version: int = 0
    # Version -> (execution id, manifest, state) of what was acknowledged.
    acknowledged: dict[int, tuple[str, bytes, State]] = field(default_factory=dict)
    durable: set[int] = field(default_factory=set)
    attempts: int = 0

    async def step(self, client: StoreClient) -> None:
        """Saves one version; raises Unavailable when the server dies under it."""
        if not self.epoch:
            self.epoch = (await client.open_session(self.session_id, create=True)).epoch
        self.attempts += 1
        number = self.version + 1
        near = str(number // 3)
        state = make_state([f"{number}", near, "shared"], [f"{self.session_id}{number}", near], region_bytes=900)
        execution_id = f"x-{self.session_id}-{number}"
        manifest = state.manifest(self.session_id, self.version, self.epoch, execution_id)
        await client.put_units(state.unit_pairs())
        version, _ = await client.commit(
            self.session_id, epoch=self.epoch, parent=self.version, execution_id=execution_id, manifest=manifest,
            host_id="h1",
        )  # fmt: skip
        assert version == number
        # The next attempt after a kill repeats the very same commit: it must succeed whether or not it had happened.
        self.version = number
        self.acknowledged[number] = (execution_id, manifest, state)
        if number % 4 == 0:
            await client.put_regions(region_chunks(state.region_chunks()))
            try:
                if (await client.mark_durable(self.session_id, number))[0]:
                    self.durable.add(number)
            except NotFound:
                assert number <= self.version - VERSIONS_KEPT

    async def check(self, client: StoreClient) -> None:
        """Everything acknowledged and kept is what was saved, and the history has no gap."""
        head = (await client.manifest(self.session_id)).head
        assert head.version in (self.version, self.version + 1), "an acknowledged version is lost"
        versions = await client.list_versions(self.session_id)
        kept = [info.version for info in versions]
        assert kept[: min(VERSIONS_KEPT, head.version)] == list(
            range(head.version, max(0, head.version - VERSIONS_KEPT), -1)
        )
        assert all(info.parent == info.version - 1 for info in versions)
        assert head.durable_version >= max(self.durable, default=0)
        for info in versions:
            # Older ones may be dropped while we look.
            sure = info.version > head.version - VERSIONS_KEPT or info.version == head.durable_version
            if not sure or info.version not in self.acknowledged:
                continue
            execution_id, manifest, state = self.acknowledged[info.version]
            assert info.execution_id == execution_id
            assert (await client.manifest(self.session_id, version=info.version)).manifest == manifest, "torn"
            assert await client.get_units([key for key, _ in state.unit_pairs()]) == dict(state.unit_pairs())
            if info.durable:
                keys = [key for key, _ in state.region_chunks()]
                found = [(key, data) async for *key, data in client.get_regions(keys)]
                assert [data for _, data in found] == list(state.regions.values())


async def work_until_killed(owner: Owner, client: StoreClient, acknowledged: asyncio.Semaphore) -> None:
    while True:
        try:
            await owner.step(client)
        except (Unavailable, grpc.aio.UsageError):
            # The server died under a call, or the channel was closed between two of them.
            return
        acknowledged.release()


async def acquire_times(semaphore: asyncio.Semaphore, times: int) -> None:
    for _ in range(times):
        await semaphore.acquire()


@pytest.mark.parametrize("kills_wanted", [12, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.soak])])
async def test_killed_server_loses_no_acknowledged_version(make_server: MakeServer, kills_wanted: int) -> None:
    rng = random.Random(7)
    server = make_server(versions_kept_max=VERSIONS_KEPT, version_use_s=0, garbage_interval_s=0.02, orphan_grace_s=5)
    owners = [Owner(f"s{number}") for number in range(3)]
    began_s = time.monotonic()
    kills = 0
    while kills < kills_wanted and time.monotonic() - began_s < SECONDS_MAX:
        async with server.client() as client:
            for owner in owners:
                if owner.epoch:
                    await owner.check(client)
            acknowledged = asyncio.Semaphore(0)
            workers = [asyncio.ensure_future(work_until_killed(owner, client, acknowledged)) for owner in owners]
            waiting = asyncio.ensure_future(acquire_times(acknowledged, rng.randint(1, 12)))
            await asyncio.wait([waiting, *workers], return_when=asyncio.FIRST_COMPLETED, timeout=SECONDS_MAX)
            assert waiting.done(), [worker for worker in workers if worker.done()]
            # The other owners are somewhere inside their steps now.
            server.kill()
            kills += 1
        # The channel is closed, so that calls fail at once instead of after the channel's own repeats.
        await asyncio.gather(*workers)
        server.start()
    async with server.client() as client:
        for owner in owners:
            await owner.check(client)
            await owner.step(client)
            await owner.check(client)
    server.signal(signal.SIGTERM)
    store = open_store(server.data)
    problems = verify_index(store.index)
    store.close()
    assert problems == []
    assert all(owner.version > VERSIONS_KEPT for owner in owners)
    assert kills == kills_wanted, f"only {kills} kills in {SECONDS_MAX} s"


async def test_sigterm_ends_cleanly_and_keeps_everything(make_server: MakeServer) -> None:
    server = make_server()
    owner = Owner("s1")
    async with server.client() as client:
        for _ in range(3):
            await owner.step(client)
    server.signal(signal.SIGTERM)
    assert not server.socket_path.exists()
    server.start()
    async with server.client() as client:
        await owner.check(client)
    server.signal(signal.SIGTERM)


async def test_disk_that_refuses_writes_gives_typed_errors_and_the_server_lives_on(make_server: MakeServer) -> None:
    server = make_server()
    owner = Owner("s1")
    large = {(hash128(data), len(data)): data for data in (bytes([n]) * REGION_BYTES for n in (1, 2))}
    async with server.client() as client:
        await owner.step(client)
        # A file size limit stands for a full disk: it needs no privileges and no small file system.
        unlimited = resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        with pytest.raises(Unavailable, match="KV_IO"):
            await owner.step(client)
        with pytest.raises(Unavailable, match="KV_IO|STORE_IO"):
            await client.put_regions(region_chunks(large))
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, unlimited)
        await owner.check(client)
        for _ in range(5):
            await owner.step(client)
        assert await client.put_regions(region_chunks(large)) == 2
        await owner.check(client)
    server.signal(signal.SIGTERM)
    store = open_store(server.data)
    problems = verify_index(store.index)
    store.close()
    assert problems == []


async def test_client_waits_out_a_restart_and_changes_nothing_twice(make_server: MakeServer) -> None:
    server = make_server()
    async with server.client(restart_patience_s=20) as client:
        head = await client.open_session("s1", create=True)
        server.kill()
        state = make_state(units=["a"])
        saving = asyncio.gather(
            client.put_units(state.unit_pairs()), client.open_session("s1", raise_epoch=True), return_exceptions=True
        )
        await asyncio.sleep(0)
        server.start()
        stored, reopened = await saving
        assert (stored, reopened.epoch) == (1, head.epoch + 1)  # type: ignore[union-attr]


def test_second_process_on_one_folder_is_refused_with_exit_code_3(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    command = [
        sys.executable, "-m", "looseleaf.services.checkpoint_store",
        "--listen", f"unix:{tmp_path}/s.sock", "--data", str(tmp_path / "data"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    store.close()
    assert done.returncode == 3, done.stderr
    assert "KV_LOCKED" in done.stderr


async def test_fallback_answer_survives_a_restart(make_server: MakeServer) -> None:
    from looseleaf.rpc.client import open_channel
    from looseleaf.v1 import checkpoint_store_pb2 as pb
    from looseleaf.v1.checkpoint_store_pb2_grpc import CheckpointStoreServiceStub

    server = make_server()
    owner = Owner("s1")
    request = pb.ForgetHostRegionsRequest(request_id="r1", host_id="h1", all=True)
    async with server.client() as client:
        await owner.step(client)
    answers = []
    for _ in range(2):
        channel = open_channel(server.address, peer="store")
        await channel.wait_ready(20)
        answers.append(await CheckpointStoreServiceStub(channel).ForgetHostRegions(request, timeout_s=20))
        await channel.close()
        server.kill()
        server.start()
    assert answers[0] == answers[1]
    assert list(answers[0].fallbacks[0].lost_execution_ids) == ["x-s1-1"]
    async with server.client() as client:
        with pytest.raises(PreconditionFailed, match="STALE_EPOCH"):
            await owner.step(client)
