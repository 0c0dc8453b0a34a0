"""A cell from where its worker was let in by the next daemon; the worker's far end is in this process."""

from __future__ import annotations

import asyncio
import signal
import socket
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_fakes import SESSION, Parts, manifest_of, saved_reply, until, within
from execution_bench import Reports

from looseleaf.errors import Unavailable
from looseleaf.ids import Epoch, ExecutionId, LeaseId, Version, WorkerId
from looseleaf.protocol.aio import AsyncChannel
from looseleaf.protocol.aio_rpc import AsyncLink
from looseleaf.services.worker_daemon import worker_process
from looseleaf.services.worker_daemon.adopted_execution import AdoptedExecution, adopt
from looseleaf.services.worker_daemon.adoption import Found
from looseleaf.services.worker_daemon.core.adoption import OpenRun
from looseleaf.services.worker_daemon.core.lease_table import HeldLease, LeaseTable
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.execution import HostFacts
from looseleaf.services.worker_daemon.execution_log import LIFE_MESSAGES
from looseleaf.services.worker_daemon.worker_process import WorkerLimits
from looseleaf.v1 import scheduler_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb

LEASE = HeldLease(
    LeaseId("l-1"), SESSION, Epoch(1), ExecutionId("x-1"), (0,), WorkerId("w-1"), 2, 10.0, 1.0, 11.0, True
)
RUN = OpenRun(
    LEASE, Version(1), 7, 0.0, 20.0, 1.0, "START_PATH_WARM", WorkerId("w-1"), 4711, 99, "boot", "/run/w.sock", lives=1
)


class Process:
    """One that is nobody's child."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def exit_status(self, _pid: int) -> asyncio.Future[int | None]:
        return self.ended

    def peak_bytes(self, _pid: int) -> int:
        return 0

    def signal(self, _pid: int, number: signal.Signals) -> None:
        self.signals.append(number)
        if number is signal.SIGKILL and not self.ended.done():
            self.ended.set_result(None)


@dataclass
class Rig:
    """A daemon that has found one worker. `journal`: what was written to it."""

    parts: Parts
    process: Process = field(default_factory=Process)
    reports: Reports = field(default_factory=Reports)
    leases: LeaseTable = field(default_factory=lambda: LeaseTable(1))
    journal: list[Any] = field(default_factory=list)

    async def adopt(self) -> tuple[AdoptedExecution, AsyncLink]:
        ours, theirs = socket.socketpair()
        far = AsyncLink(AsyncChannel(theirs), {"resume": self.resume, "shutdown": self.shutdown})
        asyncio.create_task(far.serve())  # noqa: RUF006 - ends with its connection
        journal = SimpleNamespace(open=self.journal.append, close=self.journal.append)
        host: Any = SimpleNamespace(
            leases=self.leases, pool=self.parts.pool(), reporter=self.reports, journal=journal,
            facts=HostFacts("h0", "none", False),
        )  # fmt: skip
        process: Any = self.process
        found = Found(RUN, process, AsyncChannel(ours), 3, 2.5)
        self.leases.adopt(LEASE)
        return await adopt(found, host, self.parts.requests, WorkerLimits()), far

    async def resume(self, _message: Any, _fds: list[int]) -> Any:
        return saved_reply(2)

    async def shutdown(self, _message: Any, _fds: list[int]) -> Any:
        self.process.signal(0, signal.SIGKILL)
        return {}


async def never(_message: Any, _fds: list[int]) -> Any:
    await asyncio.Event().wait()


@pytest.fixture
async def rig(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> Rig:
    # The far end stays open when its process has ended, as in a child of it.
    monkeypatch.setattr(worker_process, "LAST_WORDS_S", 0.01)
    return Rig(parts)


async def test_adopted_cell_ends_as_one_that_this_daemon_has_begun(rig: Rig) -> None:
    execution, far = await rig.adopt()
    worker = rig.parts.pools[0].facts()[0]
    assert (worker.stage, worker.gpus, worker.execution_id) == (Stage.RUNNING, (0,), "x-1")
    # It was written for the daemon after this one.
    assert rig.journal[0].lives == 2
    for kind, body in (
        ("started", {"n": 1}), ("output", {"n": 2, "message": {"type": "stream", "name": "stdout", "text": "hi"}}),
        ("input_request", {"n": 3, "prompt": "?", "question": 1}),
        ("ended", {"n": 4, "reply": {"status": "ok"}, "run_s": 0.5, "first_touch_s": None}),
    ):  # fmt: skip
        await far.send_event(kind, {"execution_id": "x-1", **body})
    await within(execution.run())
    messages = execution.record._messages
    events = [(message.WhichOneof("message"), message.worker_event) for message in messages]
    assert events == [("stage", 1), ("output", 2), ("input_request", 3), ("ended", 4), ("stage", 0), ("saved", 0)]
    # Behind everything that the last daemon may have told.
    assert [message.position for message in messages] == [LIFE_MESSAGES + number for number in range(1, 7)]
    saved = messages[-1].saved
    assert (saved.version, saved.error_reason, saved.path) == (2, "", pb.CellSaved(path="START_PATH_WARM").path)
    # From Run to the first statement: 20 ms until it came to the last daemon, at 1.0 s, and 1.5 s there.
    assert saved.figures.start_ms == pytest.approx(1520)
    assert rig.reports.all[-1].release and rig.reports.all[-1].state == scheduler_pb2.EXECUTION_STATE_SAVED
    # A report of the start was the last daemon's.
    assert scheduler_pb2.EXECUTION_STATE_STARTED not in [report.state for report in rig.reports.all]
    assert worker.stage is Stage.COMPLETED and rig.leases.held()[0].finished and "x-1" in rig.journal[1:]


@pytest.mark.parametrize("committed", [True, False])
async def test_adopted_worker_that_dies_is_told_and_the_store_says_whether_its_cell_was_saved(
    rig: Rig, committed: bool
) -> None:
    async def manifest(_session_id: str, **_versions: int) -> Any:
        data = manifest_of([], parent=1) if committed else b""
        return SimpleNamespace(head=SimpleNamespace(epoch=1), version=2 if committed else 1, manifest=data)

    rig.parts.store.manifest = manifest  # type: ignore[assignment]
    rig.resume = never  # type: ignore[method-assign]
    execution, _far = await rig.adopt()
    running = asyncio.create_task(execution.run())
    rig.process.ended.set_result(None)
    await within(running)
    saved = execution.record._messages[-1].saved
    assert (saved.version, saved.error_reason) == (2 if committed else 1, "WORKER_LOST")
    assert "ended, status unknown" in saved.error_message
    assert ("had been saved already" if committed else "run the cell again") in saved.error_message
    state = scheduler_pb2.EXECUTION_STATE_SAVED if committed else scheduler_pb2.EXECUTION_STATE_FAILED
    assert rig.reports.all[-1].state == state


async def test_adopted_cell_whose_commit_nobody_can_be_asked_for_is_not_told_as_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_session_id: str, **_versions: int) -> Any:
        raise Unavailable("STORE_DOWN", "gone")

    monkeypatch.setattr(rig.parts.store, "manifest", away)
    monkeypatch.setattr(rig, "resume", never)
    execution, far = await rig.adopt()
    await far.send_event("ended", {
        "execution_id": "x-1", "n": 1, "reply": {"status": "ok"}, "run_s": 0.5, "first_touch_s": None,
    })  # fmt: skip
    running = asyncio.create_task(execution.run())
    await until(lambda: execution.record._messages != [])
    rig.process.signal(0, signal.SIGKILL)
    await within(running)
    saved = execution.record._messages[-1].saved
    assert saved.version == 1 and "the next cell sees them if so" in saved.error_message
    assert "lost" not in saved.error_message


async def test_interrupts_and_kills_reach_an_adopted_worker(rig: Rig) -> None:
    rig.resume = never  # type: ignore[method-assign]
    execution, _far = await rig.adopt()
    running = asyncio.create_task(execution.run())
    await asyncio.sleep(0)
    execution.interrupt(kill=False)
    assert rig.process.signals == [signal.SIGINT]
    execution.interrupt(kill=True)
    await within(running)
    assert rig.process.signals[1] == signal.SIGKILL
    assert "killed as the person asked" in execution.record._messages[-1].saved.error_message


async def test_worker_that_has_gone_before_its_welcome_is_not_taken_in(rig: Rig) -> None:
    class Gone(AsyncChannel):
        async def send(self, message: Any, fds: Any = ()) -> None:
            raise Unavailable("PEER_CLOSED", "it has gone")

    ours, theirs = socket.socketpair()
    theirs.close()
    channel = Gone(ours)
    process: Any = rig.process
    host: Any = SimpleNamespace(journal=SimpleNamespace())
    with pytest.raises(Unavailable, match="PEER_CLOSED"):
        await adopt(Found(RUN, process, channel, 3, None), host, rig.parts.requests, WorkerLimits())
    assert rig.parts.pools == []
    channel.close()
