"""Executions of one cell after the other on a pool of scripted workers, each checked when it has ended."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import msgpack
from daemon_fakes import SESSION, Parts, ScriptedWorker, within

from looseleaf.ids import Epoch, ExecutionId, LeaseId, WorkerId
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.execution import CellExecution, HostFacts
from looseleaf.services.worker_daemon.execution_log import ExecutionRecord
from looseleaf.services.worker_daemon.pool import WorkerPool
from looseleaf.v1 import recipe_pb2, scheduler_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb

ONE = Epoch(1)
RECIPE = recipe_pb2.ExecutionRecipe(version=1, names=["x"])


@dataclass
class Reports:
    """What the scheduler would hear."""

    all: list[scheduler_pb2.ReportExecutionRequest] = field(default_factory=list)

    def report_progress(self, request: scheduler_pb2.ReportExecutionRequest) -> None:
        self.all.append(request)

    report_end = report_progress


@dataclass
class Bench:
    """One execution after the other on a pool; `finished` counts the leases that were given back."""

    parts: Parts
    pool: WorkerPool
    reports: Reports = field(default_factory=Reports)
    finished: int = 0
    number: int = 0
    keep_leftovers_s: float = 60.0
    keep_unsaved_s: float = 60.0

    def start(
        self, *, worker_id: WorkerId | None = None, path: int = 3, gpus: tuple[int, ...] = (0,),
        required: bool = False, **start: Any,
    ) -> CellExecution:
        self.number += 1
        execution_id = ExecutionId(f"x-{self.number}")
        lease = HeldLease(
            LeaseId("l-1"), SESSION, ONE, execution_id, gpus, worker_id, path, 10.0, time.monotonic(), 1e12, True,
            worker_required=required,
        )
        cell = {"version": 1, "recipe": RECIPE, "source": "x", "execution_count": 3, **start}
        request = pb.ExecuteStart(execution_id=execution_id, **cell)
        reporter: Any = self.reports
        host = HostFacts("h0", "none", False, self.keep_leftovers_s, self.keep_unsaved_s)
        return CellExecution(
            request, lease, ExecutionRecord(execution_id), self.pool, reporter, host, self._finish
        )  # fmt: skip

    def _finish(self) -> None:
        self.finished += 1

    async def run(self, **start: Any) -> tuple[CellExecution, pb.CellSaved]:
        execution = self.start(**start)
        await within(execution.run())
        return execution, self.checked(execution)

    def checked(self, execution: CellExecution) -> pb.CellSaved:
        """The outcome of an ended execution, which is complete whatever happened."""
        messages = messages_of(execution)
        assert [message.position for message in messages] == list(range(1, len(messages) + 1))
        assert messages[-1].HasField("saved") and sum(message.HasField("ended") for message in messages) == 1
        last = self.reports.all[-1]
        assert last.release and last.execution_id == execution.lease.execution_id and self.finished == self.number
        assert all(facts.users == 0 for facts in self.pool.facts())
        return messages[-1].saved


def messages_of(execution: CellExecution) -> list[pb.ExecuteResponse]:
    return execution.record._messages


def reply_of(execution: CellExecution) -> dict[str, Any]:
    ended = next(message.ended for message in messages_of(execution) if message.HasField("ended"))
    reply: dict[str, Any] = msgpack.unpackb(ended.reply)
    return reply


async def hang(_worker: ScriptedWorker, _request: Any) -> Any:
    await asyncio.Event().wait()


def dying(code: int = -9) -> Any:
    async def die(worker: ScriptedWorker, _request: Any) -> Any:
        worker.die(code)
        await asyncio.Event().wait()

    return die
