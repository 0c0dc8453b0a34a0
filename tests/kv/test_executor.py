from __future__ import annotations

import asyncio
import threading

import pytest

from looseleaf.errors import CapacityExceeded, Unavailable
from looseleaf.kv.executor import BoundedExecutor


async def test_executor_at_its_limit_refuses_and_accepts_again() -> None:
    executor = BoundedExecutor("t", threads=1, pending_max=2)
    gate = threading.Event()
    calls = [asyncio.ensure_future(executor.run(gate.wait, 10)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(CapacityExceeded, match="EXECUTOR_FULL"):
        await executor.run(int)
    gate.set()
    assert await asyncio.gather(*calls) == [True, True]
    assert await executor.run(lambda: 7) == 7
    await executor.close()


async def test_executor_cancelled_caller_leaves_the_call_running() -> None:
    executor = BoundedExecutor("t", threads=1, pending_max=2)
    started, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        gate.wait(10)
        ended.set()

    call = asyncio.ensure_future(executor.run(work))
    assert await asyncio.to_thread(started.wait, 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert executor.pending == 1
    gate.set()
    await executor.close()
    assert ended.is_set()


async def test_executor_passes_errors_and_refuses_after_close() -> None:
    executor = BoundedExecutor("t")
    with pytest.raises(ZeroDivisionError):
        await executor.run(lambda: 1 // 0)
    await executor.close()
    with pytest.raises(Unavailable, match="EXECUTOR_CLOSED"):
        await executor.run(int)
