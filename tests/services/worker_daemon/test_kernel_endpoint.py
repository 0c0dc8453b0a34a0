from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from daemon_fakes import Parts, region, until, within

from looseleaf.devices.description import GpuDescription
from looseleaf.errors import InvalidArgument, LooseLeafError, NotFound, PreconditionFailed, Unavailable, Unsupported
from looseleaf.protocol.aio import AsyncChannel
from looseleaf.protocol.aio_rpc import AsyncLink
from looseleaf.protocol.region_rows import pack_regions
from looseleaf.services.worker_daemon import kernel_connection, unix_listener
from looseleaf.services.worker_daemon.kernel_endpoint import KernelEndpoint
from looseleaf.v1 import checkpoint_pb2 as cp

HOST = {"host_id": "h0", "device": "none", "gpus": 1, "gpu_memory_bytes": 5, "hash_seed": "0"}
# A kernel in a process of its own: maps a region, then waits to be told to end its connection, then its life.
KERNEL = """
import socket, sys
from looseleaf.protocol.channel import Channel
channel = Channel(socket.socket(socket.AF_UNIX))
channel._sock.connect(sys.argv[1])
for number, body in enumerate([{"t": "hello", "v": 1, "session_id": "s-1"}, eval(sys.argv[2])], 1):
    channel.send({"id": number, **body})
    assert channel.recv()[0]["t"] == "ok"
print("mapped", flush=True)
sys.stdin.readline()
channel.close()
print("closed", flush=True)
sys.stdin.readline()
"""

GPU = GpuDescription("NVIDIA H100", 80 << 30, 9, 0, 132)


class FakeClients:
    """The frontend and the store behind it; a submitted cell waits for a GPU for ever."""

    def __init__(self) -> None:
        self.store = self
        self.epoch = 0
        self.opened: list[dict[str, Any]] = []
        self.left = 0
        self.runs: list[Any] = []
        self.released: list[Any] = []
        self.evicted: list[str] = []

    async def open_session(self, session_id: str, **how: Any) -> cp.SessionHead:
        self.opened.append({"session_id": session_id, **how})
        self.epoch += how["raise_epoch"]
        return cp.SessionHead(session_id=session_id, epoch=self.epoch, version=3)

    async def record_runs(self, session_id: str, runs: list[Any]) -> int:
        self.runs.extend(runs)
        return len(self.runs) + 1

    async def prepare(self, session_id: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"recipe": {}, "worker_id": "w-1", "prepare_ms": 1.0, "skipped_reason": ""}

    async def submit(self, _request: Any) -> Any:
        try:
            await asyncio.Event().wait()
            yield
        finally:
            self.left += 1

    async def evict_workers(self, session_id: str) -> tuple[int, list[str]]:
        self.evicted.append(session_id)
        return 2, ["h9"]

    async def release_unsaved(self, session_id: str, host_id: str, worker_id: str, names: list[str]) -> None:
        self.released.append((session_id, host_id, worker_id, names))


class Kernel:
    """The kernel's end of a connection."""

    def __init__(self, path: str) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(path)
        self.events: list[dict[str, Any]] = []
        self.link = AsyncLink(AsyncChannel(self._sock), on_event=lambda message, _fds: self.events.append(message))
        self.serving = asyncio.create_task(self.link.serve())

    async def ask(self, kind: str, **body: Any) -> dict[str, Any]:
        reply, _fds = await within(self.link.request(kind, body))
        return reply

    async def close(self) -> None:
        self.link.close()
        await self.serving


@pytest.fixture
def clients() -> FakeClients:
    return FakeClients()


async def pool_gpu() -> GpuDescription:
    """What the pool's GPUs are."""
    return GPU


@pytest.fixture
async def endpoint(parts: Parts, clients: FakeClients, tmp_path: Path) -> AsyncIterator[KernelEndpoint]:
    fakes: Any = clients
    made = KernelEndpoint(str(tmp_path / "k.sock"), parts.requests, fakes, HOST, 2, pool_gpu)
    made.start()
    yield made
    await within(made.stop())


@pytest.fixture
async def kernel(endpoint: KernelEndpoint) -> AsyncIterator[Kernel]:
    made = Kernel(endpoint.path)
    yield made
    await made.close()


async def test_hello_opens_the_session_and_tells_of_the_host(kernel: Kernel, clients: FakeClients) -> None:
    reply = await kernel.ask("hello", v=1, session_id="s-1", title="notes.ipynb", pid=1)
    assert reply == {"v": 1, "session_id": "s-1", "epoch": 1, "version": 3, "gpu": GPU.message(), **HOST}
    assert clients.opened == [{"session_id": "s-1", "create": True, "raise_epoch": True, "title": "notes.ipynb"}]


async def test_hello_during_a_cell_of_its_own_does_not_fence_that_cell(kernel: Kernel, clients: FakeClients) -> None:
    clients.epoch = 4
    reply = await kernel.ask("hello", v=1, session_id="s-1", running="x-1", epoch=4)
    assert reply["epoch"] == 4 and [opened["raise_epoch"] for opened in clients.opened] == [False]


async def test_hello_of_an_owner_that_was_fenced_is_as_any_other(kernel: Kernel, clients: FakeClients) -> None:
    clients.epoch = 5
    reply = await kernel.ask("hello", v=1, session_id="s-1", running="x-1", epoch=4)
    assert reply["epoch"] == 6 and [opened["raise_epoch"] for opened in clients.opened] == [False, True]


async def test_new_owner_is_told_so_that_cells_of_earlier_ones_end(
    endpoint: KernelEndpoint, clients: FakeClients
) -> None:
    told: list[tuple[str, int]] = []
    endpoint.on_owner = lambda session, epoch: told.append((session, epoch))
    kernel = Kernel(endpoint.path)
    await kernel.ask("hello", v=1, session_id="s-1")
    await kernel.ask("raise_epoch")
    assert told == [("s-1", 1), ("s-1", 2)]
    await kernel.close()


async def test_hello_without_a_session_makes_one(kernel: Kernel) -> None:
    assert (await kernel.ask("hello", v=1, session_id=""))["session_id"].startswith("s-")


async def test_hello_of_another_version_says_what_to_install(kernel: Kernel) -> None:
    with pytest.raises(Unsupported, match="PROTOCOL_VERSION.*install the same LooseLeaf"):
        await kernel.ask("hello", v=2, session_id="")


async def test_socket_is_for_this_user_only(endpoint: KernelEndpoint) -> None:
    assert stat.S_IMODE(os.stat(endpoint.path).st_mode) == 0o600


@pytest.mark.parametrize(
    "kind", ["record_runs", "prepare", "raise_epoch", "evict_workers", "release_unsaved", "commit"]
)
async def test_request_before_hello_is_refused(kernel: Kernel, kind: str) -> None:
    with pytest.raises(PreconditionFailed, match="NO_SESSION"):
        await kernel.ask(kind, runs=[], manifest=b"", host_id="h1", worker_id="w-1", names=[])


async def test_requests_of_a_session_are_passed_on(kernel: Kernel, clients: FakeClients) -> None:
    await kernel.ask("hello", v=1, session_id="s-1")
    assert await kernel.ask("record_runs", runs=[{"sequence": 1}]) == {"next_sequence": 2}
    assert (await kernel.ask("prepare", source="x"))["worker_id"] == "w-1"
    assert await kernel.ask("raise_epoch") == {"epoch": 2, "version": 3}
    assert await kernel.ask("evict_workers") == {"evicted": 2, "silent_hosts": ["h9"]}
    assert await kernel.ask("release_unsaved", host_id="h1", worker_id="w-1", names=["it"]) == {}
    assert clients.released == [("s-1", "h1", "w-1", ["it"])]


async def test_submitted_cell_can_be_interrupted_and_is_then_unknown(kernel: Kernel) -> None:
    await kernel.ask("hello", v=1, session_id="s-1")
    body = {"execution_id": "x-1", "source": "x", "epoch": 1, "version": 3}
    submitting = asyncio.create_task(kernel.link.request("submit", body))
    await asyncio.sleep(0)
    while True:  # until the daemon knows it
        try:
            await kernel.ask("interrupt", execution_id="x-1", kill=False)
            break
        except PreconditionFailed:
            await asyncio.sleep(0)
    with pytest.raises(Exception, match="INTERRUPTED"):
        await within(submitting)
    with pytest.raises(PreconditionFailed, match="EXECUTION_ENDED"):
        await kernel.ask("input_reply", execution_id="x-1", value="")


async def test_execution_id_that_is_malformed_is_refused(kernel: Kernel) -> None:
    await kernel.ask("hello", v=1, session_id="s-1")
    with pytest.raises(InvalidArgument, match="ID_MALFORMED"):
        await kernel.ask("submit", execution_id="no id", source="x")


async def test_kernel_that_goes_leaves_the_queue(endpoint: KernelEndpoint, clients: FakeClients) -> None:
    kernel = Kernel(endpoint.path)
    await kernel.ask("hello", v=1, session_id="s-1")
    body = {"execution_id": "x-1", "source": "x", "epoch": 1, "version": 3}
    submitting = asyncio.create_task(kernel.link.request("submit", body))
    await kernel.ask("evict_workers")
    await kernel.close()
    with pytest.raises(Unavailable):
        await submitting
    await until(lambda: clients.left == 1 and endpoint.kernels == 0)


async def test_kernels_over_the_limit_are_refused_and_those_that_left_do_not_count(endpoint: KernelEndpoint) -> None:
    kernels = [Kernel(endpoint.path) for _ in range(3)]
    assert (await within(kernels[2].serving)).reason == "PEER_CLOSED"
    assert endpoint.sessions == []
    await kernels[0].ask("hello", v=1, session_id="s-1")
    assert endpoint.sessions == ["s-1"]
    await kernels[0].close()
    await until(lambda: endpoint.kernels == 1)
    assert endpoint.sessions == []
    again = Kernel(endpoint.path)
    await again.ask("hello", v=1, session_id="s-1")
    for kernel in (kernels[1], again):
        await kernel.close()


async def test_socket_of_another_live_daemon_is_not_taken(endpoint: KernelEndpoint, parts: Parts) -> None:
    clients: Any = FakeClients()
    with pytest.raises(Unavailable, match="SOCKET_TAKEN"):
        KernelEndpoint(endpoint.path, parts.requests, clients, HOST, 2).start()


async def test_socket_file_of_a_dead_daemon_is_replaced(parts: Parts, tmp_path: Path) -> None:
    path = str(tmp_path / "old.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    clients: Any = FakeClients()
    endpoint = KernelEndpoint(path, parts.requests, clients, HOST, 2)
    endpoint.start()
    kernel = Kernel(path)
    await kernel.ask("hello", v=1, session_id="s-1")
    await kernel.close()
    await within(endpoint.stop())
    assert os.listdir(tmp_path) == []


async def test_accept_that_fails_is_tried_again(
    endpoint: KernelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_listener, "ACCEPT_RETRY_S", 0.001)
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, [OSError(24, "too many open files")]

    async def sometimes(sock: socket.socket) -> Any:
        found = await accept(sock)
        if failures:
            found[0].close()
            raise failures.pop()
        return found

    first = Kernel(endpoint.path)  # is taken by the accept that waits already
    await first.ask("hello", v=1, session_id="s-1")
    monkeypatch.setattr(loop, "sock_accept", sometimes)
    await first.close()
    kernel = Kernel(endpoint.path)
    await kernel.ask("hello", v=1, session_id="s-1")
    await kernel.close()


async def test_mapped_regions_stay_until_the_kernels_process_has_ended(endpoint: KernelEndpoint, parts: Parts) -> None:
    key, data = region(1)
    await parts.regions.put(key, memoryview(data), "save")
    parts.regions.table.stage([key], "version")
    parts.regions.unpin("save")
    body = {"t": "map_regions", **pack_regions([key])}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KERNEL, endpoint.path, repr(body), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    assert await within(process.stdout.readline()) == b"mapped\n"
    parts.regions.let_go([key])
    parts.regions.unpin("version")
    process.stdin.write(b"\n")
    assert await within(process.stdout.readline()) == b"closed\n"
    await until(lambda: endpoint.kernels == 0)
    assert parts.regions.table.evict(1) == [], "its connection is closed, its mapping is not"
    process.stdin.close()
    await within(process.wait())
    await until(lambda: not endpoint._tasks)
    assert len(parts.regions.table.evict(1)) == 1


class SavedRelay:
    """A cell that has ended and been saved."""

    def __init__(self, _owner: Any, body: Any, *_: Any) -> None:
        self._kept_s = body["kept_s"]
        self.following = asyncio.ensure_future(asyncio.sleep(0))

    async def run(self) -> dict[str, Any]:
        return {"unsaved_kept_s": self._kept_s, "left_running": False}

    async def leave(self) -> None:
        """Nothing is left."""


@pytest.mark.parametrize(
    ("kept_s", "wished_s", "joined", "evicted"),
    [(60.0, 0.0, False, ["s-1"]), (0.0, 600.0, False, ["s-1"]), (0.0, 0.0, False, []), (60.0, 0.0, True, [])],
)
async def test_kept_worker_is_freed_when_its_kernels_process_has_ended(
    endpoint: KernelEndpoint, clients: FakeClients, monkeypatch: pytest.MonkeyPatch, kept_s: float, wished_s: float,
    joined: bool, evicted: list[str],
) -> None:
    monkeypatch.setattr(kernel_connection, "RunRelay", SavedRelay)
    body = {"t": "submit", "execution_id": "x-1", "kept_s": kept_s, "context": {"keep_s": wished_s}}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KERNEL, endpoint.path, repr(body), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    assert await within(process.stdout.readline()) == b"mapped\n"
    (serving,) = endpoint._tasks
    process.stdin.write(b"\n")
    assert await within(process.stdout.readline()) == b"closed\n"
    await until(lambda: endpoint.kernels == 0)
    # It lives, and may come back: its connection was lost.
    assert clients.evicted == [] and not serving.done()
    other = Kernel(endpoint.path)
    if joined:
        await other.ask("hello", v=1, session_id="s-1")
    process.kill()
    await within(process.wait())
    await within(asyncio.gather(serving))
    assert clients.evicted == evicted
    await other.close()


@pytest.mark.parametrize(
    ("later_owners", "failure", "evicted"),
    [
        (0, None, ["s-1"]), (1, None, []), (2, None, []), (0, Unavailable("STORE_DOWN", "no answer"), []),
        (0, NotFound("SESSION_UNKNOWN", "deleted"), []),
    ],
)
async def test_kernel_that_ends_frees_nothing_unless_the_session_is_known_to_be_its_own(
    endpoint: KernelEndpoint, clients: FakeClients, monkeypatch: pytest.MonkeyPatch, later_owners: int,
    failure: LooseLeafError | None, evicted: list[str],
) -> None:
    kernel = Kernel(endpoint.path)
    await kernel.ask("hello", v=1, session_id="s-1")
    (connection,) = endpoint._connections
    connection.keeps = True
    await kernel.close()
    await until(lambda: endpoint.kernels == 0)
    # Owners on other hosts: all of the session's workers would go, theirs too.
    clients.epoch += later_owners
    open_session = clients.open_session

    async def opened(session_id: str, **how: Any) -> cp.SessionHead:
        assert how == {"create": False, "raise_epoch": False}, "it takes nothing over"
        if failure is not None:
            raise failure
        return await open_session(session_id, **how)

    monkeypatch.setattr(clients, "open_session", opened)
    await endpoint._free_workers(connection)
    assert clients.evicted == evicted


def test_workers_that_map_the_arena_are_no_orphans_of_a_kernel(parts: Parts, clients: FakeClients) -> None:
    pids: list[int] = []
    endpoint = KernelEndpoint("k.sock", parts.requests, clients, HOST, 2, worker_pids=lambda: pids)  # type: ignore[arg-type]
    pids.append(70)
    assert endpoint._live() == {70}
