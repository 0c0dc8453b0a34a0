"""Workers by script; the end of a process's group with real processes in the place of a zygote's forks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from daemon_fakes import SESSION, ScriptedWorker, manifest_of, region, until, within

from looseleaf.errors import InvalidArgument, Timeout, Unavailable
from looseleaf.ids import Epoch, new_worker_id
from looseleaf.services.worker_daemon import worker_process
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.memory_guard import MemoryGuard
from looseleaf.services.worker_daemon.reaper import Reaper
from looseleaf.services.worker_daemon.state_requests import StateOwner
from looseleaf.services.worker_daemon.worker_process import WorkerLimits, WorkerProcess
from looseleaf.subreaper import become_subreaper

LIMITS = WorkerLimits(5.0, 5.0)
# As a worker does: a session of its own, hello, an answer to shutdown. Its cell starts a process, which keeps the
# connection open, and leaves it.
WORKER = """
import os, socket, subprocess, sys
from looseleaf.protocol.channel import Channel
fd = int(sys.argv[1])
channel = Channel(socket.socket(fileno=fd))
channel.send({"t": "hello"})
while True:
    message, _ = channel.recv()
    if message["t"] == "cell":
        channel.send({"t": "output", "left": subprocess.Popen(["sleep", "1000"], pass_fds=[fd]).pid})
    elif message["t"] == "shutdown":
        channel.send({"t": "ok", "id": message["id"]})
        os._exit(0)
"""


async def fork(parts: Any) -> tuple[WorkerProcess, ScriptedWorker]:
    requests = parts.requests(StateOwner(SESSION, Epoch(1)))
    worker = await WorkerProcess.fork(new_worker_id(), parts.forker, {}, requests, parts.reaper, LIMITS)
    return worker, parts.forker.workers[-1]


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_fork_that_fails_leaves_no_fd(parts: Any) -> None:
    await (await fork(parts))[0].end()
    before = open_fds()
    parts.forker.errors = [Unavailable("FORK_FAILED", "no memory"), OSError("too many")]
    for error in (Unavailable, OSError):
        with pytest.raises(error):
            await fork(parts)
    assert open_fds() == before


async def test_worker_that_ended_leaves_no_fd(parts: Any) -> None:
    before = open_fds()
    for end in ("end", "discard"):
        worker, _far = await fork(parts)
        await getattr(worker, end)()
    assert open_fds() == before


async def test_fork_of_a_silent_worker_is_given_up_and_killed(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "HELLO_TIMEOUT_S", 0.05)
    parts.script.hello = False
    with pytest.raises(Unavailable, match="WORKER_LOST.*nothing was run"):
        await fork(parts)
    assert parts.forker.workers[0].signals == [signal.SIGKILL]


async def test_worker_that_ends_before_its_hello_is_no_worker(parts: Any) -> None:
    parts.script.hello = False
    forking = asyncio.create_task(fork(parts))
    await until(lambda: bool(parts.forker.workers))
    parts.forker.workers[0].die(-11)
    with pytest.raises(Unavailable, match="WORKER_LOST.*SIGSEGV.*nothing was run"):
        await within(forking)


async def test_request_of_a_worker_that_dies_says_how(parts: Any) -> None:
    async def die(far: ScriptedWorker, _request: Any) -> Any:
        far.die(-11)
        await asyncio.Event().wait()

    parts.script.prepare = die
    worker, _far = await fork(parts)
    with pytest.raises(Unavailable, match=r"WORKER_LOST.*SIGSEGV \(a crash in native code\)"):
        await within(worker.prepare({"version": 1}))
    with pytest.raises(Unavailable, match="WORKER_LOST"):
        await worker.attach((0,), "none", False)


async def test_worker_whose_own_connection_is_gone_is_ended_and_nobody_waits_for_it(parts: Any) -> None:
    async def broken(_far: ScriptedWorker, _request: Any) -> Any:
        raise Unavailable("PEER_CLOSED", "the daemon that it knows is gone")

    parts.script.prepare = broken
    worker, far = await fork(parts)
    with pytest.raises(Unavailable, match="WORKER_LOST"):
        await within(worker.prepare({"version": 1}))
    assert far.signals == [signal.SIGKILL]


@pytest.mark.parametrize("step", ["prepare", "run"])
@pytest.mark.parametrize("when", ["before", "during"])
async def test_memory_is_the_cause_of_a_kill_only_if_the_counter_rose_since_the_step_began(
    parts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, step: str, when: str
) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 2\n")
    monkeypatch.setattr(MemoryGuard, "find", lambda: MemoryGuard(counter))

    async def killed(far: ScriptedWorker, _request: Any) -> Any:
        if when == "during":
            counter.write_text("oom_kill 4\n")
        far.die(-9)
        await asyncio.Event().wait()

    setattr(parts.script, step, killed)
    worker, _far = await fork(parts)
    # Another worker of the host was killed in the meantime.
    counter.write_text("oom_kill 3\n")
    with pytest.raises(Unavailable) as caught:
        await within(getattr(worker, step)({"version": 1}))
    assert ("ran out of memory" in str(caught.value)) is (when == "during")


async def test_last_words_of_a_dying_worker_are_heard(parts: Any) -> None:
    worker, far = await fork(parts)
    heard: list[str] = []
    worker.on_message = lambda message: heard.append(message["t"])
    for number in range(100):
        await far.link.send_event(f"word-{number}", {})
    far.die(-9)
    await within(worker.lost)
    assert len(heard) == 100


async def test_fault_in_a_listener_ends_the_worker_and_is_not_hidden(parts: Any) -> None:
    worker, far = await fork(parts)

    def fail(_message: Any) -> None:
        raise ZeroDivisionError("planted")

    worker.on_message = fail
    await far.link.send_event("output", {})
    await within(worker.lost)
    with pytest.raises(Unavailable, match="WORKER_LOST"):
        await worker.run({})


async def test_worker_that_breaks_the_protocol_is_ended(parts: Any) -> None:
    worker, far = await fork(parts)
    far.link.channel._sock.send(b"\xff\xff\xff\xff")
    await within(worker.lost)
    assert far.pid not in parts.reaper.workers


async def test_worker_that_does_not_exit_is_killed(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "SHUTDOWN_TIMEOUT_S", 0.05)
    monkeypatch.setattr(worker_process, "EXIT_WAIT_S", 0.05)
    worker, far = await fork(parts)

    async def hang(_message: Any, _fds: list[int]) -> Any:
        await asyncio.Event().wait()

    far.link.handlers["shutdown"] = hang
    far.die = lambda code: type(far).die(far, code) if code == -9 else None  # type: ignore[method-assign]
    assert await within(worker.end())
    assert "SIGKILL" in worker.lost.result()


async def test_killed_worker_that_stays_is_reported_as_not_gone(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "KILLED_WAIT_S", 0.05)
    worker, far = await fork(parts)
    die, far.die = far.die, lambda code: None  # type: ignore[method-assign]
    assert not await within(worker.discard())
    die(-9)
    assert await within(worker.discard())


async def test_prepare_without_an_answer_times_out(parts: Any) -> None:
    async def hang(_far: ScriptedWorker, _request: Any) -> Any:
        await asyncio.Event().wait()

    parts.script.prepare = hang
    worker, _far = await fork(parts)
    worker.limits = WorkerLimits(0.05, 5.0)
    with pytest.raises(Timeout, match="REQUEST_TIMEOUT"):
        await worker.prepare({"version": 1})


async def test_ending_worker_shows_it_in_its_stage(parts: Any) -> None:
    worker, _far = await fork(parts)
    ending = asyncio.create_task(worker.end())
    await asyncio.sleep(0)
    assert worker.ending and worker.facts.stage is Stage.GONE and not worker.facts.evictable
    assert await within(ending)


async def test_lost_comes_after_the_commit_under_way(parts: Any) -> None:
    worker, far = await fork(parts)
    key, _data = region(1)
    parts.store.may_commit.clear()
    body = {"manifest": manifest_of([key]), "parent": 0, "epoch": 1, "execution_id": "x-1"}
    asking = asyncio.create_task(far.link.request("commit", body))
    await until(lambda: bool(worker.requests._commits))
    far.die(-9)
    await asyncio.gather(asking, return_exceptions=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not worker.lost.done()
    parts.store.may_commit.set()
    await within(worker.lost)
    assert worker.requests.owner.committed == ("x-1", 1) and parts.staged == [(SESSION, 1, [])]


async def test_error_reply_of_a_worker_is_raised_as_it_is(parts: Any) -> None:
    async def refuse(_far: ScriptedWorker, _request: Any) -> Any:
        raise InvalidArgument("NO_GOOD", "refused")

    parts.script.prepare = refuse
    worker, _far = await fork(parts)
    with pytest.raises(InvalidArgument, match="NO_GOOD"):
        await worker.prepare({"version": 1})
    assert not worker.lost.done()


# -- real processes --------------------------------------------------------------------------------------


class ProcessForker:
    """Starts a process for each fork."""

    async def fork(self, title: str, env: dict[str, str], fds: list[int]) -> int:
        process = subprocess.Popen(  # noqa: ASYNC220 - as the daemon starts its zygote
            [sys.executable, "-c", WORKER, str(fds[0])], pass_fds=[fds[0]], start_new_session=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        process.returncode = 0  # the reaper takes the exit status
        return process.pid


@pytest.fixture
async def reaper() -> AsyncIterator[Reaper]:
    become_subreaper()
    reaper = Reaper()
    reaper.start()
    yield reaper
    reaper.stop()


async def real_worker(parts: Any, reaper: Reaper) -> tuple[WorkerProcess, int]:
    """A worker and an fd that becomes readable when the process that its cell left has ended."""
    left: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    requests = parts.requests(StateOwner(SESSION, Epoch(1)))
    worker = await WorkerProcess.fork(new_worker_id(), ProcessForker(), {}, requests, reaper, LIMITS)
    worker.on_message = lambda message: left.set_result(message["left"])
    await worker.send_event("cell", {})
    return worker, os.pidfd_open(await within(left))


async def ended(pidfd: int) -> None:
    """Waits until the process has ended."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_reader(pidfd, done.set)
    try:
        await within(done.wait())
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


@pytest.mark.parametrize("how", ["kill", "end"])
async def test_worker_takes_the_processes_of_its_cells_with_it(parts: Any, reaper: Reaper, how: str) -> None:
    worker, left = await real_worker(parts, reaper)
    if how == "kill":
        worker.kill()
    else:
        await within(worker.end())
    lost = await within(worker.lost)
    assert lost.startswith({"kill": "was killed by SIGKILL", "end": "exited with code 0"}[how])
    assert how == "end" or "it had used up to" in lost
    await ended(left)
