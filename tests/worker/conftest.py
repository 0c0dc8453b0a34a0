"""A daemon of a few lines: a real zygote process, workers forked from it, and session state in dictionaries."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

import pytest

from looseleaf.dirty_tracker import Memfd
from looseleaf.errors import Conflict, LooseLeafError, NotFound
from looseleaf.protocol.channel import Channel
from looseleaf.protocol.control import ControlSocket
from looseleaf.protocol.region_rows import pack_places, unpack_regions
from looseleaf.protocol.rpc import build_error
from looseleaf.protocol.threaded import ThreadedLink
from looseleaf.units import REGION_BYTES
from looseleaf.worker.thread_counts import THREAD_VARIABLES

sys.path.insert(0, str(Path(__file__).parent))

LIMIT_S = 60.0
HEAD_SET = "numpy,torch,matplotlib.pyplot,pandas"
REPOSITORY = Path(__file__).resolve().parents[2]
IMPORTABLE = REPOSITORY / "tests/fixtures/importable"
_PR_SET_CHILD_SUBREAPER = 36
_RING_SLOTS = 8


def become_subreaper() -> None:
    """Workers become this process's children at once, as they do the daemon's."""
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def exit_code(pid: int) -> int:
    """How the child ended: its status, or minus its signal."""
    fd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert poll.poll(LIMIT_S * 1000), f"process {pid} did not end"
    finally:
        os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def first_word(control: ControlSocket, importing: list[str]) -> dict[str, Any]:
    """A zygote's READY or ERR; the names before it are added to `importing`."""
    while True:
        message, _ = control.recv(LIMIT_S)
        if message["t"] != "IMPORTING":
            return message
        importing.append(message["name"])


class ZygoteProcess:
    """A zygote exec'ed as the daemon does it."""

    def __init__(self, imports: str = "", stdout: IO[bytes] | None = None, **env: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            **os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(IMPORTABLE), os.environ.get("PYTHONPATH", "")]), **env,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "looseleaf.worker.zygote", "--ctl-fd", str(theirs.fileno()),
             "--imports", imports],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=stdout, env=environment,
            start_new_session=True,
        )
        theirs.close()
        self.control = ControlSocket(ours)
        # What it was about to import, in order.
        self.importing: list[str] = []
        self.first = first_word(self.control, self.importing)

    def fork_node(self, *imports: str) -> ZygoteNode:
        """A zygote that imports more on top of this one; it may have refused to serve."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            pid = self._fork(theirs, "ll-zygote:test", {}, kind="zygote", imports=list(imports))
        return ZygoteNode(pid, ours)

    def fork(self, title: str = "ll-worker:test", **env: str) -> tuple[int, socket.socket]:
        """A worker: its pid and this end of its channel."""
        ours, theirs = socket.socketpair()
        with theirs:
            return self._fork(theirs, title, env), ours

    def _fork(self, channel: socket.socket, title: str, env: dict[str, str], **more: Any) -> int:
        null = os.open(os.devnull, os.O_RDWR)
        try:
            message = {"t": "FORK", "v": 1, "id": 7, "title": title, "env": env, **more}
            self.control.send(message, [channel.fileno(), null, null, 2])
            reply, _ = self.control.recv(LIMIT_S)
        finally:
            os.close(null)
        assert reply["t"] == "FORKED", reply
        assert reply["id"] == 7
        return int(reply["pid"])

    def close(self) -> int:
        """Ends it by closing the control channel; its exit status."""
        self.control.close()
        return self.process.wait(LIMIT_S)


class ZygoteNode(ZygoteProcess):
    """A zygote that another one forked: a child of this process."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = ControlSocket(control)
        self.importing = []
        self.first = first_word(self.control, self.importing)

    def close(self) -> int:
        self.control.close()
        return exit_code(self.pid)


class StateStore:
    """What daemon and store keep together: regions, units, versions."""

    def __init__(self) -> None:
        self.regions: dict[bytes, bytes] = {}
        self.units: dict[bytes, bytes] = {}
        self.manifests: list[bytes] = []
        self.before_commit: Callable[[], None] = lambda: None
        # Hashes of units that workers asked for, in order.
        self.fetched: list[bytes] = []
        # How many regions each ask for their places named.
        self.mapped: list[int] = []


class Worker:
    """A worker with its link; cells are run by `run`, which gathers what it says."""

    def __init__(self, zygote: ZygoteProcess, store: StateStore | None = None, **env: str) -> None:
        self.store = store or StateStore()
        self.events: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.messages: list[dict[str, Any]] = []
        self.saved: dict[str, Any] = {}
        self._exit_code: int | None = None
        self._ring = os.memfd_create("ring")
        os.ftruncate(self._ring, _RING_SLOTS * REGION_BYTES)
        self._segments = 0
        self.pid, sock = zygote.fork(**env)
        self.ended: Future[LooseLeafError] = Future()
        self.link = ThreadedLink(
            Channel(sock), lambda message, fds: self.events.put(message), self._serve, self.ended.set_result
        ).start()
        self.hello = self.event("hello")

    # -- the daemon's side of the state requests -------------------------------------------------------

    def _serve(self, message: dict[str, Any], fds: list[int]) -> None:
        try:
            body, reply_fds = getattr(self, f"_on_{message['t']}")(message)
            self.link.reply(message["id"], body, reply_fds)
            for fd in reply_fds:
                if fd != self._ring:
                    os.close(fd)
        except LooseLeafError as error:
            if error.reason not in ("PEER_CLOSED", "FORKED_CHILD"):
                self.link.reply_error(message["id"], error)
        except Exception as error:
            self.link.channel.send(build_error(message["id"], error))

    def _on_ring(self, _message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        return {"size_bytes": _RING_SLOTS * REGION_BYTES, "slot_bytes": REGION_BYTES}, [self._ring]

    def _on_have_regions(self, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        return {"missing": [i for i, (rid, _) in enumerate(message["regions"]) if rid not in self.store.regions]}, []

    def _on_put_regions(self, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        with mmap.mmap(self._ring, _RING_SLOTS * REGION_BYTES) as memory:
            for rid, length, slot in message["regions"]:
                self.store.regions[rid] = memory[slot * REGION_BYTES : slot * REGION_BYTES + length]
        return {}, []

    def _on_put_units(self, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        self.store.units.update(message["units"])
        return {}, []

    def _on_commit(self, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        self.store.before_commit()
        if message["parent"] != len(self.store.manifests):
            raise Conflict("MANIFEST_MOVED", "somebody was faster")
        self.store.manifests.append(message["manifest"])
        return {"version": len(self.store.manifests), "durable": False}, []

    def _on_manifest(self, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        version = message["version"] or len(self.store.manifests)
        data = self.store.manifests[version - 1] if version and version != message["known_version"] else None
        return {"version": version, "epoch": 1, "durable_version": 0, "manifest": data}, []

    def _on_fetch_units(self, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        if not all(unit_hash in self.store.units for unit_hash in message["hashes"]):
            raise NotFound("UNIT_UNKNOWN")
        self.store.fetched += message["hashes"]
        return {"units": [[unit_hash, self.store.units[unit_hash]] for unit_hash in message["hashes"]]}, []

    def _on_map_regions(self, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        regions = unpack_regions(message, count_max=10_000)
        self.store.mapped.append(len(regions))
        self._segments += 1
        with Memfd.create("segment", max(1, len(regions)) * REGION_BYTES) as memory:
            for number, (rid, length) in enumerate(regions):
                with memory.buffer as view:
                    view[number * REGION_BYTES : number * REGION_BYTES + length] = self.store.regions[rid]
            fd = memory.readonly_fd()
        places = pack_places((self._segments, number) for number in range(len(regions)))
        return {"segments": [self._segments], "places": places}, [fd]

    def _on_unmap_regions(self, _message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        return {}, []

    # -- the test's side -------------------------------------------------------------------------------

    def event(self, type_: str) -> dict[str, Any]:
        """The next event of this type; output messages before it are kept in `messages`."""
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            try:
                message = self.events.get(timeout=max(0.01, deadline_s - time.monotonic()))
            except Empty:
                raise AssertionError(f"no {type_} came; before: {self.messages[-5:]}") from None
            if message["t"] == "output":
                self.messages.append(message["message"])
            if message["t"] == type_:
                return message

    def output_until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next output message that `wanted` accepts."""
        while not wanted(message := self.event("output")["message"]):
            continue
        return message

    def text_until(self, end: str) -> None:
        """Waits until the text of stdout so far ends so."""
        while not self.text().endswith(end):
            self.event("output")

    def answer(self, question: dict[str, Any], value: str, refused: bool = False) -> None:
        """Answers an `input_request`."""
        body = {"value": value, "refused": refused, "question": question["question"]}
        self.link.send_event("input_reply", body)

    def prepare(self, names: list[str] | None = None, imports: list[str] | None = None, **more: Any) -> dict[str, Any]:
        body = {"session_id": "s-test", "epoch": 1, "version": len(self.store.manifests), "names": names or [],
                "imports": imports or [], "cwd": None, **more}
        return self.link.request("prepare", body, timeout_s=LIMIT_S)[0]

    def begin(self, source: str, count: int = 1, allow_stdin: bool = False, **context: Any) -> Future[Any]:
        """Starts a cell; the future holds the save's outcome."""
        self.messages = []
        return self.link.request_future("run", {
            "execution_id": f"x-{count}", "source": source, "execution_count": count, "cell_id": f"cell-{count}",
            "allow_stdin": allow_stdin, "context": context,
        })

    def finish(self, outcome: Future[Any]) -> dict[str, Any]:
        """Waits for the cell's end and its save; the content of the `ended` event."""
        ended = self.event("ended")
        self.saved = outcome.result(LIMIT_S)[0]
        return ended

    def run(self, source: str, count: int = 1, **options: Any) -> dict[str, Any]:
        """Runs a cell to its end; its reply. Outputs are in `messages`."""
        return self.finish(self.begin(source, count, **options))["reply"]

    def interrupt(self) -> None:
        os.kill(self.pid, signal.SIGINT)

    def text(self, name: str = "stdout") -> str:
        """All text of one stream, joined."""
        return "".join(m["text"] for m in self.messages if m["type"] == "stream" and m["name"] == name)

    def types(self) -> list[str]:
        """Types of the outputs in order."""
        return [m["type"] for m in self.messages]

    def end(self) -> int:
        """Ends the connection if it still lives; the worker's exit status. The process must be gone by then or soon."""
        if self._exit_code is None:
            self.link.close()
            os.close(self._ring)
            self._exit_code = exit_code(self.pid)
        return self._exit_code


def open_fds(pid: int | str = "self") -> dict[int, str]:
    """fd → target of a process; the listing's own fd is left out."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if f"/proc/{os.getpid()}/" not in target:
                found[int(entry.name)] = target
    return found


@pytest.fixture(scope="module", autouse=True)
def subreaper(no_subreaper: None) -> None:
    """For the session's zygotes too: each file begins with a process that adopts nobody."""
    become_subreaper()


@pytest.fixture(scope="session")
def zygote() -> Iterator[ZygoteProcess]:
    """One warm zygote for all tests."""
    become_subreaper()
    process = ZygoteProcess(HEAD_SET)
    yield process
    assert process.close() == 0


@pytest.fixture(scope="session")
def zygote_class() -> type[ZygoteProcess]:
    """For zygotes that a module's tests share; their children become this process's."""
    become_subreaper()
    return ZygoteProcess


@pytest.fixture(scope="session")
def bare_zygote() -> Iterator[ZygoteProcess]:
    """A zygote without packages."""
    become_subreaper()
    process = ZygoteProcess()
    yield process
    assert process.close() == 0


@pytest.fixture
def start_zygote() -> Iterator[Callable[..., ZygoteProcess]]:
    """Starts zygotes that are ended with the test."""
    become_subreaper()
    started: list[ZygoteProcess] = []

    def start(imports: str = "", stdout: IO[bytes] | None = None, **env: str) -> ZygoteProcess:
        started.append(ZygoteProcess(imports, stdout, **env))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def make_worker(zygote: ZygoteProcess) -> Iterator[Callable[..., Worker]]:
    """Forks workers, each with an empty session; all must be gone afterwards."""
    made: list[Worker] = []

    def make(
        store: StateStore | None = None, prepare: bool = True, zygote: ZygoteProcess = zygote, **env: str
    ) -> Worker:
        worker = Worker(zygote, store, **env)
        made.append(worker)
        if prepare:
            worker.prepare()
        return worker

    yield make
    for worker in made:
        worker.end()


@pytest.fixture
def worker(make_worker: Callable[..., Worker]) -> Worker:
    """A worker with an empty session."""
    return make_worker()


@pytest.fixture(scope="module")
def shared_worker(zygote: ZygoteProcess) -> Iterator[Worker]:
    """One worker for the cells of a whole module that do not disturb each other."""
    made = Worker(zygote)
    made.prepare()
    yield made
    made.end()
