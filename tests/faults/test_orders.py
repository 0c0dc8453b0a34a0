"""What the scheduler orders, when it dies on the way, and runs that are asked for twice: no cell starts twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from looseleaf.rpc.client import NO_DEADLINE, open_channel
from looseleaf.v1 import recipe_pb2, scheduler_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceStub
from looseleaf.v1.worker_daemon_pb2_grpc import WorkerDaemonServiceStub
from tests.cluster.conftest import Notebook
from tests.faults.fault_pool import GPU_HOSTS, Pool
from tests.faults.held_cell import HeldCell, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

CALL_S = 10.0


def test_scheduler_killed_while_idle_loses_no_worker(pool: Pool, one: Notebook) -> None:
    before = one.ok("%%gpu\nkept = [1]")
    pool.until_unused()
    pool.kill("scheduler")
    after = one.ok("%%gpu\nkept.append(2)")
    assert after.report["worker"] == before.report["worker"]
    assert one.ok("kept").value == "[1, 2]"


@pytest.mark.parametrize("place", ["grant", "granted"])
def test_scheduler_that_dies_around_its_order_starts_the_cell_once(
    pool: Pool, one: Notebook, tmp_path: Path, place: str
) -> None:
    """The record is written: either no daemon knows of the lease, or one does and nobody was told."""
    cell = HeldCell(tmp_path, then="ran = True")
    pid = pool.cluster.pid("scheduler")
    pool.die_at(place)
    message = one.start(cell.code)
    cell.until_started()
    assert pool.cluster.pid("scheduler") != pid
    cell.end()
    outcome = one.finish(message)
    assert (outcome.status, cell.starts) == ("ok", 1), outcome
    assert one.ok("ran").value == "True"
    pool.until_unused()


def test_order_of_a_scheduler_that_died_comes_late_and_starts_nothing(
    pool: Pool, one: Notebook, two: Notebook, tmp_path: Path
) -> None:
    warm = one.ok("%%gpu\nkept = [1]").report["host"]
    [other] = set(GPU_HOSTS) - {warm}
    cell = HeldCell(tmp_path, then="kept.append(2)")
    pool.links.hold(f"{warm}-in", "there")
    message = one.start(cell.code)
    until(lambda: pool.seen(warm).leases, "no lease was ordered")
    pool.kill("scheduler")
    # The new one asks the same host in vain, as its orders do not arrive either, and goes to the other.
    cell.until_started()
    assert [lease.execution_id for lease in pool.host(other).leases]
    pool.links.release(f"{warm}-in")
    cell.end()
    outcome = one.finish(message)
    assert (outcome.status, outcome.report["host"], cell.starts) == ("ok", other, 1), outcome
    pool.until_unused()
    # Nothing of the old order is left: both GPUs can be had at once.
    both = [HeldCell(tmp_path, f"both{number}") for number in range(2)]
    messages = [notebook.start(held.code) for notebook, held in zip((one, two), both, strict=True)]
    for held in both:
        held.until_started()
    for notebook, held, sent in zip((one, two), both, messages, strict=True):
        held.end()
        assert notebook.finish(sent).status == "ok" and held.starts == 1
    assert one.ok("kept").value == "[1, 2]"


def test_run_that_is_asked_for_again_and_again_is_one_execution(pool: Pool, one: Notebook, tmp_path: Path) -> None:
    cell = HeldCell(tmp_path, then="print('at its end')")
    message = one.start(cell.code)
    cell.until_started()
    [lease] = pool.leases()
    # The caller's own connection breaks: it comes back.
    pool.links.drop(f"{lease.host.host_id}-in")
    answered, heard = _asked_twice(pool, lease, cell)
    assert answered == lease.lease_id
    outcome = one.finish(message)
    assert (outcome.status, outcome.text, cell.starts) == ("ok", "at its end\n", 1), outcome
    assert heard[-1] == "saved" and heard.count("ended") == 1, heard


def _asked_twice(pool: Pool, lease: Any, cell: HeldCell) -> tuple[str, list[str]]:
    """The run is asked of the scheduler once more, and of its daemon by another caller: what both answer."""

    async def ask_scheduler() -> str:
        run = scheduler_pb2.RequestRunRequest(
            execution_id=lease.execution_id, session_id=lease.session_id, epoch=lease.epoch, priority="interactive",
            recipe=recipe_pb2.ExecutionRecipe(gpu_count=1),
        )
        async with open_channel(pool.cluster.address("scheduler"), peer="scheduler") as channel:
            async with SchedulerServiceStub(channel).RequestRun(run, timeout_s=CALL_S) as news:
                async for item in news:
                    if item.HasField("lease"):
                        return str(item.lease.lease_id)
        return ""

    async def ask_daemon() -> list[str]:
        start = pb.ExecuteStart(
            execution_id=lease.execution_id, lease_id=lease.lease_id, session_id=lease.session_id, epoch=lease.epoch
        )
        heard = []
        async with open_channel(pool.cluster.address(f"daemon-{lease.host.host_id}"), peer="daemon") as channel:
            async with WorkerDaemonServiceStub(channel).Execute(timeout_s=NO_DEADLINE) as call:
                await call.write(pb.ExecuteRequest(start=start))
                async for response in call:
                    heard.append(str(response.WhichOneof("message")))
                    cell.end()
        return heard

    async def ask() -> tuple[str, list[str]]:
        return await ask_scheduler(), await ask_daemon()



    return asyncio.run(ask())
