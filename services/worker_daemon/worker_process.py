"""One forked worker as the daemon sees it: its channel, its log, its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from looseleaf.errors import LooseLeafError, Unavailable
from looseleaf.ids import WorkerId
from looseleaf.protocol.aio import AsyncChannel
from looseleaf.protocol.aio_rpc import AsyncLink
from looseleaf.services.worker_daemon.core.worker_life import Stage, WorkerFacts
from looseleaf.services.worker_daemon.log_pipe import LogPipe
from looseleaf.services.worker_daemon.reaper import Reaper, describe_exit
from looseleaf.services.worker_daemon.state_requests import StateRequests
from looseleaf.services.worker_daemon.zygote import Zygote

log = structlog.get_logger()

Message = dict[str, Any]

HELLO_TIMEOUT_S = 10.0
PREPARE_TIMEOUT_S = 300.0
ATTACH_TIMEOUT_S = 60.0
SHUTDOWN_TIMEOUT_S = 3.0
EXIT_STATUS_WAIT_S = 2.0


class WorkerProcess:
    """A worker and the daemon's end of everything that connects them.

    `on_message` gets the worker's events while a cell runs.
    """

    def __init__(self, facts: WorkerFacts, requests: StateRequests, reaper: Reaper) -> None:
        self.facts = facts
        self.requests = requests
        # One prepare, attach or run at a time.
        self.lock = asyncio.Lock()
        self.on_message: Callable[[Message], None] | None = None
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reaper = reaper
        self._hello = asyncio.Event()
        self._link: AsyncLink | None = None
        self._log: LogPipe | None = None
        self._serve: asyncio.Task[None] | None = None

    @classmethod
    async def fork(
        cls, worker_id: WorkerId, zygote: Zygote, env: Mapping[str, str], requests: StateRequests, reaper: Reaper
    ) -> WorkerProcess:
        """Forks a worker and waits for its hello. Raises as `Zygote.fork`, or Unavailable `WORKER_LOST`."""
        ours, theirs = socket.socketpair()
        log_reader, log_writer = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pid = await zygote.fork(
                f"ll-worker:{worker_id}", dict(env), [theirs.fileno(), null, log_writer, log_writer]
            )
        except BaseException:
            ours.close()
            os.close(log_reader)
            raise
        finally:
            theirs.close()
            os.close(null)
            os.close(log_writer)
        worker = cls(WorkerFacts(worker_id, pid), requests, reaper)
        worker._connect(ours, log_reader)
        try:
            await asyncio.wait_for(worker._hello.wait(), HELLO_TIMEOUT_S)
        except TimeoutError:
            worker.kill()
            raise Unavailable(
                "WORKER_LOST",
                f"a new worker did not answer in {HELLO_TIMEOUT_S:.0f} s; nothing was run, run the cell again",
            ) from None
        return worker

    def _connect(self, sock: socket.socket, log_fd: int) -> None:
        self._link = AsyncLink(AsyncChannel(sock), handlers=self.requests.handlers(), on_event=self._on_event)
        self._log = LogPipe(log_fd, self.facts.worker_id)
        self._serve = asyncio.create_task(self._serve_until_lost())

    def _on_event(self, message: Message, _fds: list[int]) -> None:
        if message.get("t") == "hello":
            self._hello.set()
        elif self.on_message is not None:
            self.on_message(message)

    async def _serve_until_lost(self) -> None:
        assert self._link is not None
        await self._link.serve()
        if self._log is not None:
            self._log.drain()
        status = self._reaper.exit_status(self.facts.pid)
        try:
            how = describe_exit(await asyncio.wait_for(asyncio.shield(status), EXIT_STATUS_WAIT_S))
        except TimeoutError:
            self.kill()
            how = describe_exit(await status)
        self._end_group()
        self.facts.stage = Stage.GONE
        self.requests.close()
        log.info(
            "worker_ended", worker=self.facts.worker_id, pid=self.facts.pid, how=how, session=self.facts.session_id
        )
        self._hello.set()
        if not self.lost.done():
            self.lost.set_result(how)

    def _end_group(self) -> None:
        """Ends the processes that cells left behind: they may hold the GPU, and map slots that may be reused now."""
        try:
            os.killpg(self.facts.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # the worker was alone in its group
        except PermissionError as error:
            log.warning("worker_group_not_ended", worker=self.facts.worker_id, pid=self.facts.pid, text=str(error))

    async def _request(self, kind: str, body: Message, timeout_s: float | None) -> Message:
        """The worker's reply. Raises its error, or Unavailable `WORKER_LOST` if it ended."""
        if self._link is None or self.lost.done():
            raise self._lost_error()
        try:
            reply, _fds = await self._link.request(kind, body, timeout_s=timeout_s)
        except Unavailable as error:
            if error.reason != "PEER_CLOSED":
                raise
            await self.lost
            raise self._lost_error() from error
        return reply

    def _lost_error(self) -> Unavailable:
        how = self.lost.result() if self.lost.done() else "ended"
        return Unavailable("WORKER_LOST", f"the worker process of this cell {how}", how=how)

    async def prepare(self, body: Message) -> Message:
        """Imports and restores what `body` names, up to host_ready; executes nothing."""
        reply = await self._request("prepare", body, PREPARE_TIMEOUT_S)
        self.facts.version = body["version"]
        if self.facts.stage in (Stage.FORKED, Stage.IMPORTED, Stage.HOST_READY, Stage.COMPLETED):
            self.facts.stage = Stage.HOST_READY
        return reply

    async def attach(self, gpus: tuple[int, ...], device: str, delays: bool) -> None:
        """Opens the device and moves payloads to it."""
        self.facts.stage = Stage.CONTEXT_READY
        await self._request("attach", {"gpus": list(gpus), "device": device, "delays": delays}, ATTACH_TIMEOUT_S)
        self.facts.gpus = gpus
        self.facts.stage = Stage.DEVICE_READY

    async def run(self, body: Message) -> Message:
        """Runs a cell; its events go to `on_message`; the reply is the save's outcome. No limit of time."""
        return await self._request("run", body, None)

    async def send_event(self, kind: str, body: Message) -> None:
        """Tells the worker something, such as the answer to its input request."""
        if self._link is not None and not self.lost.done():
            await self._link.send_event(kind, body)

    def interrupt(self) -> None:
        """KeyboardInterrupt in the running cell."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Ends the worker at once; what it has not committed is lost."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if not self.lost.done():
            try:
                os.kill(self.facts.pid, number)
            except ProcessLookupError:
                log.debug("worker_already_gone", pid=self.facts.pid)

    async def end(self) -> None:
        """Asks the worker to exit, kills it if it does not within `SHUTDOWN_TIMEOUT_S`."""
        if self.lost.done():
            return
        try:
            await self._request("shutdown", {}, SHUTDOWN_TIMEOUT_S)
        except LooseLeafError as error:
            log.debug("worker_shutdown_unanswered", reason=error.reason, worker=self.facts.worker_id)
        if self._link is not None:
            self._link.close()
        try:
            await asyncio.wait_for(asyncio.shield(self.lost), SHUTDOWN_TIMEOUT_S)
        except TimeoutError:
            self.kill()
            await self.lost
