"""The scheduler as a process: killed without warning, started anew."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from looseleaf.v1 import recipe_pb2, scheduler_pb2

LIMIT_S = 30.0

Start = Callable[[], Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts the scheduler's process on one socket and one journal."""
    processes: list[asyncio.subprocess.Process] = []

    async def run() -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "looseleaf.services.scheduler", "--listen", f"unix:{tmp_path}/s.sock",
            "--run-dir", str(tmp_path), "--data", str(tmp_path / "data"), "--tick-s", "0.05",
            "--shutdown-grace-s", "0.5",
            stderr=asyncio.subprocess.PIPE,
        )
        processes.append(process)
        assert process.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            while b"service_started" not in (line := await process.stderr.readline()):
                assert line, "the scheduler ended before it served"
        return process

    yield run
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_killed_scheduler_adopts_running_leases_by_heartbeat(
    start: Start, start_daemon: Any, connect: Any, tmp_path: Path,
) -> None:
    daemon = await start_daemon(gpus=2)
    process = await start()
    client = connect(f"unix:{tmp_path}/s.sock")
    await client.beat(daemon)
    running = await client.lease("x1", "s1")
    await client.report(running, "STARTED")
    unstarted = await client.lease("x2", "s2")

    process.send_signal(signal.SIGKILL)
    await process.wait()
    await start()

    assert await client.state("x1") == "STARTED"
    assert not (await client.pool()).ready
    [answer] = await client.beat(daemon)
    assert sorted(answer.renewed_lease_ids) == sorted([running.lease_id, unstarted.lease_id])
    assert (await client.pool()).ready
    # The caller of the unstarted run asks again and gets the lease that it had.
    assert await client.lease("x2", "s2") == unstarted
    assert len(daemon.grants) == 2
    await client.report(running, "SAVED", release=True)
    assert await client.state("x1") == "SAVED"
    assert (await client.lease("x3", "s3")).gpu_indices == running.gpu_indices
    await client.close()


async def test_sigterm_ends_the_process_cleanly_and_the_journal_opens_again(
    start: Start, start_daemon: Any, connect: Any, tmp_path: Path,
) -> None:
    daemon = await start_daemon()
    process = await start()
    client = connect(f"unix:{tmp_path}/s.sock")
    await client.beat(daemon)
    await client.lease("x1")
    process.terminate()
    assert await asyncio.wait_for(process.wait(), LIMIT_S) == 0
    await start()
    assert await client.state("x1") == "DISPATCHED"
    await client.close()


@pytest.mark.slow
async def test_tenant_is_served_beside_the_flood_of_another(
    start: Start, start_daemon: Any, connect: Any, tmp_path: Path,
) -> None:
    daemon = await start_daemon(gpus=8)
    await start()
    client = connect(f"unix:{tmp_path}/s.sock")
    await client.beat(daemon)
    served: list[str] = []
    may_end = asyncio.Event()

    async def beat_on() -> None:
        while True:
            await client.beat(daemon)
            await asyncio.sleep(0.5)

    async def run(tenant: str, session: str, execution: str) -> None:
        request = scheduler_pb2.RequestRunRequest(
            execution_id=execution, session_id=session, epoch=1, priority="interactive", tenant=tenant,
            recipe=recipe_pb2.ExecutionRecipe(gpu_count=1))
        lease = None
        async with client.stub.RequestRun(request, timeout_s=120) as news:
            async for item in news:
                lease = item.lease if item.HasField("lease") else None
        assert lease is not None
        served.append(tenant)
        await client.report(lease, "STARTED")
        await may_end.wait()
        daemon.leases.pop(lease.lease_id)
        await client.report(lease, "SAVED", release=True)

    async def until_waiting(number: int) -> None:
        async with asyncio.timeout(120):
            while (await client.pool()).queued_runs != number:  # noqa: ASYNC110 the number lies behind an RPC
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(beat_on())
        flood = [tasks.create_task(run("a", f"a{number}", f"xa{number}")) for number in range(500)]
        await until_waiting(492)
        few = [tasks.create_task(run("b", f"b{number}", f"xb{number}")) for number in range(8)]
        await until_waiting(500)
        may_end.set()
        await asyncio.wait([*flood, *few])
        beating.cancel()
    # 8 cells of the flood ran when the others came; from there on the two take turns.
    assert [served[:8].count("a"), len(served), served.count("b")] == [8, 508, 8]
    assert max(index for index, tenant in enumerate(served) if tenant == "b") < 8 + 3 * 8
    await client.close()
