"""What the tests of a host's workers share: sessions, a recipe, a worker that holds what no version has."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from daemon_fakes import SESSION, ScriptedWorker

from looseleaf.errors import InvalidArgument
from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.core.worker_ends import WorkerEnd
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.pool import WorkerPool
from looseleaf.services.worker_daemon.worker_process import WorkerProcess
from looseleaf.v1 import recipe_pb2

ONE = Epoch(1)
OTHER = SessionId("s-2")
WHY = WorkerEnd("asked", "was tested")
RECIPE = recipe_pb2.ExecutionRecipe(version=1, names=["x"], imports=["json"], source_hash="h")


def lease_of(session: SessionId, epoch: int = 1) -> HeldLease:
    """Of GPU 0."""
    return HeldLease(LeaseId("l-1"), session, Epoch(epoch), ExecutionId("x-1"), (0,), None, 3, 10.0, 0.0, 1e12)


async def hang(_worker: ScriptedWorker, _request: Any) -> Any:
    await asyncio.Event().wait()


async def refuse(_worker: ScriptedWorker, _request: Any) -> Any:
    raise InvalidArgument("NO_GOOD", "refused")


async def holder(pool: WorkerPool, left_s: float = 60.0) -> WorkerProcess:
    """A worker of SESSION on GPU 0 whose cell left the variable `it`."""
    async with pool.reserved(None, SESSION, ONE) as worker:
        worker.facts.gpus, worker.facts.stage = (0,), Stage.COMPLETED
        worker.facts.hold({"it"}, {"it"}, time.monotonic() + left_s)
    return worker
