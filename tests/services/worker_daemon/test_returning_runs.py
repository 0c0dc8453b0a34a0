"""Cells of the last daemon while their workers are awaited; those are processes that never come, or this one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from daemon_fakes import within

from looseleaf.errors import Conflict, Unavailable
from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId, Version, WorkerId
from looseleaf.protocol.aio import AsyncChannel
from looseleaf.services.worker_daemon import adoption as adoption_module
from looseleaf.services.worker_daemon.adopted_process import AdoptedProcess
from looseleaf.services.worker_daemon.adoption import Adoption, Found
from looseleaf.services.worker_daemon.core.adoption import OpenRun, SessionHead
from looseleaf.services.worker_daemon.core.lease_table import HeldLease, LeaseTable
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.process_stat import process_ticks
from looseleaf.services.worker_daemon.returning_runs import ReturningRuns
from looseleaf.services.worker_daemon.run_journal import RunJournal


def lease(number: int, gpu: int) -> HeldLease:
    return HeldLease(
        LeaseId(f"l-{number}"), SessionId(f"s-{number}"), Epoch(1), ExecutionId(f"x-{number}"), (gpu,), None, 3, 10.0,
        1.0, 11.0,
    )  # fmt: skip


@dataclass
class Rig:
    """A daemon of two GPUs whose last one left cells on some of them."""

    journal: RunJournal
    leases: LeaseTable = field(default_factory=lambda: LeaseTable(2))
    sleepers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    adopted: list[str] = field(default_factory=list)
    fenced: list[tuple[str, int]] = field(default_factory=list)
    changes: int = 0
    lost: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    settling: asyncio.Task[None] | None = None

    def left(self, number: int, gpu: int, pid: int = 0) -> None:
        """The last daemon had this cell on that GPU; without a pid its worker stays silent."""
        if not pid:
            self.sleepers.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))
            pid = self.sleepers[-1].pid
        journal = self.journal
        run = OpenRun(
            lease(number, gpu), Version(5), 7, 0.0, 20.0, 1.0, "START_PATH_COLD", WorkerId(f"w-{number}"), pid,
            process_ticks(pid) or 0, journal.boot_id, journal.socket_path, lives=1,
        )  # fmt: skip
        journal.open(run)

    def begin(self) -> ReturningRuns:
        self.adoption = Adoption(self.journal)
        self.adoption.start()
        refuse = self.adoption.refuse

        def refuse_and_note(run: OpenRun, why: str) -> None:
            self.refused.append(run.lease.execution_id)
            refuse(run, why)

        self.adoption.refuse = refuse_and_note  # type: ignore[method-assign]
        self.returning = ReturningRuns(self.adoption, self.leases, self._changed)
        self.returning.begin()
        return self.returning

    def _changed(self) -> None:
        self.changes += 1

    def settle(self) -> None:
        def fence(session_id: SessionId, epoch: Epoch) -> None:
            self.fenced.append((session_id, epoch))

        self.settling = asyncio.create_task(self.returning.settle(self._head, self.adopt, fence, self._lost))

    def _lost(self, run: OpenRun) -> None:
        """As once the scheduler has heard of it."""
        self.lost.append(run.lease.execution_id)
        self.leases.release(run.lease.lease_id)

    async def _head(self, _session: SessionId) -> SessionHead:
        self.looked.set()
        return SessionHead(Epoch(1), Version(5), ExecutionId("x-0"))

    async def adopt(self, found: Found) -> None:
        self.adopted.append(found.run.lease.execution_id)

    async def come(self, number: int) -> AsyncChannel:
        """This process does, as the worker of that cell."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.journal.socket_path)
        channel = AsyncChannel(sock)
        await channel.send({"t": "hello", "id": 3, "execution_id": f"x-{number}", "started_s": 4.5})
        return channel

    @property
    def held(self) -> list[str]:
        return [one.lease_id for one in self.leases.held()]


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    journal = RunJournal(tmp_path / "running", str(tmp_path / "w.sock"))
    journal.lock()
    journal.unlock()
    made = Rig(journal)
    signalled = AdoptedProcess.signal

    def signal_others(process: AdoptedProcess, pid: int, number: signal.Signals) -> None:
        if pid != os.getpid():
            signalled(process, pid, number)

    monkeypatch.setattr(AdoptedProcess, "signal", signal_others)
    yield made
    if made.settling is not None:
        made.settling.cancel()
        await asyncio.gather(made.settling, return_exceptions=True)
    await made.adoption.stop()
    for sleeper in made.sleepers:
        sleeper.kill()
        sleeper.wait()


async def test_silent_worker_keeps_its_own_gpu_until_its_session_has_a_new_owner(rig: Rig) -> None:
    rig.left(1, gpu=0)
    returning = rig.begin()
    rig.settle()
    asked = asyncio.create_task(returning.known(ExecutionId("x-1")))
    with pytest.raises(Conflict, match="GPU_BUSY"):
        rig.leases.grant(lease(7, gpu=0))
    rig.leases.grant(lease(8, gpu=1))
    (told,) = returning.facts()
    assert (told.worker_id, told.stage, told.gpus, told.execution_id) == ("w-1", Stage.RUNNING, (0,), "x-1")
    # Owners of other sessions, and the one that the cell was begun by.
    returning.fence(SessionId("s-8"), Epoch(9))
    returning.fence(SessionId("s-1"), Epoch(1))
    assert rig.refused == [] and not asked.done()
    returning.fence(SessionId("s-1"), Epoch(2))
    assert rig.refused == ["x-1"]
    await within(asked)
    assert rig.sleepers[0].wait(20) == -signal.SIGKILL
    assert returning.facts() == [] and rig.held == ["l-8"] and rig.adopted == [] and rig.changes > 0
    assert rig.lost == ["x-1"] and rig.journal.runs() == []


async def test_worker_that_comes_does_not_wait_for_one_that_is_silent(rig: Rig) -> None:
    rig.left(1, gpu=0)
    rig.left(2, gpu=1, pid=os.getpid())
    returning = rig.begin()
    rig.settle()
    channel = await rig.come(2)
    await within(returning.known(ExecutionId("x-2")))
    assert rig.adopted == ["x-2"] and rig.held == ["l-1", "l-2"]
    assert [facts.worker_id for facts in returning.facts()] == ["w-1"]
    # Nobody ever waited for these.
    await within(returning.known(ExecutionId("x-3")))
    channel.close()


async def test_owner_that_comes_while_a_worker_is_let_in_ends_its_cell(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.left(1, gpu=0, pid=os.getpid())
    returning = rig.begin()

    async def adopt(_found: Found) -> None:
        returning.fence(SessionId("s-1"), Epoch(2))

    monkeypatch.setattr(rig, "adopt", adopt)
    rig.settle()
    channel = await rig.come(1)
    await within(returning.known(ExecutionId("x-1")))
    assert rig.fenced == [("s-1", 2)] and rig.held == ["l-1"]
    channel.close()


@pytest.mark.parametrize("how", ["leaves", "no such gpu", "gpu of another"])
async def test_worker_that_cannot_be_let_in_holds_nothing_once_it_has_ended(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def adopt(_found: Found) -> None:
        raise Unavailable("PEER_CLOSED", "it has gone")

    monkeypatch.setattr(rig, "adopt", adopt)
    rig.left(1, gpu=2 if how == "no such gpu" else 0)
    if how == "gpu of another":
        rig.left(0, gpu=0)
    returning = rig.begin()
    assert rig.refused == ([] if how == "leaves" else ["x-1"])
    ours, its = socket.socketpair()
    if how == "leaves":
        (waiting,) = rig.adoption._waiting.values()
        waiting.came.set_result((AsyncChannel(ours), {"id": 3}))
    rig.settle()
    await within(returning.known(ExecutionId("x-1")))
    assert rig.sleepers[0].wait(20) == -signal.SIGKILL
    awaited = [0] if how == "gpu of another" else []
    assert rig.lost == ["x-1"] and rig.held == [f"l-{number}" for number in awaited]
    assert [one.worker_id for one in returning.facts()] == [f"w-{number}" for number in awaited]
    assert [run.worker_id for run in rig.journal.runs()] == [f"w-{number}" for number in awaited]
    ours.close()
    its.close()


async def test_worker_that_does_not_end_keeps_its_gpu_and_nobody_waits_for_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption_module, "ENDED_S", 0.0)
    # As one that hangs in a driver.
    monkeypatch.setattr(AdoptedProcess, "signal", lambda *_: None)
    rig.left(1, gpu=0)
    returning = rig.begin()
    rig.settle()
    returning.fence(SessionId("s-1"), Epoch(2))
    await within(returning.known(ExecutionId("x-1")))
    await within(returning.all_known())
    with pytest.raises(Conflict, match="GPU_BUSY"):
        rig.leases.grant(lease(7, gpu=0))
    assert rig.lost == [] and [one.worker_id for one in returning.facts()] == ["w-1"]
    assert [run.worker_id for run in rig.journal.runs()] == ["w-1"], "the next daemon ends it too"
    rig.sleepers[0].kill()
    assert rig.settling is not None
    await within(rig.settling)
    assert rig.lost == ["x-1"] and rig.held == [] and returning.facts() == [] and rig.journal.runs() == []


async def test_fault_of_ours_with_one_worker_leaves_the_others_to_the_next_daemon(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def adopt(_found: Found) -> None:
        raise OSError("no room")

    monkeypatch.setattr(rig, "adopt", adopt)
    rig.left(1, gpu=0)
    rig.left(2, gpu=1, pid=os.getpid())
    rig.begin()
    before = asyncio.all_tasks()
    rig.settle()
    channel = await rig.come(2)
    assert rig.settling is not None
    with pytest.raises(ExceptionGroup) as raised:
        await within(rig.settling)
    assert [type(error) for error in raised.value.exceptions] == [OSError]
    # The listener ends a step later.
    await rig.adoption.stop()
    assert asyncio.all_tasks() <= before, "nobody waits for the other any more"
    assert rig.sleepers[0].poll() is None and [run.worker_id for run in rig.journal.runs()] == ["w-1", "w-2"]
    channel.close()


@pytest.mark.parametrize("how", ["fenced", "ended"])
async def test_store_that_is_away_holds_up_nobody_whose_end_is_known(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def away(_session: SessionId) -> SessionHead:
        rig.looked.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(rig, "_head", away)
    rig.left(1, gpu=0)
    returning = rig.begin()
    rig.settle()
    await within(rig.looked.wait())
    if how == "fenced":
        returning.fence(SessionId("s-1"), Epoch(2))
    else:
        rig.sleepers[0].kill()
    await within(returning.known(ExecutionId("x-1")))
    assert rig.lost == ["x-1"] and rig.held == []


async def test_stop_leaves_those_who_are_awaited_to_the_next_daemon(rig: Rig) -> None:
    rig.left(1, gpu=0)
    returning = rig.begin()
    rig.settle()
    await within(rig.looked.wait())
    assert rig.settling is not None and returning.facts()
    rig.settling.cancel()
    await asyncio.gather(rig.settling, return_exceptions=True)
    assert rig.sleepers[0].poll() is None and [run.worker_id for run in rig.journal.runs()] == ["w-1"]
