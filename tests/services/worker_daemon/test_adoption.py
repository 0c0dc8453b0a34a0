"""The journal of running cells, and the door by which their workers come back; this process is the worker."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from daemon_fakes import until, within

from looseleaf.errors import Corrupt, Unavailable
from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId, Version, WorkerId
from looseleaf.protocol.aio import AsyncChannel
from looseleaf.rpc import store_client
from looseleaf.services.worker_daemon import adoption as adoption_module
from looseleaf.services.worker_daemon import gpus
from looseleaf.services.worker_daemon.adopted_process import AdoptedProcess
from looseleaf.services.worker_daemon.adoption import Adoption, Found, HeadOf, Lost
from looseleaf.services.worker_daemon.core.adoption import OpenRun, SessionHead
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.process_stat import process_ticks
from looseleaf.services.worker_daemon.run_journal import RunJournal
from looseleaf.worker import lasting_link


def new_journal(folder: Path) -> RunJournal:
    return RunJournal(folder / "running", str(folder / "w.sock"))


def run_of(journal: RunJournal, pid: int, number: int = 1) -> OpenRun:
    lease = HeldLease(
        LeaseId(f"l-{number}"), SessionId("s-1"), Epoch(1), ExecutionId(f"x-{number}"), (0,), None, 3, 10.0, 1.0, 11.0,
        True,
    )  # fmt: skip
    return OpenRun(
        lease, Version(5), 7, 0.0, 20.0, 1.0, "START_PATH_COLD", WorkerId(f"w-{number}"), pid,
        process_ticks(pid) or 0, journal.boot_id, journal.socket_path, lives=1,
    )  # fmt: skip


async def head(_session: SessionId) -> SessionHead:
    return SessionHead(Epoch(1), Version(5), ExecutionId("x-0"))


@pytest.fixture
def last(tmp_path: Path) -> RunJournal:
    """That of a daemon which was lost."""
    journal = new_journal(tmp_path)
    journal.lock()
    journal.unlock()
    return journal


def started(*command: str, **how: Any) -> subprocess.Popen[str]:
    """A process with a group of its own."""
    return subprocess.Popen(command, start_new_session=True, text=True, **how)


async def settled(adoption: Adoption, head_of: HeadOf) -> list[Found]:
    """Those that may go on; others are ended, but for this process."""
    found: list[Found] = []

    async def take(run: OpenRun, one: Found | Lost) -> None:
        if isinstance(one, Found):
            found.append(one)
        elif run.pid != os.getpid():
            await adoption.give_up(run, one, lambda: None)

    await within(adoption.settle(head_of, take))
    return found


async def next_adoption(last: RunJournal, tmp_path: Path) -> Adoption:
    adoption = Adoption(new_journal(tmp_path))
    adoption.start()
    return adoption


def test_journal_gives_back_what_was_written_and_drops_what_cannot_be_read(tmp_path: Path) -> None:
    journal = new_journal(tmp_path)
    journal.lock()
    run = run_of(journal, os.getpid())
    journal.open(run)
    journal.open(replace(run, lives=2))
    bad = {"a": "{", "b": "[]", "c": '{"lease": {}}', "d": "{}", "e": "null"}
    for name, text in bad.items():
        (tmp_path / "running" / f"{name}.json").write_text(text)
    assert journal.runs() == [replace(run, lives=2)]
    assert sorted(path.name for path in (tmp_path / "running").iterdir()) == ["lock", "x-1.json"]
    journal.close(run.lease.execution_id)
    journal.close(run.lease.execution_id)
    assert journal.runs() == []
    journal.unlock()


def test_journal_tells_which_cells_had_not_begun_and_never_of_one_that_may_have(tmp_path: Path) -> None:
    journal, boots = new_journal(tmp_path), tmp_path / "running"
    journal.lock()
    one, two, three, four, five = (ExecutionId(f"x-{number}") for number in range(1, 6))
    for execution_id in (one, two, three, four, five):
        journal.begin(execution_id)
    # Handed over, with a journal entry and without; ended; of another boot.
    journal.hand_over(two)
    journal.open(run_of(journal, os.getpid(), 2))
    journal.hand_over(three)
    journal.close(four)
    (boots / "x-5.unstarted").write_text("another boot")
    (boots / "x-6.unstarted").write_bytes(b"\xff")
    (boots / "x-7.unstarted").mkdir()
    journal.unlock()
    later = new_journal(tmp_path)
    later.lock()
    assert later.unstarted == {one}
    assert [run.lease.execution_id for run in later.runs()] == [two]
    later.unlock()
    last = new_journal(tmp_path)
    last.lock()
    assert last.unstarted == frozenset(), "of the last daemon only"
    last.unlock()


async def test_journal_has_one_daemon(last: RunJournal, tmp_path: Path) -> None:
    first = await next_adoption(last, tmp_path)
    with pytest.raises(Unavailable, match="HOST_TAKEN"):
        await next_adoption(last, tmp_path)
    await first.stop()
    await (await next_adoption(last, tmp_path)).stop()


async def test_worker_that_comes_is_found_and_let_in(last: RunJournal, tmp_path: Path) -> None:
    last.open(run_of(last, os.getpid()))
    adoption = await next_adoption(last, tmp_path)
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(last.socket_path)
    channel = AsyncChannel(sock)
    await channel.send({"t": "hello", "id": 3, "execution_id": "x-1", "started_s": 4.5})
    (found,) = await settled(adoption, head)
    assert (found.run.lease.execution_id, found.started_s) == ("x-1", 4.5)
    await found.welcome(2)
    reply, fds = await within(channel.recv())
    assert reply == {"t": "ok", "id": 3} and len(fds) == 1
    os.close(fds[0])
    channel.close()
    found.channel.close()
    await adoption.stop()
    assert os.listdir(tmp_path) == ["running"]


def test_worker_waits_to_be_let_in_as_long_as_its_daemon_may_take_to_know_whether() -> None:
    store_s = store_client.CALL_TIMEOUT_S + store_client.RESTART_PATIENCE_S
    assert gpus.PROBE_TIMEOUT_S + 2 * store_s < lasting_link.WELCOME_S


async def test_stranger_and_wrong_words_are_not_let_in(last: RunJournal, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(adoption_module, "ADOPT_S", 0.2)
    sleeper = started("sleep", "1000")
    last.open(run_of(last, sleeper.pid))
    adoption = await next_adoption(last, tmp_path)
    # This process is not the worker: whatever it says, it is not heard.
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(last.socket_path)
    channel = AsyncChannel(sock)
    await channel.send({"t": "hello", "id": 3, "execution_id": "x-1", "started_s": None})
    assert await settled(adoption, head) == []
    # The worker, which did not come in time, has ended; nobody runs its cell twice.
    assert sleeper.wait(20) == -signal.SIGKILL and new_journal(tmp_path).runs() == []
    channel.close()
    await adoption.stop()


@pytest.mark.parametrize("started_s", ["x", float("nan"), float("inf"), -1.0, 1e12])
async def test_hello_that_no_worker_of_ours_says_is_not_heard_and_harms_no_other(
    last: RunJournal, tmp_path: Path, monkeypatch: Any, started_s: Any
) -> None:
    monkeypatch.setattr(adoption_module, "ADOPT_S", 0.1)
    last.open(run_of(last, os.getpid()))
    adoption = await next_adoption(last, tmp_path)
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(last.socket_path)
    channel = AsyncChannel(sock)
    await channel.send({"t": "hello", "id": 3, "execution_id": "x-1", "started_s": started_s})
    assert await settled(adoption, head) == []
    channel.close()
    await adoption.stop()


async def test_session_that_cannot_be_read_costs_its_own_worker_only(last: RunJournal, tmp_path: Path) -> None:
    sleeper = started("sleep", "1000")
    last.open(run_of(last, sleeper.pid))

    async def damaged(_session: SessionId) -> SessionHead:
        raise Corrupt("MANIFEST_DAMAGED", "it cannot be read")

    adoption = await next_adoption(last, tmp_path)
    assert await settled(adoption, damaged) == [] and sleeper.wait(20) == -signal.SIGKILL
    await adoption.stop()


async def test_daemon_whose_workers_cannot_come_back_ends_them_at_once(last: RunJournal, tmp_path: Path) -> None:
    sleeper = started("sleep", "1000")
    last.open(run_of(last, sleeper.pid))
    adoption = Adoption(RunJournal(tmp_path / "running", ""))
    adoption.start()
    assert await settled(adoption, head) == [] and sleeper.wait(20) == -signal.SIGKILL
    await adoption.stop()


async def test_worker_whose_session_went_on_without_it_is_ended(last: RunJournal, tmp_path: Path) -> None:
    sleeper = started("sleep", "1000")
    last.open(run_of(last, sleeper.pid))

    async def fenced(_session: SessionId) -> SessionHead:
        return SessionHead(Epoch(2), Version(5), ExecutionId("x-0"))

    adoption = await next_adoption(last, tmp_path)
    assert await settled(adoption, fenced) == []
    assert sleeper.wait(20) == -signal.SIGKILL
    await adoption.stop()


async def test_worker_that_ended_while_no_daemon_was_there_is_forgotten(last: RunJournal, tmp_path: Path) -> None:
    ended = started("true")
    ended.wait()
    last.open(replace(run_of(last, os.getpid()), pid=ended.pid))
    # Another process has its number since.
    last.open(replace(run_of(last, os.getpid(), 2), pid_ticks=1))
    adoption = await next_adoption(last, tmp_path)
    assert await settled(adoption, head) == [] and new_journal(tmp_path).runs() == []
    await adoption.stop()


@pytest.mark.parametrize("newer", [1, 2])
async def test_worker_with_two_entries_is_awaited_for_its_last_cell(
    last: RunJournal, tmp_path: Path, newer: int
) -> None:
    for number in (1, 2):
        last.open(replace(run_of(last, os.getpid(), number), arrived_s=7.0 if number == newer else 1.0))
    adoption = await next_adoption(last, tmp_path)
    assert [run.lease.execution_id for run in adoption.awaited] == [f"x-{newer}"]
    assert [run.lease.execution_id for run in new_journal(tmp_path).runs()] == [f"x-{newer}"]
    await adoption.stop()


@pytest.mark.parametrize("known", [True, False])
async def test_process_of_another_parent_is_signalled_and_its_end_is_told(known: bool) -> None:
    # A group of its own, with a second process, which must not outlive the first.
    leader = started("sh", "-c", "sleep 1000 & echo $!; wait", stdout=subprocess.PIPE)
    assert leader.stdout is not None
    child = int(leader.stdout.readline())
    process = AdoptedProcess(leader.pid)
    exited = process.exit_status(leader.pid)
    if known:
        process.signal(leader.pid, signal.SIGKILL)
    else:
        leader.kill()
    assert await within(exited) == (-signal.SIGKILL if known else None)
    await until(lambda: process_ticks(child) is None)
    process.signal(leader.pid, signal.SIGKILL)
    leader.wait()
    leader.stdout.close()
    with pytest.raises(ProcessLookupError):
        AdoptedProcess(leader.pid)
    await asyncio.sleep(0)
