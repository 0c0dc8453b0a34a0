"""A daemon for kernel tests: the worker protocol on a real Unix socket, cells run by `exec` in the test's own process.

State is real: cells load it and save it with a StateTracker over an in-memory store that outlives the daemon.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import io
import mmap
import os
import socket
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from looseleaf.checkpoint.manifest import decode_manifest
from looseleaf.checkpoint.names import LAST_RESULTS, HiddenNames
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.dirty_tracker import MappedRegions, Memfd
from looseleaf.errors import Conflict, LooseLeafError, PreconditionFailed, Unavailable
from looseleaf.protocol.aio import AsyncChannel
from looseleaf.protocol.aio_rpc import AsyncLink
from looseleaf.protocol.region_rows import pack_places, unpack_regions
from looseleaf.protocol.rpc import Reply
from looseleaf.units import REGION_BYTES
from looseleaf.worker.result_cache import begin_caches, tell_results

RING_SLOTS = 8
REQUESTS = (
    "hello", "record_runs", "prepare", "submit", "input_reply", "interrupt", "raise_epoch", "evict_workers",
    "release_unsaved",
    "have_regions", "ring", "put_regions", "put_units", "commit", "manifest", "list_versions", "fetch_units",
    "map_regions", "unmap_regions",
)  # fmt: skip
Body = dict[str, Any]


@dataclass
class FakeStore:
    """Versions, units and regions of one session, shared by all daemons of a test. Thread-safe enough: one writer."""

    epoch: int = 0
    manifests: dict[int, bytes] = field(default_factory=dict)
    units: dict[bytes, bytes] = field(default_factory=dict)
    regions: dict[bytes, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    committed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def version(self) -> int:
        return max(self.manifests, default=0)

    def commit(self, manifest: bytes, parent: int, epoch: int, execution_id: str) -> int:
        if epoch != self.epoch:
            raise PreconditionFailed("STALE_EPOCH", f"epoch {epoch} is not {self.epoch}")
        if parent != self.version:
            raise Conflict("MANIFEST_MOVED", f"the head is {self.version}, not {parent}")
        decode_manifest(manifest)
        with self.committed:
            self.manifests[self.version + 1] = manifest
            self.commits.append(execution_id)
            self.committed.notify_all()
        return self.version

    def wait_for_version(self, version: int, timeout_s: float = 20.0) -> None:
        with self.committed:
            assert self.committed.wait_for(lambda: self.version >= version, timeout_s), f"still version {self.version}"


class StoreIO:
    """StateIO directly on the store: a worker's view."""

    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self.durable_version = 0

    def have_regions(self, refs: Sequence[Any], session_bytes: int = 0) -> list[int]:
        return [i for i, ref in enumerate(refs) if bytes(ref.region_id) not in self.store.regions]

    def put_regions(self, items: Iterable[tuple[Any, memoryview]]) -> None:
        for ref, data in items:
            self.store.regions[bytes(ref.region_id)] = bytes(data)

    def put_units(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        self.store.units.update((bytes(h), bytes(d)) for h, d in items)

    def commit(self, manifest_bytes: bytes, parent: int, epoch: int, execution_id: str) -> int:
        return self.store.commit(manifest_bytes, parent, epoch, execution_id)

    def manifest(self, version: int = 0, known_version: int = 0) -> tuple[Mapping[str, Any], bytes | None]:
        wanted = version or self.store.version
        return {"version": wanted, "epoch": self.store.epoch, "durable_version": 0}, self.store.manifests.get(wanted)

    def fetch_units(self, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        return {bytes(h): self.store.units[bytes(h)] for h in hashes}

    def map_regions(self, refs: Sequence[Any]) -> Any:
        memory, places = pack_regions(self.store, [(bytes(ref.region_id), ref.length_bytes) for ref in refs])
        with memory:
            parts = [(memory.fd, offset, ref.length_bytes) for ref, offset in zip(refs, places, strict=True)]
            return MappedRegions(parts)

    def map_many(self, groups: Sequence[Sequence[Any]]) -> list[Any]:
        return [self.map_regions(refs) for refs in groups]

    def unmap_regions(self, refs: Sequence[Any]) -> None:
        return


def pack_regions(store: FakeStore, keys: Sequence[tuple[bytes, int]]) -> tuple[Memfd, list[int]]:
    memory = Memfd.create("segment", max(1, len(keys)) * REGION_BYTES)
    places = []
    for number, (region_id, length) in enumerate(keys):
        offset = number * REGION_BYTES
        memory.buffer[offset : offset + length] = store.regions[region_id]
        places.append(offset)
    return memory, places


Play = Callable[["FakeRun"], Awaitable[Body]]


class FakeDaemon:
    """Serves one kernel after another on `path`.

    `plays`: what a submitted cell does, by a word in its text; the default runs it. `prepare_gate`: prepare requests
    wait until it is set. `requests`: everything asked, as (type, body).
    """

    def __init__(self, path: Path, store: FakeStore, host: Body | None = None) -> None:
        self.path = path
        self.store = store
        self.host = {"host_id": "h0", "device": "none", "gpus": 0, **(host or {})}
        self.requests: list[tuple[str, Body]] = []
        self.plays: dict[str, Play] = {}
        self.log: list[Body] = []
        # At the next submission the frontend turns out to have started anew, without the log.
        self.forget_log = False
        # The next request of a type is answered by its error.
        self.refuse: dict[str, LooseLeafError] = {}
        self.prepare_gate = threading.Event()
        self.prepare_gate.set()
        self.running: dict[str, FakeRun] = {}
        self._loop = asyncio.new_event_loop()
        self._links: set[AsyncLink] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._sock: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, name="fake-daemon")
        self._changed = threading.Condition()

    # -- for tests -------------------------------------------------------------------------------------

    def start(self) -> FakeDaemon:
        ready = threading.Event()
        self._loop.call_soon(self._listen)
        self._loop.call_soon(ready.set)
        self._thread.start()
        assert ready.wait(10)
        return self

    def stop(self) -> None:
        """Closes the socket and all connections, as a daemon that was killed."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        self.path.unlink(missing_ok=True)

    def count(self, type_: str) -> int:
        return sum(kind == type_ for kind, _ in self.requests)

    def wait_for(self, type_: str, count: int = 1, timeout_s: float = 20.0) -> Body:
        """The body of the `count`-th request of that type."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.count(type_) >= count, timeout_s), f"no {type_} number {count}"
        return [body for kind, body in self.requests if kind == type_][count - 1]

    # -- the socket ------------------------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _listen(self) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.bind(str(self.path))
        self._sock.listen()
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        assert self._sock is not None
        connection, _ = self._sock.accept()
        task = self._loop.create_task(self._serve_kernel(connection))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve_kernel(self, connection: socket.socket) -> None:
        kernel = FakeKernelConnection(self, connection)
        self._links.add(kernel.link)
        try:
            await kernel.link.serve()
        finally:
            self._links.discard(kernel.link)
            kernel.close()

    async def _close(self) -> None:
        if self._sock is not None:
            self._loop.remove_reader(self._sock)
            self._sock.close()
        for link in list(self._links):
            link.close()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def note(self, type_: str, body: Body) -> None:
        with self._changed:
            self.requests.append((type_, body))
            self._changed.notify_all()


class FakeKernelConnection:
    """One kernel: state requests and cells."""

    def __init__(self, daemon: FakeDaemon, connection: socket.socket) -> None:
        self.daemon = daemon
        self.store = daemon.store
        self.session_id = ""
        self.link = AsyncLink(AsyncChannel(connection), {name: self._noting(name) for name in REQUESTS})
        self._ring_memory = -1
        self._segments = 0

    def close(self) -> None:
        if self._ring_memory >= 0:
            os.close(self._ring_memory)

    def _noting(self, name: str) -> Callable[[Body, list[int]], Awaitable[Any]]:
        async def handle(body: Body, _fds: list[int]) -> Any:
            self.daemon.note(name, body)
            if (error := self.daemon.refuse.pop(name, None)) is not None:
                raise error
            return await getattr(self, f"_{name}")(body)

        return handle

    async def _hello(self, body: Body) -> Body:
        self.session_id = body["session_id"] or "s-fresh"
        self.store.epoch += 1
        return {"v": 1, "session_id": self.session_id, "epoch": self.store.epoch, "version": self.store.version,
                **self.daemon.host}

    async def _raise_epoch(self, _body: Body) -> Body:
        self.store.epoch += 1
        return {"epoch": self.store.epoch, "version": self.store.version}

    async def _release_unsaved(self, _body: Body) -> Body:
        return {}

    async def _evict_workers(self, _body: Body) -> Body:
        return {"evicted": 0}

    async def _record_runs(self, body: Body) -> Body:
        log = self.daemon.log
        for run in body["runs"]:
            if run["sequence"] == len(log) + 1:
                log.append(run)
        return {"next_sequence": len(log) + 1}

    async def _prepare(self, body: Body) -> Body:
        await asyncio.get_running_loop().run_in_executor(None, self.daemon.prepare_gate.wait, 20)
        return {"recipe": {"label": "gpu" if "gpu" in body["source"] else "cpu"}, "worker_id": "w-1", "prepare_ms": 3.0,
                "skipped_reason": ""}

    async def _submit(self, body: Body) -> Body:
        if self.daemon.forget_log:
            self.daemon.forget_log = False
            self.daemon.log.clear()
        if body["log_length"] > len(self.daemon.log):
            raise PreconditionFailed("SESSION_LOG_STALE", "the frontend lacks a part of the log")
        run = FakeRun(self, body)
        self.daemon.running[run.execution_id] = run
        play = next((play for word, play in self.daemon.plays.items() if word in body["source"]), run_cell)
        try:
            return {"saved": await play(run)}
        finally:
            del self.daemon.running[run.execution_id]

    def _run_of(self, body: Body) -> FakeRun:
        run = self.daemon.running.get(body["execution_id"])
        if run is None:
            raise PreconditionFailed("EXECUTION_ENDED", "this cell is not running any more")
        return run

    async def _input_reply(self, body: Body) -> Body:
        self._run_of(body).answers.put_nowait(body)
        return {}

    async def _interrupt(self, body: Body) -> Body:
        self._run_of(body).interrupts.put_nowait(body)
        return {}

    # -- state -----------------------------------------------------------------------------------------

    async def _have_regions(self, body: Body) -> Body:
        return {"missing": [i for i, (rid, _) in enumerate(body["regions"]) if rid not in self.store.regions]}

    async def _ring(self, _body: Body) -> Reply:
        if self._ring_memory < 0:
            self._ring_memory = os.memfd_create("ring")
            os.ftruncate(self._ring_memory, RING_SLOTS * REGION_BYTES)
        return Reply({"size_bytes": RING_SLOTS * REGION_BYTES, "slot_bytes": REGION_BYTES}, [self._ring_memory])

    async def _put_regions(self, body: Body) -> Body:
        with mmap.mmap(self._ring_memory, RING_SLOTS * REGION_BYTES) as memory:
            for rid, length, slot in body["regions"]:
                self.store.regions[rid] = memory[slot * REGION_BYTES : slot * REGION_BYTES + length]
        return {}

    async def _put_units(self, body: Body) -> Body:
        self.store.units.update(body["units"])
        return {}

    async def _commit(self, body: Body) -> Body:
        version = self.store.commit(body["manifest"], body["parent"], body["epoch"], body["execution_id"])
        return {"version": version, "durable": False}

    async def _list_versions(self, body: Body) -> Body:
        kept = sorted(self.store.manifests, reverse=True)[: body["limit"] or None]
        decoded = [decode_manifest(self.store.manifests[version]) for version in kept]
        return {"versions": [
            [m.version, m.parent, m.created_unix_ms, False, m.logical_bytes(), len(m.roots), m.execution_id, 0]
            for m in decoded
        ]}  # fmt: skip

    async def _manifest(self, body: Body) -> Body:
        head, manifest = StoreIO(self.store).manifest(body["version"])
        return {**head, "head": self.store.version, "manifest": manifest}

    async def _fetch_units(self, body: Body) -> Body:
        return {"units": [[h, self.store.units[h]] for h in body["hashes"]]}

    async def _map_regions(self, body: Body) -> Reply:
        memory, places = pack_regions(self.store, unpack_regions(body, count_max=10_000))
        self._segments += 1
        fd = memory.readonly_fd()
        memory.close()
        found = pack_places((self._segments, at // REGION_BYTES) for at in places)
        return Reply({"segments": [self._segments], "places": found}, [fd], close_fds=True)

    async def _unmap_regions(self, _body: Body) -> Body:
        return {}


class FakeRun:
    """One submitted cell."""

    def __init__(self, connection: FakeKernelConnection, body: Body) -> None:
        self.connection = connection
        self.daemon = connection.daemon
        self.store = connection.store
        self.body = body
        self.execution_id: str = body["execution_id"]
        self.source: str = body["source"]
        self.count: int = body["execution_count"]
        self.answers: asyncio.Queue[Body] = asyncio.Queue()
        self.interrupts: asyncio.Queue[Body] = asyncio.Queue()

    async def event(self, kind: str, **body: Any) -> None:
        await self.connection.link.send_event("event", {"execution_id": self.execution_id, "kind": kind, **body})

    async def output(self, type_: str, **content: Any) -> None:
        await self.event("output", message={"type": type_, **content})

    async def stream(self, text: str, name: str = "stdout") -> None:
        await self.output("stream", name=name, text=text)

    async def ask(self, prompt: str, password: bool = False) -> Body:
        await self.event("input_request", prompt=prompt, password=password)
        return await self.answers.get()

    async def ended(self, status: str = "ok", **reply: Any) -> None:
        await self.event("ended", reply={"status": status, "execution_count": self.count, **reply}, run_s=0.25)

    async def error(self, ename: str, evalue: str) -> None:
        lines = [f"{ename}: {evalue}"]
        await self.output("error", ename=ename, evalue=evalue, traceback=lines)
        await self.ended("error", ename=ename, evalue=evalue, traceback=lines)

    def tracker(self, shell: FakeShell) -> StateTracker:
        """A worker's tracker at the kernel's version with everything loaded."""
        io: Any = StoreIO(self.store)
        tracker = StateTracker(
            shell.user_ns, io, session_id=self.connection.session_id, epoch=self.body["epoch"],
            hidden=HiddenNames(shell),
        )  # fmt: skip
        if self.body["version"]:
            tracker.advance(self.store.manifests[self.body["version"]])
            tracker.restore(sorted(tracker.manifest.roots))
        return tracker

    def saved(self, version: int, **more: Any) -> Body:
        figures = {
            "prepare_ms": 12.0, "start_ms": 34.0, "run_s": 0.25, "save_ms": 5.0, "dirty_regions": 1, "total_regions": 4,
            "bytes_moved": REGION_BYTES, "gpu_held_s": 0.5, "gpu_pinned_s": 0.25, "gpu_resident_s": 0.0,
        }  # fmt: skip
        return {
            "version": version, "error_reason": "", "error_message": "", "figures": figures, "unsaved": [],
            "path": "cold", "gpu_index": 0, "host_id": "h0", "worker_id": "w-1", "pid": 4242, **more,
        }  # fmt: skip


async def run_cell(run: FakeRun) -> Body:
    """Runs the cell for real: state in, `exec`, outputs, state out."""
    recipe = {"names": ["x"], "imports": ["numpy"], "label": "gpu", "reason": "r", "live_names": 3}
    await run.event("recipe", recipe=recipe)
    await run.event("lease", host_id="h0", gpu=0, path="cold", worker_id="w-1")
    await run.event("stage", stage=6, worker_id="w-1", pid=4242, elapsed_ms=0.5)
    await run.event("stage", stage=8, worker_id="w-1", pid=4242, elapsed_ms=1.0)
    shell = FakeShell()
    tracker = run.tracker(shell)
    begin_caches(shell, run.body["context"])
    text, result, error = execute(run.source, shell, run.count)
    if text:
        await run.stream(text)
    if result is not None:
        await run.output("execute_result", data={"text/plain": result}, metadata={}, execution_count=run.count)
    if error is not None:
        await run.error(type(error).__name__, str(error))
    else:
        await run.ended(results=tell_results(shell))
    report = tracker.save(run.execution_id, "gpu")
    return run.saved(report.version)


class FakeShell:
    """What a worker's shell has of IPython's caches of results."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins, "_oh": {}}
        self.user_ns |= dict.fromkeys(LAST_RESULTS, "")
        self.user_ns_hidden: dict[str, Any] = {}
        self.displayhook = SimpleNamespace(**dict.fromkeys(LAST_RESULTS, ""))
        lists = ("input_hist_raw", "input_hist_parsed", "dir_hist")
        self.history_manager = SimpleNamespace(**{name: [] for name in lists})
        self.user_ns |= {"Out": self.user_ns["_oh"], "_ih": self.history_manager.input_hist_parsed}

    def show(self, value: Any, count: int) -> None:
        """As IPython does with a cell's result."""
        hook, rows = self.displayhook, tell_results(self)["last"]
        hook.___, hook.__, hook._ = hook.__, hook._, value
        self.user_ns[f"_{count}"] = self.user_ns["_oh"][count] = value
        if all(shown or not bound for bound, shown, _ in rows):
            names = {name: getattr(hook, name) for name in LAST_RESULTS}
            self.user_ns |= names
            self.user_ns_hidden |= names


def execute(source: str, shell: FakeShell, count: int) -> tuple[str, str | None, Exception | None]:
    """(printed text, repr of the last expression, exception) of running `source`; the last expression is its result."""
    namespace = shell.user_ns
    lines = [line if not line.startswith("%%") else "#" for line in source.splitlines()]
    tree = ast.parse("\n".join(lines))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, "cell", "exec"), namespace)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)
                if value is not None:
                    shell.show(value, count)
                    return printed.getvalue(), repr(value), None
    except Exception as error:
        traceback.clear_frames(error.__traceback__)
        return printed.getvalue(), None, error
    return printed.getvalue(), None, None


def host_lost(text: str = "the host h1 cannot be reached any more") -> LooseLeafError:
    return Unavailable("HOST_LOST", text)
