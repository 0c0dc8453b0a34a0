from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.clock import ManualClock
from looseleaf.errors import CapacityExceeded, InvalidArgument
from looseleaf.rpc.dedupe import RequestMemory
from looseleaf.v1 import checkpoint_store_pb2 as pb


def request(request_id: str, session_id: str = "s-1") -> Any:
    return pb.DeleteSessionRequest(request_id=request_id, session_id=session_id)


class Work:
    def __init__(self) -> None:
        self.runs = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> Any:
        self.runs += 1
        await self.gate.wait()
        return pb.ListSessionsResponse(sessions=[{"version": self.runs}])


async def test_repeat_gets_the_first_response_without_a_second_run() -> None:
    memory, work = RequestMemory(), Work()
    first = await memory.once(request("r-1"), work)
    assert await memory.once(request("r-1"), work) == first
    assert work.runs == 1
    await memory.once(request("r-2"), work)
    assert work.runs == 2


async def test_same_id_of_another_request_type_is_another_request() -> None:
    memory, work = RequestMemory(), Work()
    await memory.once(request("r-1"), work)
    await memory.once(pb.CollectGarbageRequest(request_id="r-1"), work)
    assert work.runs == 2


async def test_repeats_that_arrive_meanwhile_share_one_run() -> None:
    memory, work = RequestMemory(), Work()
    work.gate.clear()
    tasks = [asyncio.create_task(memory.once(request("r-1"), work)) for _ in range(5)]
    await asyncio.sleep(0)
    work.gate.set()
    answers = await asyncio.gather(*tasks)
    assert work.runs == 1
    assert all(answer == answers[0] for answer in answers)


async def test_work_goes_on_when_its_caller_gives_up() -> None:
    memory, work = RequestMemory(), Work()
    work.gate.clear()
    task = asyncio.create_task(memory.once(request("r-1"), work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    work.gate.set()
    await memory.drain()
    await memory.once(request("r-1"), work)
    assert work.runs == 1


async def test_failure_is_not_remembered() -> None:
    memory, work = RequestMemory(), Work()

    async def fail() -> Any:
        raise CapacityExceeded("FULL", "x")

    with pytest.raises(CapacityExceeded):
        await memory.once(request("r-1"), fail)
    await memory.once(request("r-1"), work)
    assert work.runs == 1


async def test_reused_id_and_missing_id_are_refused() -> None:
    memory, work = RequestMemory(), Work()
    await memory.once(request("r-1", "s-1"), work)
    with pytest.raises(InvalidArgument, match="REQUEST_ID_REUSED"):
        await memory.once(request("r-1", "s-2"), work)
    with pytest.raises(InvalidArgument, match="REQUEST_ID_MISSING"):
        await memory.once(request(""), work)
    assert work.runs == 1


async def test_result_is_forgotten_after_its_time() -> None:
    clock = ManualClock()
    memory, work = RequestMemory(ttl_s=10, clock=clock), Work()
    await memory.once(request("r-1"), work)
    clock.advance(9.9)
    await memory.once(request("r-1"), work)
    assert work.runs == 1
    clock.advance(0.2)
    await memory.once(request("r-1"), work)
    assert work.runs == 2


async def test_too_many_at_once_are_refused() -> None:
    memory, work = RequestMemory(running_max=2), Work()
    work.gate.clear()
    tasks = [asyncio.create_task(memory.once(request(f"r-{index}"), work)) for index in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(CapacityExceeded, match="TOO_MANY_REQUESTS"):
        await memory.once(request("r-9"), work)
    work.gate.set()
    await asyncio.gather(*tasks)


@given(st.lists(st.integers(0, 30), max_size=80), st.integers(1, 8), st.integers(50, 400))
def test_memory_never_exceeds_its_limits(ids: list[int], entries_max: int, bytes_max: int) -> None:
    async def run() -> None:
        memory, work = RequestMemory(entries_max=entries_max, bytes_max=bytes_max), Work()
        for number in ids:
            await memory.once(request(f"r-{number}"), work)
            assert len(memory._entries) <= entries_max
            assert memory._bytes == sum(entry.size_bytes for entry in memory._entries.values()) <= bytes_max

    asyncio.run(run())
