"""Stand-ins for what a daemon works with: workers that follow a script, a store in memory, a scheduler that listens."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from looseleaf.checkpoint.manifest import (
    ALGORITHM_XXH3,
    Manifest,
    PayloadEntry,
    RegionRef,
    UnitEntry,
    UnitHeader,
    encode_manifest,
)
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import LooseLeafError, NotFound, Unavailable
from looseleaf.ids import Epoch, ExecutionId, PayloadId, SessionId, UnitId, Version
from looseleaf.protocol.aio import AsyncChannel
from looseleaf.protocol.aio_rpc import AsyncLink
from looseleaf.services.worker_daemon.arena import SEGMENT_BYTES_MIN, HostArena
from looseleaf.services.worker_daemon.core.region_table import RegionKey
from looseleaf.services.worker_daemon.core.worker_life import KeepRules
from looseleaf.services.worker_daemon.pool import WorkerPool
from looseleaf.services.worker_daemon.reaper import Reaper
from looseleaf.services.worker_daemon.region_fetching import RegionSource
from looseleaf.services.worker_daemon.regions import HostRegions
from looseleaf.services.worker_daemon.state_requests import StateOwner, StateRequests
from looseleaf.services.worker_daemon.worker_forks import WorkerForks
from looseleaf.services.worker_daemon.worker_process import WorkerLimits
from looseleaf.units import REGION_BYTES
from looseleaf.v1 import checkpoint_pb2 as cp
from looseleaf.v1 import checkpoint_store_pb2 as pb

LIMIT_S = 20.0
RING_BYTES = 8 << 20
SESSION = SessionId("s-1")

T = TypeVar("T")
Message = dict[str, Any]
Step = Callable[["ScriptedWorker", Message], Awaitable[Message]]


async def within(work: Awaitable[T]) -> T:
    """The result of `work`, which must come in time."""
    return await asyncio.wait_for(work, LIMIT_S)


async def until(happened: Callable[[], bool]) -> None:
    """Lets other tasks run until something has happened."""
    async with asyncio.timeout(LIMIT_S):
        while not happened():  # noqa: ASYNC110 - the tests drive the loop themselves
            await asyncio.sleep(0)


def read(regions: HostRegions, key: RegionKey) -> bytes | None:
    """A copy of the region's bytes, None if the arena does not hold it."""
    hold = object()
    slot = regions.table.pin(key, hold)
    data = None if slot is None else bytes(regions.arena.view(slot, key[1]))
    regions.unpin(hold)
    return data


async def told(regions: HostRegions) -> None:
    """Returns when the store knows of every eviction so far."""
    while (telling := regions._news._task) is not None and not telling.done():
        await asyncio.wait({telling})


async def prepare_well(_worker: ScriptedWorker, _request: Message) -> Message:
    return {"stage_ms": {"import": 1.0, "restore": 2.0}, "mapped_bytes": 7, "pid": 1, "missing": []}


async def attach_well(_worker: ScriptedWorker, _request: Message) -> Message:
    return {}


async def run_well(worker: ScriptedWorker, request: Message) -> Message:
    """One line of output, then a save that made version 2."""
    await worker.tell("started", request)
    await worker.tell("output", request, message={"type": "stream", "name": "stdout", "text": "hi\n"})
    await worker.tell("ended", request, reply={"status": "ok"}, run_s=0.5, first_touch_s=0.1)
    return saved_reply()


def saved_reply(version: int = 2) -> Message:
    return {
        "version": version, "durable": False, "dirty_regions": 3, "total_regions": 9, "bytes_moved": 100,
        "unsaved": [{"name": "gen", "reason": "NOT_SERIALIZABLE", "path": "gen"}], "resident_bytes": 11,
    }  # fmt: skip


@dataclass
class Script:
    """What workers do; a step that never returns is a worker that hangs."""

    prepare: Step = prepare_well
    attach: Step = attach_well
    run: Step = run_well
    hello: bool = True


class ScriptedWorker:
    """The far end of a worker's channel, in the test's own process."""

    def __init__(
        self, pid: int, sock: socket.socket, log_fd: int, script: Script, reaper: FakeReaper, environment_id: str = ""
    ) -> None:
        self.pid = pid
        self.environment_id = environment_id
        self.log_fd = log_fd
        self.asked: list[str] = []
        self.told: list[Message] = []
        self.signals: list[signal.Signals] = []
        self.interrupted = asyncio.Event()
        self._reaper = reaper
        self._script = script
        handlers = {name: self._handler(name) for name in ("prepare", "attach", "run")}
        self.link = AsyncLink(
            AsyncChannel(sock), handlers={**handlers, "shutdown": self._shutdown}, on_event=self._on_event
        )
        self._serving = asyncio.create_task(self._serve())

    def _handler(self, name: str) -> Callable[[Message, list[int]], Awaitable[Message]]:
        async def handle(message: Message, _fds: list[int]) -> Message:
            self.asked.append(name)
            step: Step = getattr(self._script, name)
            return await step(self, message)

        return handle

    async def _shutdown(self, _message: Message, _fds: list[int]) -> Message:
        self.asked.append("shutdown")
        asyncio.get_running_loop().call_soon(self.die, 0)
        return {}

    def _on_event(self, message: Message, _fds: list[int]) -> None:
        self.told.append(message)

    async def _serve(self) -> None:
        if self._script.hello:
            hello = {"v": 1, "role": "worker", "pid": self.pid, "environment_id": self.environment_id}
            await self.link.send_event("hello", hello)
        await self.link.serve()
        self.die(0)

    async def tell(self, kind: str, request: Message, **body: Any) -> None:
        """An event of the running cell."""
        await self.link.send_event(kind, {"execution_id": request["execution_id"], **body})

    def die(self, code: int) -> None:
        """The process ends; negative: by that signal."""
        self.link.close()
        if self.log_fd >= 0:
            os.close(self.log_fd)
            self.log_fd = -1
        self._reaper.end(self.pid, code)

    def signalled(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if number is signal.SIGKILL:
            self.die(-number)
        else:
            self.interrupted.set()


class FakeReaper(Reaper):
    """Knows scripted workers instead of processes."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: dict[int, ScriptedWorker] = {}

    def signal(self, pid: int, number: signal.Signals) -> None:
        if pid in self._waiting:
            self.workers[pid].signalled(number)

    def end(self, pid: int, code: int) -> None:
        """The process has ended; only once."""
        if self.workers.pop(pid, None) is not None:
            self._ended(pid, code)


class FakeForker:
    """Forks scripted workers; `errors` are raised first, one at a fork."""

    def __init__(self, reaper: FakeReaper, script: Script) -> None:
        self.reaper = reaper
        self.script = script
        self.errors: list[Exception] = []
        self.workers: list[ScriptedWorker] = []
        self.installed = "e-1"
        self.requested: list[list[str]] = []
        self.failures: list[tuple[int, BaseException]] = []
        self.spoiled_pids: list[int] = []
        self.import_seconds: dict[str, float] = {}

    # Of its requests, which are served by itself.
    again = False

    def served(self) -> None:
        """The last fork is a worker."""

    def stillborn(self) -> None:
        """It said no word."""

    async def environment_id(self) -> str:
        return self.installed

    @asynccontextmanager
    async def request(self, imports: Iterable[str]) -> AsyncIterator[FakeForker]:
        self.requested.append(list(imports))
        yield self

    def failed(self, pid: int, error: BaseException) -> None:
        self.failures.append((pid, error))

    def spoiled(self, pid: int) -> None:
        self.spoiled_pids.append(pid)

    def imported(self, seconds: Mapping[str, float]) -> None:
        self.import_seconds |= seconds

    async def fork(self, title: str, env: dict[str, str], fds: list[int]) -> int:
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        pid = 1_000_000 + len(self.workers)
        sock, log_fd = socket.socket(fileno=os.dup(fds[0])), os.dup(fds[2])
        worker = ScriptedWorker(pid, sock, log_fd, self.script, self.reaper, self.installed)
        self.workers.append(worker)
        self.reaper.workers[pid] = worker
        return pid


@dataclass
class FakeStore:
    """The store's answers in memory; `errors[method]` are raised first."""

    tenant: str = "team"
    head: int = 0
    epoch: int = 1
    committed_durable: bool = False
    on_disk: set[RegionKey] = field(default_factory=set)
    versions: dict[int, list[RegionKey]] = field(default_factory=dict)
    units: dict[bytes, bytes] = field(default_factory=dict)
    marked: list[int] = field(default_factory=list)
    errors: dict[str, list[LooseLeafError]] = field(default_factory=dict)
    admitted: list[tuple[str, int, list[RegionKey]]] = field(default_factory=list)
    already_bytes: list[int] = field(default_factory=list)
    # A test may hold commits here.
    may_commit: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.may_commit.set()

    def _fail(self, method: str) -> None:
        if self.errors.get(method):
            raise self.errors[method].pop(0)

    async def commit(self, session_id: str, **request: Any) -> tuple[int, bool]:
        await self.may_commit.wait()
        self._fail("commit")
        self.head = request["parent"] + 1
        return self.head, self.committed_durable

    async def admit_save(
        self, session_id: str, session_bytes: int, regions: Sequence[RegionKey], already_bytes: int = 0
    ) -> int:
        self._fail("admit_save")
        self.admitted.append((session_id, session_bytes, list(regions)))
        self.already_bytes.append(already_bytes)
        return sum(length for _region_id, length in regions)

    async def put_units(self, units: Sequence[tuple[bytes, bytes]]) -> int:
        self._fail("put_units")
        self.units.update(units)
        return len(units)

    async def get_units(self, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        return {unit_hash: self.units[unit_hash] for unit_hash in hashes}

    async def manifest(self, session_id: str, **_versions: int) -> Any:
        head = cp.SessionHead(session_id=session_id, epoch=self.epoch, version=self.head)
        return pb.GetManifestResponse(head=head, version=self.head)

    async def list_versions(self, session_id: str, limit: int) -> list[cp.VersionInfo]:
        kept = range(self.head, 0, -1)[:limit]
        return [cp.VersionInfo(version=n, parent=n - 1, durable=n == 1, execution_id="x") for n in kept]

    async def mark_durable(self, session_id: str, version: int) -> tuple[bool, list[RegionKey]]:
        self._fail("mark_durable")
        if version not in self.versions:
            raise NotFound("VERSION_UNKNOWN", "no such version")
        missing = [key for key in self.versions[version] if key not in self.on_disk]
        if not missing:
            self.marked.append(version)
        return not missing, missing

    async def put_regions(self, regions: AsyncIterator[tuple[bytes, int, bytes]], size_bytes: int = 0) -> int:
        self._fail("put_regions")
        keys = [(region_id, length) async for region_id, length, _data in regions]
        self.on_disk.update(keys)
        return len(keys)


class NoLocator:
    """There is no other place."""

    def __init__(self) -> None:
        self.forgotten: list[RegionKey] = []
        self.places: list[RegionSource] = []
        # A test may hold announcements here.
        self.may_forget = asyncio.Event()
        self.may_forget.set()

    async def sources(self, keys: Sequence[RegionKey]) -> list[tuple[RegionSource, list[RegionKey]]]:
        return [(place, list(keys)) for place in self.places]

    async def forget(self, host_id: str, keys: Sequence[RegionKey]) -> None:
        await self.may_forget.wait()
        self.forgotten.extend(keys)


def small_regions(executor: Any, locator: Any = None) -> HostRegions:
    """An arena of one segment."""
    return HostRegions(HostArena(SEGMENT_BYTES_MIN), locator or NoLocator(), "h0", executor)  # type: ignore[arg-type]


@dataclass
class Parts:
    """What most tests put together; `staged` is what commits announced."""

    script: Script
    forker: FakeForker
    reaper: FakeReaper
    store: FakeStore
    locator: NoLocator
    regions: HostRegions
    pools: list[WorkerPool] = field(default_factory=list)
    staged: list[tuple[str, int, list[RegionKey]]] = field(default_factory=list)
    changes: int = 0

    def requests(self, owner: StateOwner) -> StateRequests:
        store: Any = self.store
        return StateRequests(owner, self.regions, store, "h0", RING_BYTES, self._stage)

    def _stage(self, session_id: SessionId, version: Version, keys: list[RegionKey]) -> None:
        self.staged.append((session_id, version, keys))
        self.regions.table.stage(keys, (session_id, version))

    def make_durable(self, session_id: str, version: int) -> None:
        """A version that was staged is on the store's disk."""
        holder = (session_id, version)
        self.regions.let_go(self.regions.table.pinned(holder))
        self.regions.unpin(holder)

    def pool(self, *, keep_s: float = 300.0, workers_max: int = 8, save_s: float = 60.0) -> WorkerPool:
        def changed() -> None:
            self.changes += 1

        forks = WorkerForks(self.forker, self.reaper, WorkerLimits(20.0, save_s), self.requests, {})
        made = WorkerPool(forks, KeepRules(keep_s, workers_max), changed)
        self.pools.append(made)
        return made


@asynccontextmanager
async def parts_of_a_daemon(script: Script | None = None) -> AsyncIterator[Parts]:
    """Ends the workers of its pools at the end."""
    script, reaper, locator = script or Script(), FakeReaper(), NoLocator()
    with ThreadPoolExecutor(2) as executor:
        regions = small_regions(executor, locator)
        made = Parts(script, FakeForker(reaper, script), reaper, FakeStore(), locator, regions)
        yield made
        for pool in made.pools:
            await pool.stop()
        for worker in made.forker.workers:
            worker.die(-signal.SIGKILL)
        ends = [task for task in asyncio.all_tasks() if "_serve_until_lost" in repr(task.get_coro())]
        await within(asyncio.gather(*ends))
    await regions.close()
    regions.arena.close()


def region(number: int, length: int = 5000) -> tuple[RegionKey, bytes]:
    """A region's key and its bytes."""
    data = number.to_bytes(4, "little") * (length // 4)
    return (hash128(data), len(data)), data


def manifest_of(keys: Sequence[RegionKey], *, parent: int = 0, epoch: int = 1, session: SessionId = SESSION) -> bytes:
    """A manifest with one variable on these regions, each a payload of its own."""
    payloads = {
        PayloadId(10 + index): PayloadEntry(
            "memory", "cpu", length, ALGORITHM_XXH3, REGION_BYTES, (RegionRef(region_id, length),)
        )
        for index, (region_id, length) in enumerate(keys)
    }
    header = UnitHeader(payloads=tuple(payloads))
    manifest = Manifest(
        session, Version(parent + 1), Version(parent), Epoch(epoch), execution_id=ExecutionId("x-1"),
        next_id=10 + len(keys), roots={"x": UnitId(1)}, units={UnitId(1): UnitEntry(b"u" * 16, 10, (), header)},
        payloads=payloads,
    )  # fmt: skip
    return encode_manifest(manifest)


def down(peer: str = "store") -> Unavailable:
    """What a client raises when its service is away."""
    return Unavailable(f"{peer.upper()}_DOWN", "gone")
