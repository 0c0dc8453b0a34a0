"""States to commit, a store over a database in memory, and real servers on Unix sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from looseleaf.checkpoint.manifest import (
    ALGORITHM_XXH3,
    Manifest,
    PayloadEntry,
    RegionRef,
    UnitEntry,
    UnitHeader,
    encode_manifest,
)
from looseleaf.clock import ManualClock
from looseleaf.dirty_tracker import hash128
from looseleaf.ids import Epoch, ExecutionId, PayloadId, SessionId, UnitId, Version
from looseleaf.rpc.client import open_channel
from looseleaf.rpc.store_client import RegionKey, StoreClient
from looseleaf.services.checkpoint_store.store import Store, StoreLimits, open_store
from looseleaf.units import REGION_BYTES


@dataclass(frozen=True)
class State:
    """What a test saves: variables of small pickles and of one region each."""

    units: Mapping[str, bytes]
    regions: Mapping[str, bytes]

    def unit_pairs(self) -> list[tuple[bytes, bytes]]:
        return [(hash128(data), data) for data in self.units.values()]

    def region_chunks(self) -> list[tuple[tuple[bytes, int], bytes]]:
        return [((hash128(data), len(data)), data) for data in self.regions.values()]

    def manifest(self, session_id: str, parent: int, epoch: int, execution_id: str) -> bytes:
        units: dict[UnitId, UnitEntry] = {}
        payloads: dict[PayloadId, PayloadEntry] = {}
        for number, (name, data) in enumerate(self.units.items()):
            header = UnitHeader(preview=name)
            units[UnitId(2 * number + 1)] = UnitEntry(hash128(data), len(data), (), header)
        for number, data in enumerate(self.regions.values()):
            ref = RegionRef(hash128(data), len(data))
            payloads[PayloadId(2 * number + 2)] = PayloadEntry(
                "memory", "cpu", len(data), ALGORITHM_XXH3, REGION_BYTES, (ref,)
            )
        roots = {name: UnitId(2 * number + 1) for number, name in enumerate(self.units)}
        return encode_manifest(Manifest(
            SessionId(session_id), Version(parent + 1), Version(parent), Epoch(epoch), ExecutionId(execution_id),
            next_id=1_000_000, roots=roots, units=units, payloads=payloads,
        ))  # fmt: skip


def make_state(units: Sequence[str] = (), regions: Sequence[str] = (), region_bytes: int = 64) -> State:
    """One variable per text; the bytes follow from the text alone."""
    return State(
        {f"u{text}": f"unit {text}".encode() for text in units},
        {f"r{text}": (text.encode() + b".") * region_bytes for text in regions},
    )


async def region_chunks(
    regions: Mapping[RegionKey, bytes] | Iterable[tuple[RegionKey, bytes]],
) -> AsyncIterator[tuple[bytes, int, bytes]]:
    """Regions in memory as `StoreClient.put_regions` takes them."""
    for (region_id, length_bytes), data in regions.items() if isinstance(regions, Mapping) else regions:
        yield region_id, length_bytes, data


class Saver:
    """One owner of a session that commits states to a `Store` in this process."""

    def __init__(self, store: Store, session_id: str = "s1", host_id: str = "h1", tenant: str = "") -> None:
        self.store = store
        self.session_id = session_id
        self.host_id = host_id
        head = store.sessions.open(session_id, create=True, raise_epoch=True, title="", tenant=tenant)
        self.epoch = head.epoch
        self.version = head.version
        self.tenant = head.tenant
        self.saves = 0

    def save(self, state: State, host_id: str | None = None) -> int:
        """Puts the units and commits; regions stay with the host."""
        self.store.units.put(state.unit_pairs(), self.tenant)
        self.saves += 1
        execution_id = f"x-{self.session_id}-{self.epoch}-{self.saves}"
        committed = self.store.commits.commit(
            self.session_id, epoch=self.epoch, parent=self.version, execution_id=execution_id,
            manifest=state.manifest(self.session_id, self.version, self.epoch, execution_id),
            host_id=self.host_id if host_id is None else host_id,
        )  # fmt: skip
        self.version = committed.version
        return committed.version


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    limits = StoreLimits(versions_kept_max=3, orphan_grace_s=60, stored_bytes_max=64 << 20)
    opened = open_store(tmp_path / "store", limits, kind="memory", clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def saver(store: Store) -> Saver:
    return Saver(store)


# Forks a server for each line of flags it reads and prints the pid: everything is imported once, so that a test can
# kill and restart servers many times a second. Forking is safe as nothing of gRPC has been used yet.
NURSERY = """
import os, signal, sys
from looseleaf.services.checkpoint_store.server import main
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(0)
        os._exit(main(line.split()))
    print(pid, flush=True)
"""


class Server:
    """A store server of its own process in `folder`, on a Unix socket."""

    def __init__(self, nursery: subprocess.Popen[str], folder: Path, **settings: object) -> None:
        self._nursery = nursery
        self.data = folder / "data"
        self.socket_path = folder / "s.sock"
        self.address = f"unix:{self.socket_path}"
        fixed = {"listen": self.address, "data": self.data, "log_level": "warning", "disk_free_bytes_min": 0}
        pairs = {**fixed, **settings}
        self._flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in pairs.items())
        self.pid = 0

    def start(self) -> None:
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(self._flags + "\n")
        self._nursery.stdin.flush()
        self.pid = int(self._nursery.stdout.readline())

    def signal(self, number: int) -> None:
        """Sends the signal, which must end the process, and returns once it has."""
        os.kill(self.pid, number)
        ends_s = time.monotonic() + 20
        while Path(f"/proc/{self.pid}").exists():
            assert time.monotonic() < ends_s, "the server did not end"
            time.sleep(0.002)
        self.pid = 0

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    @asynccontextmanager
    async def client(self, restart_patience_s: float = 0, tenant: str = "") -> AsyncIterator[StoreClient]:
        channel = open_channel(self.address, peer="store")
        await channel.wait_ready(20)
        yield StoreClient(channel, restart_patience_s=restart_patience_s, tenant=tenant)
        await channel.close()


@pytest.fixture(scope="session")
def nursery() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", NURSERY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def make_server(
    nursery: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Server]]:
    """Starts servers of one test, each in a folder of its own."""
    servers: list[Server] = []

    def make(**settings: object) -> Server:
        server = Server(nursery, tmp_path_factory.mktemp("store"), **settings)
        server.start()
        servers.append(server)
        return server

    yield make
    for server in servers:
        if server.pid:
            server.kill()


@pytest.fixture
async def client(make_server: Callable[..., Server]) -> AsyncIterator[StoreClient]:
    async with make_server().client() as client:
        yield client
