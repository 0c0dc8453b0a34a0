"""One forked worker as the daemon sees it: its channel, its log, its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from looseleaf.errors import LooseLeafError, Timeout, Unavailable
from looseleaf.ids import Version, WorkerId
from looseleaf.protocol import fields
from looseleaf.protocol.aio import AsyncChannel
from looseleaf.protocol.aio_rpc import AsyncLink
from looseleaf.services.worker_daemon.core.worker_life import Stage, WorkerFacts
from looseleaf.services.worker_daemon.limits import Confined, Confiner
from looseleaf.services.worker_daemon.log_ids import with_ids
from looseleaf.services.worker_daemon.log_pipe import LogPipe
from looseleaf.services.worker_daemon.memory_guard import MemoryGuard, over_limit
from looseleaf.services.worker_daemon.process_memory import used_memory_bytes
from looseleaf.services.worker_daemon.reaper import Reaper, describe_exit
from looseleaf.services.worker_daemon.save_patience import LAST_PATIENCE_S
from looseleaf.services.worker_daemon.state_requests import StateRequests
from looseleaf.v1 import recipe_pb2

log = structlog.get_logger()

Message = dict[str, Any]

HELLO_TIMEOUT_S = 10.0
ATTACH_TIMEOUT_S = 60.0
SHUTDOWN_TIMEOUT_S = 3.0
# A worker whose connection broke has so long to exit by itself.
EXIT_WAIT_S = 2.0
# Longer than the last commit of a worker that has ended is waited for.
KILLED_WAIT_S = LAST_PATIENCE_S + 2.0
# What a dead worker sent last is read for at most so long: a forked child of it may hold the connection open.
LAST_WORDS_S = 1.0
# How often the memory of a worker is looked at that the system itself does not limit.
MEMORY_LOOK_S = 0.25
# And so many times as long as the last look took, which is long for several large processes, up to this.
MEMORY_LOOK_PAUSES = 20
MEMORY_LOOK_S_MAX = 2.0
# Stages that a worker may be in when it is idle.
IDLE_STAGES = frozenset({Stage.FORKED, Stage.IMPORTED, Stage.HOST_READY, Stage.COMPLETED})


class Forker(Protocol):
    """Makes a worker process; ForkRequest, or a test's stand-in."""

    async def fork(self, title: str, env: dict[str, str], fds: list[int]) -> int:
        """See Zygote.fork."""
        ...


class ProcessWatch(Protocol):
    """Tells of a process's end and signals it: Reaper for children, AdoptedProcess for one of an earlier daemon."""

    def exit_status(self, pid: int) -> asyncio.Future[int] | asyncio.Future[int | None]:
        """See Reaper.exit_status; None: it has ended, and how is not known."""
        ...

    def peak_bytes(self, pid: int) -> int:
        """See Reaper.peak_bytes."""
        ...

    def signal(self, pid: int, number: signal.Signals) -> None:
        """See Reaper.signal."""
        ...


@dataclass(frozen=True)
class WorkerLimits:
    """Seconds after which a worker's step has failed, and what its process may have."""

    prepare_s: float = 300.0
    save_s: float = 600.0
    confiner: Confiner = field(default_factory=Confiner)


class WorkerProcess:
    """A worker and the daemon's end of everything that connects them.

    `lost` resolves to how it ended, when nothing of it is left: its process, its processes' group, its last commit.
    """

    def __init__(
        self, facts: WorkerFacts, requests: StateRequests, reaper: ProcessWatch, limits: WorkerLimits,
        confined: Confined,
    ) -> None:
        self.facts = facts
        self.requests = requests
        # Who holds it talks to the worker: a preparation, or an execution from its preparation to its save.
        self.lock = asyncio.Lock()
        # The import that its preparation is at; empty: none.
        self._importing = ""
        # Gets the worker's events while a cell runs.
        self.on_message: Callable[[Message], None] | None = None
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.limits = limits
        # The recipe of its last preparation before Run.
        self.prepared_for: recipe_pb2.ExecutionRecipe | None = None
        self._reaper = reaper
        self._exit_status: asyncio.Future[Any] = reaper.exit_status(facts.pid)
        self._confined = confined
        self._guard = confined.group.guard if confined.group is not None else MemoryGuard.find()
        # What it had when it was ended for it.
        self._over_bytes = 0
        # When the last thing was begun that it was asked for: what was killed before is no cause of its end.
        self._kills_before = self._guard.kills()
        self._hello = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def fork(
        cls,
        worker_id: WorkerId,
        forker: Forker,
        env: Mapping[str, str],
        requests: StateRequests,
        reaper: Reaper,
        limits: WorkerLimits,
    ) -> WorkerProcess:
        """Forks a worker and waits for its hello.

        Raises as `Zygote.fork`, or Unavailable `WORKER_LOST` if the process ended or hung before it; then it is killed.
        """
        with ExitStack() as ours_on_error, ExitStack() as theirs:
            ours, channel = socket.socketpair()
            ours_on_error.callback(ours.close)
            theirs.callback(channel.close)
            log_reader, log_writer = os.pipe2(os.O_CLOEXEC)
            ours_on_error.callback(os.close, log_reader)
            theirs.callback(os.close, log_writer)
            null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            theirs.callback(os.close, null)
            fds = [channel.fileno(), null, log_writer, log_writer]
            confined = limits.confiner.confine(worker_id)
            ours_on_error.callback(limits.confiner.free, confined)
            pid = await forker.fork(f"ll-worker:{worker_id}", {**env, **confined.env}, fds)
            worker = cls(WorkerFacts(worker_id, pid), requests, reaper, limits, confined)
            worker._connect(AsyncChannel(ours), log_reader)
            ours_on_error.pop_all()
        try:
            await asyncio.wait_for(worker._hello.wait(), HELLO_TIMEOUT_S)
            if worker.lost.done():
                text = f"a new worker {worker.lost.result()}; nothing was run, run the cell again"
                raise Unavailable("WORKER_LOST", text, how=worker.lost.result())
            if variables := limits.confiner.environment:
                await worker.send_event("environment", {"variables": variables})
        except BaseException as error:
            worker.kill()
            if not isinstance(error, TimeoutError):
                raise
            text = f"a new worker did not answer in {HELLO_TIMEOUT_S:g} s; nothing was run, run the cell again"
            raise Unavailable("WORKER_LOST", text) from None
        return worker

    @classmethod
    def adopted(
        cls, facts: WorkerFacts, channel: AsyncChannel, log_fd: int, requests: StateRequests, process: ProcessWatch,
        limits: WorkerLimits,
    ) -> WorkerProcess:
        """A worker that an earlier daemon forked and that has come by `channel`; its log is read from `log_fd`."""
        worker = cls(facts, requests, process, limits, limits.confiner.confined(facts.worker_id))
        worker._hello.set()
        worker._connect(channel, log_fd)
        return worker

    def _connect(self, channel: AsyncChannel, log_fd: int) -> None:
        handlers = with_ids(self.requests.owner, self.requests.handlers())
        self._link = AsyncLink(channel, handlers=handlers, on_event=self._on_event)
        self._log = LogPipe(log_fd, self.facts.worker_id)
        # In a context of its own: it outlives the call that asked for the worker, with its deadline and its log ids.
        self._serving = asyncio.create_task(self._serve_until_lost(), context=Context())

    def _on_event(self, message: Message, _fds: list[int]) -> None:
        if message.get("t") == "hello":
            self.facts.environment_id = fields.text(message, "environment_id", "")
            self._hello.set()
        elif message.get("t") == "importing":
            self._importing = fields.text(message, "name")
        elif self.on_message is not None:
            self.on_message(message)

    async def _serve_until_lost(self) -> None:
        """Never raises: whatever breaks, the worker ends and `lost` says so."""
        serving = asyncio.create_task(self._link.serve())
        ends: set[asyncio.Future[Any]] = {serving, self._exit_status}
        watching = asyncio.create_task(self._watch_memory())
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        await asyncio.wait({serving}, timeout=LAST_WORDS_S if self._exit_status.done() else None)
        self._link.close()
        await asyncio.wait({serving})
        if (fault := serving.exception()) is not None:
            log.error("worker_connection_failed", worker=self.facts.worker_id, exc_info=fault)
        if not self._exit_status.done():
            await asyncio.wait({self._exit_status}, timeout=EXIT_WAIT_S)
            self.kill()
        code = await asyncio.shield(self._exit_status)
        how = describe_exit(code, self._why_killed())
        self.limits.confiner.free(self._confined)
        self._log.drain()
        # Only now: until its end it may map regions and its commit may be under way.
        await self.requests.close()
        self.facts.stage = Stage.GONE
        log.info(
            "worker_ended", worker=self.facts.worker_id, pid=self.facts.pid, how=how, session=self.facts.session_id
        )
        self._hello.set()
        self.lost.set_result(how)

    def _why_killed(self) -> str:
        group, limit_bytes = self._confined.group, self.limits.confiner.memory_bytes
        if self._over_bytes:
            return over_limit(limit_bytes, self._over_bytes)
        peak_bytes = group.peak_bytes() if group is not None else 0
        return self._guard.explain(self._kills_before, peak_bytes or self._reaper.peak_bytes(self.facts.pid))

    async def _watch_memory(self) -> None:
        """Ends a worker that has taken more than it may, where no control group of its own does that."""
        limit_bytes, took_s = self.limits.confiner.memory_bytes, 0.0
        while limit_bytes and self._confined.group is None and not self._over_bytes:
            await asyncio.sleep(max(MEMORY_LOOK_S, min(MEMORY_LOOK_PAUSES * took_s, MEMORY_LOOK_S_MAX)))
            began_s = time.monotonic()
            used_bytes = await asyncio.to_thread(used_memory_bytes, self.facts.pid, limit_bytes)
            took_s = time.monotonic() - began_s
            if used_bytes > limit_bytes:
                self._over_bytes = used_bytes
                self.kill()

    async def _request(self, kind: str, body: Message, timeout_s: float | None) -> Message:
        """The worker's reply. Raises its error, Timeout `REQUEST_TIMEOUT`, or Unavailable `WORKER_LOST` if it ended."""
        if self.lost.done():
            raise self._lost_error()
        try:
            reply, _fds = await self._link.request(kind, body, timeout_s=timeout_s)
        except Unavailable as error:
            if error.reason != "PEER_CLOSED":
                raise
            if self._link.error is None:
                # It is there, and says so of a connection of its own: it is of no use any more.
                self.kill()
            await asyncio.shield(self.lost)
            raise self._lost_error() from error
        return reply

    def _lost_error(self) -> Unavailable:
        how = self.lost.result()
        return Unavailable("WORKER_LOST", f"the worker process of this cell {how}", how=how)

    async def prepare(self, body: Message) -> Message:
        """Imports and restores what `body` names, up to host_ready; executes nothing.

        Raises as `_request`; what ended or was late at an import names it.
        """
        self._kills_before = self._guard.kills()
        try:
            reply = await self._request("prepare", body, self.limits.prepare_s)
        except (Timeout, Unavailable) as error:
            if not self._importing:
                raise
            text = f"{error.message}; it was importing {self._importing}"
            raise type(error)(error.reason, text, **{**error.fields, "importing": self._importing}) from error
        finally:
            self._importing = ""
        # A worker never goes back: what is older than its state changes nothing.
        self.facts.version = max(self.facts.version, Version(fields.integer(body, "version")))
        if self.facts.stage in IDLE_STAGES:
            self.facts.stage = Stage.HOST_READY
        return reply

    async def attach(self, gpus: tuple[int, ...], device: str, delays: bool) -> None:
        """Under a lease: opens the device, if it is not open yet, and moves payloads to it."""
        self.facts.bind(gpus)
        await self._request("attach", {"gpus": list(gpus), "device": device, "delays": delays}, ATTACH_TIMEOUT_S)

    async def open_ahead(self, gpus: tuple[int, ...], device: str, delays: bool, *, load: bool) -> None:
        """Before Run: opens the device, and moves payloads to it if `load`. From its start `facts` say where."""
        self.facts.open_ahead(gpus, load=load)
        body = {"gpus": list(gpus), "device": device, "delays": delays, "ahead": True, "load": load}
        reply = await self._request("attach", body, ATTACH_TIMEOUT_S)
        self.facts.opened_ahead(opened=fields.boolean(reply, "opened", True), now_s=time.monotonic())

    async def run(self, body: Message) -> Message:
        """Runs a cell; its events go to `on_message`; the reply is the save's outcome. No limit of time."""
        self._kills_before = self._guard.kills()
        return await self._request("run", body, None)

    async def resume(self, execution_id: str) -> Message:
        """As `run`, of the cell that it has been running since an earlier daemon's life."""
        return await self._request("resume", {"execution_id": execution_id}, None)

    async def send_event(self, kind: str, body: Message) -> None:
        """Tells the worker something, such as the answer to its input request."""
        if not self.lost.done():
            await self._link.send_event(kind, body)

    def interrupt(self) -> None:
        """KeyboardInterrupt in the running cell."""
        self._reaper.signal(self.facts.pid, signal.SIGINT)

    def kill(self) -> None:
        """Ends the worker at once; what it has not committed is lost."""
        self._reaper.signal(self.facts.pid, signal.SIGKILL)

    @property
    def ending(self) -> bool:
        """It was told to end, or has ended: nobody may begin to use it."""
        return self._ending is not None or self.lost.done()

    async def end(self) -> bool:
        """Asks the worker to exit, kills it if it does not within `SHUTDOWN_TIMEOUT_S`; True when it is gone.

        False if it is not gone `KILLED_WAIT_S` later, as a process that hangs in a driver.
        """
        if self._ending is None:
            self.facts.stage = Stage.GONE
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)
        return await self._gone()

    async def _end(self) -> None:
        try:
            await self._request("shutdown", {}, SHUTDOWN_TIMEOUT_S)
        except LooseLeafError as error:
            log.debug("worker_shutdown_unanswered", reason=error.reason, worker=self.facts.worker_id)
        # On this a worker exits; one that does not is killed.
        self._link.close()

    async def discard(self) -> bool:
        """As `end`, but kills the worker at once."""
        self.kill()
        return await self._gone()

    async def _gone(self) -> bool:
        await asyncio.wait({self.lost}, timeout=KILLED_WAIT_S)
        if not self.lost.done():
            log.error("killed_worker_did_not_end", worker=self.facts.worker_id, pid=self.facts.pid)
        return self.lost.done()
