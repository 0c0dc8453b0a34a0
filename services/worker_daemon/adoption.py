"""Finds the workers of this host's last daemon that still run a cell, and hears those that come back (design §5)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from looseleaf.errors import InvalidArgument, LooseLeafError, Timeout, Unavailable
from looseleaf.ids import SessionId
from looseleaf.protocol import fields
from looseleaf.protocol.aio import AsyncChannel
from looseleaf.protocol.frames import Message, close_fds
from looseleaf.protocol.rpc import OK, build_message
from looseleaf.services.worker_daemon.adopted_process import AdoptedProcess
from looseleaf.services.worker_daemon.core.adoption import OpenRun, SessionHead, is_alive, refusal
from looseleaf.services.worker_daemon.limits import WorkerUser
from looseleaf.services.worker_daemon.peer_process import peer_pid
from looseleaf.services.worker_daemon.run_journal import RunJournal
from looseleaf.services.worker_daemon.unix_listener import accept_all, listening

log = structlog.get_logger()

# A worker looks for a daemon ten times a second, unless its cell keeps all its threads from running for so long.
ADOPT_S: Final = 30.0
HELLO_S: Final = 10.0
ENDED_S: Final = 10.0
RETRY_S: Final = 0.5
_BACKLOG: Final = 64

HeadOf = Callable[[SessionId], Awaitable[SessionHead | None]]


@dataclass(eq=False)
class Waiting:
    """A worker that may be let in.

    `came`: the connection that it came by, and its first words. `refused`: why it is not to, as one word.
    """

    run: OpenRun
    process: AdoptedProcess
    came: asyncio.Future[tuple[AsyncChannel, Message]]
    refused: asyncio.Future[str]


@dataclass(frozen=True)
class Found:
    """A worker that is to go on under this daemon; it waits for `welcome`. `started_s`: of its cell, None: not yet."""

    run: OpenRun
    process: AdoptedProcess
    channel: AsyncChannel
    request_id: int
    started_s: float | None

    async def welcome(self, log_fd: int) -> None:
        """Lets it go on; its own log goes to `log_fd`, which stays the caller's. Raises Unavailable `PEER_CLOSED`."""
        await self.channel.send(build_message(OK, self.request_id, {}), [log_fd])


@dataclass(frozen=True)
class Lost:
    """A worker that may not go on: why, as one word for the log."""

    process: AdoptedProcess
    why: str


class Adoption:
    """From a daemon's start until it is known which workers it has.

    Who comes is known by its pid, as the system tells it, and by the journal; nothing is believed of its words but when
    its cell began. `user`: whom workers run as, if not this process's own.
    """

    def __init__(self, journal: RunJournal, user: WorkerUser | None = None) -> None:
        self._journal = journal
        self._user = user
        self._waiting: dict[int, Waiting] = {}
        self._limit_s = 0.0
        self._sock: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Takes the journal, and listens if a worker of the last daemon is there.

        Raises Unavailable `HOST_TAKEN` or `SOCKET_TAKEN` if another daemon lives.
        """
        self._journal.lock()
        for run in self._journal.runs():
            waiting, other = self._look(run), self._waiting.get(run.pid)
            if waiting is None:
                self._forget(run)
            elif other is None:
                self._waiting[run.pid] = waiting
            else:
                # A worker runs one cell at a time: the entry of an earlier one could not be removed.
                older, newer = sorted((other, waiting), key=lambda one: one.run.arrived_s)
                older.process.close()
                self._forget(older.run)
                self._waiting[run.pid] = newer
        if self._waiting and self._journal.socket_path:
            self._limit_s = time.monotonic() + ADOPT_S
            self._listen()

    def _forget(self, run: OpenRun) -> None:
        log.info("worker_not_adopted", worker=run.worker_id, execution=run.lease.execution_id, why="ENDED")
        self._journal.close(run.lease.execution_id)

    def _look(self, run: OpenRun) -> Waiting | None:
        try:
            # First, so that what is looked at cannot be another process by the time that it is signalled.
            process = AdoptedProcess(run.pid)
        except ProcessLookupError:
            return None
        if not is_alive(run, self._journal.boot_id, process.ticks):
            process.close()
            return None
        loop = asyncio.get_running_loop()
        return Waiting(run, process, loop.create_future(), loop.create_future())

    def _listen(self) -> None:
        self._sock = listening(self._journal.socket_path, _BACKLOG)
        if self._user is not None:
            os.chown(self._journal.socket_path, self._user.uid, self._user.gid)
        self._start(accept_all(self._sock, self._take))

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self, connection: socket.socket) -> None:
        pid = peer_pid(connection)
        waiting = self._waiting.get(pid)
        if waiting is None:
            log.warning("stranger_refused", pid=pid)
            connection.close()
            return
        self._start(self._hear(waiting, AsyncChannel(connection)))

    async def _hear(self, waiting: Waiting, channel: AsyncChannel) -> None:
        try:
            message, fds = await asyncio.wait_for(channel.recv(), HELLO_S)
            close_fds(fds)
            known = message["t"] == "hello" and message.get("execution_id") == waiting.run.lease.execution_id
            if not known or waiting.came.done():
                raise InvalidArgument("FIELD_MALFORMED", "these are not the first words of a worker that is awaited")
            fields.integer(message, "id", minimum=1)
            began_s = message.get("started_s")
            if began_s is not None and not 0 <= fields.number(message, "started_s") <= time.monotonic():
                raise InvalidArgument("FIELD_MALFORMED", "its cell began at no such time")
        except (LooseLeafError, TimeoutError) as error:
            log.warning("worker_not_heard", worker=waiting.run.worker_id, error=str(error))
            channel.close()
            return
        waiting.came.set_result((channel, message))

    @property
    def awaited(self) -> list[OpenRun]:
        """Cells whose workers were there at the start."""
        return [waiting.run for waiting in self._waiting.values()]

    def refuse(self, run: OpenRun, why: str) -> None:
        """Its worker is not to come back any more; nothing changes once it has been found."""
        refused = self._waiting[run.pid].refused
        if not refused.done():
            refused.set_result(why)

    async def settle(
        self, head_of: HeadOf, take: Callable[[OpenRun, Found | Lost], Awaitable[None]]
    ) -> None:
        """Gives `take` each awaited worker as soon as it may go on here, or it is known that it may not.

        Returns when `take` has of all; where it raises for one, the others are left to the next daemon.
        """

        async def one(waiting: Waiting) -> None:
            await take(waiting.run, await self._settle(waiting, head_of))

        try:
            async with asyncio.TaskGroup() as group:
                for each in self._waiting.values():
                    group.create_task(one(each))
        finally:
            self._stop_listening()

    async def _settle(self, waiting: Waiting, head_of: HeadOf) -> Found | Lost:
        why = await self._why_not(waiting, head_of)
        if not why:
            channel, hello = waiting.came.result()
            return Found(waiting.run, waiting.process, channel, hello["id"], hello.get("started_s"))
        if waiting.came.done():
            waiting.came.result()[0].close()
        return Lost(waiting.process, why)

    async def _why_not(self, waiting: Waiting, head_of: HeadOf) -> str:
        """Why it may not go on, as one word; empty once it has come and may."""
        if waiting.refused.done():
            return waiting.refused.result()
        exited = waiting.process.exit_status(waiting.run.pid)
        ends: set[asyncio.Future[Any]] = {waiting.refused, exited}
        refusing = asyncio.ensure_future(self._refusal(waiting.run, head_of))
        try:
            await asyncio.wait({refusing, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if refusing.done():
                if why := refusing.result():
                    return why
                limit_s = max(0.0, self._limit_s - time.monotonic())
                await asyncio.wait({waiting.came, *ends}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            refusing.cancel()
        if waiting.refused.done():
            return waiting.refused.result()
        if exited.done():
            return "ENDED"
        return "" if waiting.came.done() else "SILENT"

    async def _refusal(self, run: OpenRun, head_of: HeadOf) -> str:
        """As `refusal`. One session that cannot be read must not keep the others' host from starting."""
        while True:
            try:
                return refusal(run, await head_of(run.lease.session_id), self._journal.socket_path)
            except (Unavailable, Timeout) as error:
                if time.monotonic() >= self._limit_s:
                    return error.reason
            except LooseLeafError as error:
                return error.reason
            await asyncio.sleep(RETRY_S)

    async def give_up(self, run: OpenRun, lost: Lost, hangs: Callable[[], None]) -> None:
        """Ends a worker that may not go on; what it has not committed is lost. Returns when it has ended.

        That may never be, where it hangs in a driver: until then its GPU is not free, and its entry stays for the next
        daemon. `hangs` is called where it takes longer than `ENDED_S`.
        """
        known = {
            "worker": run.worker_id, "session": run.lease.session_id, "execution": run.lease.execution_id,
            "pid": run.pid, "why": lost.why,
        }  # fmt: skip
        log.warning("worker_not_adopted", **known)
        lost.process.signal(run.pid, signal.SIGKILL)
        exited = lost.process.exit_status(run.pid)
        await asyncio.wait({exited}, timeout=ENDED_S)
        if not exited.done():
            log.error("worker_does_not_end", gpus=run.lease.gpus, **known)
            hangs()
            await asyncio.wait({exited})
        self._journal.close(run.lease.execution_id)

    def _stop_listening(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._sock is not None:
            self._sock.close()
            os.unlink(self._journal.socket_path)
            self._sock = None

    async def stop(self) -> None:
        """Whoever was not let in by now ends with its own limit."""
        self._stop_listening()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for waiting in self._waiting.values():
            waiting.process.close()
            if waiting.came.done():
                waiting.came.result()[0].close()
        self._journal.unlock()
