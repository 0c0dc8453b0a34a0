"""The scheduler as a process: killed without warning, started anew."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

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
