"""The end of a worker, with real processes in the place of a zygote's forks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from looseleaf.ids import new_worker_id
from looseleaf.services.worker_daemon.reaper import Reaper, become_subreaper
from looseleaf.services.worker_daemon.worker_process import WorkerProcess

LIMIT_S = 30
# As a worker does: a session of its own, hello, an answer to shutdown. Its cell starts a process and leaves it.
WORKER = """
import os, socket, subprocess, sys
from looseleaf.protocol.channel import Channel
channel = Channel(socket.socket(fileno=int(sys.argv[1])))
channel.send({"t": "hello"})
while True:
    message, _ = channel.recv()
    if message["t"] == "cell":
        channel.send({"t": "output", "left": subprocess.Popen(["sleep", "1000"]).pid})
    elif message["t"] == "shutdown":
        channel.send({"t": "ok", "id": message["id"]})
        os._exit(0)
"""


class FakeZygote:
    """Starts a process for each fork."""

    async def fork(self, title: str, env: dict[str, str], fds: list[int]) -> int:
        process = subprocess.Popen(  # noqa: ASYNC220 - as the daemon starts its zygote
            [sys.executable, "-c", WORKER, str(fds[0])], pass_fds=[fds[0]], start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        process.returncode = 0  # the reaper takes the exit status
        return process.pid


class FakeRequests:
    """The worker's pins."""

    def __init__(self) -> None:
        self.closed = False

    def handlers(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
async def reaper() -> AsyncIterator[Reaper]:
    become_subreaper()
    reaper = Reaper()
    reaper.start()
    yield reaper
    reaper.stop()


async def fork(reaper: Reaper) -> tuple[WorkerProcess, int]:
    """A worker and an fd that becomes readable when the process that its cell left has ended."""
    loop = asyncio.get_running_loop()
    left: asyncio.Future[int] = loop.create_future()
    worker: Any = WorkerProcess.fork(new_worker_id(), FakeZygote(), {}, FakeRequests(), reaper)  # type: ignore[arg-type]
    worker = await worker
    worker.on_message = lambda message: left.set_result(message["left"])
    await worker.send_event("cell", {})
    return worker, os.pidfd_open(await asyncio.wait_for(left, LIMIT_S))


async def ended(pidfd: int) -> None:
    """Waits until the process has ended."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_reader(pidfd, done.set)
    try:
        await asyncio.wait_for(done.wait(), LIMIT_S)
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


async def test_worker_killed_takes_the_processes_of_its_cells_with_it(reaper: Reaper) -> None:
    worker, left = await fork(reaper)
    os.kill(worker.facts.pid, signal.SIGKILL)
    assert "SIGKILL" in await asyncio.wait_for(worker.lost, LIMIT_S)
    await ended(left)
    assert worker.requests.closed


async def test_worker_that_exits_takes_the_processes_of_its_cells_with_it(reaper: Reaper) -> None:
    worker, left = await fork(reaper)
    await asyncio.wait_for(worker.end(), LIMIT_S)
    assert worker.lost.result() == "exited with code 0"
    await ended(left)
