"""Scheduler, store and workers that end at the worst moment, and messages that are late, lost or doubled.

No cell starts twice, a save is there once and whole or not at all.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from looseleaf.rpc.client import NO_DEADLINE, open_channel
from looseleaf.v1 import recipe_pb2, scheduler_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceStub
from looseleaf.v1.worker_daemon_pb2_grpc import WorkerDaemonServiceStub
from tests.cluster.conftest import Notebook
from tests.faults.fault_pool import CALL_S, GPU_HOSTS, Pool
from tests.faults.held_cell import HeldCell, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


def test_scheduler_killed_while_idle_loses_no_worker(pool: Pool, one: Notebook) -> None:
    before = one.ok("%%gpu\nkept = [1]")
    pool.until_unused()
    pool.kill("scheduler")
    after = one.ok("%%gpu\nkept.append(2)")
    assert after.report["worker"] == before.report["worker"]
    assert one.ok("kept").value == "[1, 2]"


def test_scheduler_that_stands_still_holds_up_no_running_cell_and_loses_no_host(
    pool: Pool, one: Notebook, tmp_path: Path
) -> None:
    one.ok("%%gpu\nkept = [1]")
    cell = HeldCell(tmp_path, then="kept.append(2)")
    message = one.start(cell.code)
    cell.until_started()
    [lease] = pool.leases()
    daemon = f"daemon-{lease.host.host_id}"
    failed = pool.logged(daemon, "heartbeat_failed")
    pool.cluster.pause("scheduler")
    try:
        cell.end()
        outcome = one.finish(message)
        until(lambda: pool.logged(daemon, "heartbeat_failed") > failed, "the scheduler answers")
    finally:
        pool.cluster.resume("scheduler")
    assert (outcome.status, cell.starts) == ("ok", 1), outcome
    pool.until_unused()
    after = one.ok("%%gpu\nkept")
    assert after.value == "[1, 2]" and after.report["worker"] == outcome.report["worker"]


def test_frontend_killed_under_a_running_cell_takes_nothing_of_it_along_and_serves_the_next(
    pool: Pool, one: Notebook, tmp_path: Path
) -> None:
    one.ok("%%gpu\nkept = [1]")
    cell = HeldCell(tmp_path, then="kept.append(2)\nprint('at its end')")
    message = one.start(cell.code)
    cell.until_started()
    pool.kill("frontend")
    cell.end()
    outcome = one.finish(message)
    assert (outcome.status, outcome.text, cell.starts) == ("ok", "at its end\n", 1), outcome
    # What the frontend knew of the notebook's cells is told anew: the next one's closure is whole.
    after = one.ok("%%gpu\nkept.append(3)\nprint(kept)")
    assert after.text == "[1, 2, 3]\n"
    assert one.ok("kept").value == "[1, 2, 3]"
    pool.until_unused()


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


def test_worker_killed_between_its_regions_and_its_manifest_leaves_the_version_before(
    pool: Pool, one: Notebook, tmp_path: Path
) -> None:
    before = one.ok("%%gpu\nimport torch\nwide = torch.ones(3 << 20)\nkept = [1]").report["version"]
    cell = HeldCell(tmp_path, then="wide = torch.full((3 << 20,), 2.0)\nkept.append(2)\nprint('at its end')")
    message = one.start(cell.code)
    cell.until_started()
    [lease] = pool.leases()
    host = lease.host.host_id
    staged_bytes = pool.arena_bytes(host)
    pool.hold_at(f"{host}-put")
    cell.end()
    pool.until_at(f"{host}-put")
    assert pool.arena_bytes(host) > staged_bytes
    os.kill(pool.worker_of(lease).pid, signal.SIGKILL)
    pool.go_on(f"{host}-put")
    outcome = one.finish(message)
    assert outcome.ename == "WORKER_LOST" and f"version {before}" in outcome.error, outcome
    assert "at its end" in outcome.text and "while its changes were being saved" in outcome.error
    # What the save had brought is nobody's: it goes.
    until(lambda: pool.arena_bytes(host) <= staged_bytes, "regions of the save stay in the arena")
    assert one.ok("%%gpu\nkept, wide.sum().item()").value == "([1], 3145728.0)"
    assert cell.starts == 1
    pool.line_of_versions(lease.session_id)


@pytest.mark.parametrize("place", ["commit", "committed"])
def test_store_that_dies_around_a_commit_has_it_once(pool: Pool, one: Notebook, tmp_path: Path, place: str) -> None:
    """It dies before it has written anything, or after the version is durable and before it has said so."""
    one.ok("%%gpu\nkept = [1]")
    cell = HeldCell(tmp_path, then="kept.append(2)")
    message = one.start(cell.code)
    cell.until_started()
    [lease] = pool.leases()
    before, pid = pool.head(lease.session_id).version, pool.cluster.pid("checkpoint-store")
    pool.die_at(place)
    cell.end()
    outcome = one.finish(message)
    assert (outcome.status, cell.starts) == ("ok", 1), outcome
    assert pool.cluster.pid("checkpoint-store") != pid
    assert outcome.report["version"] == pool.head(lease.session_id).version == before + 1
    assert one.ok("%%gpu\nkept").value == "[1, 2]"
    pool.line_of_versions(lease.session_id)


def test_save_waits_for_a_store_that_is_out_of_reach_and_its_worker_with_it(
    pool: Pool, one: Notebook, two: Notebook, tmp_path: Path
) -> None:
    cell = HeldCell(tmp_path, then="kept = [3]")
    message = one.start(cell.code)
    cell.until_started()
    [lease] = pool.leases()
    host = lease.host.host_id
    pool.links.hold(f"{host}-store")
    cell.end()
    assert not pool.evicts(lease, pool.until_saving(lease))
    # The GPU stays its own, and is counted as such; the other one serves others.
    assert [held.execution_id for held in pool.seen(host).leases] == [lease.execution_id]
    assert two.ok("%%gpu\n1 + 1").report["host"] != host
    pool.links.release(f"{host}-store")
    outcome = one.finish(message)
    assert (outcome.status, cell.starts) == ("ok", 1), outcome
    assert one.ok("kept").value == "[3]"
    pool.line_of_versions(lease.session_id)


def test_worker_that_ends_while_its_store_is_out_of_reach_frees_its_cell_and_its_gpu(
    pool: Pool, one: Notebook, tmp_path: Path
) -> None:
    one.ok("%%gpu\nkept = [1]")
    cell = HeldCell(tmp_path, then="kept.append(2)")
    message = one.start(cell.code)
    cell.until_started()
    [lease] = pool.leases()
    host = lease.host.host_id
    pool.links.hold(f"{host}-store")
    cell.end()
    os.kill(pool.until_saving(lease).pid, signal.SIGKILL)
    outcome = one.finish(message)
    assert outcome.ename == "WORKER_LOST" and "while its changes were being saved" in outcome.error, outcome
    until(lambda: not pool.host(host).leases, "the GPU is still held")
    pool.links.release(f"{host}-store")
    assert one.ok("%%gpu\nkept").value in ("[1]", "[1, 2]" if "did not say" in outcome.error else "[1]")
    assert cell.starts == 1
    pool.line_of_versions(lease.session_id)


def test_full_disk_of_the_store_holds_up_the_save_its_worker_and_its_gpu(
    pool: Pool, one: Notebook, two: Notebook, tmp_path: Path
) -> None:
    one.ok("%%gpu\nkept = [1]")
    cell = HeldCell(tmp_path, then="import torch\nwide = torch.full((1 << 20,), 3.0)\nkept.append(2)")
    message = one.start(cell.code)
    cell.until_started()
    [lease] = pool.leases()
    host, before = lease.host.host_id, pool.head(lease.session_id).version
    pool.fill_disk()
    cell.end()
    until(lambda: pool.logged(f"daemon-{host}", "save_held_up"), "the save was not held up")
    worker = pool.worker_of(lease)
    assert worker.stage == scheduler_pb2.WORKER_STAGE_SAVING and not pool.evicts(lease, worker)
    assert [held.execution_id for held in pool.seen(host).leases] == [lease.execution_id]
    assert pool.head(lease.session_id).version == before
    pool.empty_disk()
    outcome = one.finish(message)
    assert (outcome.status, outcome.report["version"], cell.starts) == ("ok", before + 1, 1), outcome
    assert one.ok("%%gpu\nkept, wide.sum().item()").value == "([1, 2], 3145728.0)"
    pool.line_of_versions(lease.session_id)
