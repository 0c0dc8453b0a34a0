from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from looseleaf.errors import InvalidArgument, LooseLeafError, Timeout, Unavailable
from looseleaf.rpc.client import NO_DEADLINE, open_channel
from looseleaf.rpc.server import Registration, RpcServer
from looseleaf.v1 import checkpoint_store_pb2 as store_pb
from looseleaf.v1 import scheduler_pb2 as scheduler_pb
from looseleaf.v1 import worker_daemon_pb2 as daemon_pb
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceStub, add_SchedulerServiceServicer_to_server

LIMIT_S = 20.0


def unit(number: int) -> Any:
    return store_pb.PutUnitsRequest(unit={"unit_hash": bytes([number]) * 16, "data": b"x"})


async def test_unary_call_answers(rig: Any) -> None:
    pool = await rig.scheduler.GetPool(scheduler_pb.GetPoolRequest(), timeout_s=LIMIT_S)
    assert pool.queued_runs == 7


async def test_server_stream_yields_in_order(rig: Any) -> None:
    async with rig.scheduler.RequestRun(scheduler_pb.RequestRunRequest(), timeout_s=LIMIT_S) as news:
        assert [message.queue.position async for message in news] == [3, 2, 1]


async def test_server_stream_left_early_ends_the_servers_generator(rig: Any) -> None:
    async def wait(_context: Any) -> None:
        await asyncio.Event().wait()

    rig.behaviour.act = wait
    async with rig.scheduler.RequestRun(scheduler_pb.RequestRunRequest(), timeout_s=NO_DEADLINE) as news:
        assert (await news.read()).queue.position == 3
    async with asyncio.timeout(LIMIT_S):
        await rig.behaviour.ended.wait()


async def test_client_stream_accepts_lists_and_async_iterators(rig: Any) -> None:
    async def produce() -> Any:
        yield unit(1)
        yield unit(2)

    assert (await rig.store.PutUnits([unit(1)] * 3, timeout_s=LIMIT_S)).stored == 3
    assert (await rig.store.PutUnits(produce(), timeout_s=LIMIT_S)).stored == 2


async def test_client_stream_whose_source_raises_passes_it_on(rig: Any) -> None:
    async def produce() -> Any:
        yield unit(1)
        raise KeyError("source")

    with pytest.raises(KeyError, match="source"):
        await rig.store.PutUnits(produce(), timeout_s=LIMIT_S)


async def test_client_stream_refused_midway_raises_the_servers_error(rig: Any) -> None:
    async def refuse(_context: Any) -> None:
        raise InvalidArgument("UNIT_BAD", "no", index=1)

    async def produce() -> Any:
        for _ in range(10_000):
            yield unit(1)
            await asyncio.sleep(0)

    rig.behaviour.act = refuse
    for _ in range(20):  # the server's status races with a write that fails
        with pytest.raises(InvalidArgument) as caught:
            await rig.store.PutUnits(produce(), timeout_s=LIMIT_S)
        assert (caught.value.reason, caught.value.fields) == ("UNIT_BAD", {"index": 1})


async def test_two_way_stream_echoes_until_done(rig: Any) -> None:
    async with rig.daemon.Execute(timeout_s=NO_DEADLINE) as call:
        for word in ("one", "two"):
            assert await call.write(daemon_pb.ExecuteRequest(input_reply={"value": word}))
            assert (await call.read()).output == word.encode()
        await call.done_writing()
        assert await call.read() is None
        assert not await call.write(daemon_pb.ExecuteRequest())
        await call.done_writing()


async def test_write_on_a_channel_closed_before_it_connected_returns(tmp_path: Any) -> None:
    from looseleaf.v1.worker_daemon_pb2_grpc import WorkerDaemonServiceStub

    channel = open_channel(f"unix:{tmp_path}/none.sock", peer="daemon")
    call = WorkerDaemonServiceStub(channel).Execute(timeout_s=LIMIT_S)
    await channel.close()
    async with asyncio.timeout(LIMIT_S):
        assert not await call.write(daemon_pb.ExecuteRequest())
        with pytest.raises(Unavailable, match="DAEMON_DOWN"):
            await call.read()


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, NO_DEADLINE])
async def test_unary_call_without_a_deadline_is_refused(rig: Any, timeout_s: float) -> None:
    with pytest.raises(InvalidArgument, match="DEADLINE_MISSING"):
        await rig.scheduler.GetPool(scheduler_pb.GetPoolRequest(), timeout_s=timeout_s)
    assert rig.behaviour.calls == 0


async def test_call_past_its_deadline_is_a_timeout_and_cancels_the_handler(rig: Any) -> None:
    async def wait(_context: Any) -> None:
        await asyncio.Event().wait()

    rig.behaviour.act = wait
    # On a busy machine the deadline may pass before the handler begins: then it is asked once more, with more time.
    for timeout_s in (0.1, 1.0, 10.0):
        with pytest.raises(Timeout) as caught:
            await rig.scheduler.GetPool(scheduler_pb.GetPoolRequest(), timeout_s=timeout_s)
        assert caught.value.reason == "STORE_TIMEOUT"
        if rig.behaviour.calls:
            break
    async with asyncio.timeout(LIMIT_S):
        await rig.behaviour.cancelled.wait()


async def begin_endless_call(rig: Any) -> asyncio.Task[Any]:
    """A call whose handler has begun and never ends by itself."""
    began = asyncio.Event()

    async def wait(_context: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    rig.behaviour.act = wait
    task = asyncio.create_task(rig.scheduler.GetPool(scheduler_pb.GetPoolRequest(), timeout_s=LIMIT_S))
    await began.wait()
    return task


async def test_task_cancelled_during_a_call_stays_cancelled(rig: Any) -> None:
    task = await begin_endless_call(rig)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_server_stopped_during_a_call_is_unavailable(rig: Any) -> None:
    task = await begin_endless_call(rig)
    await rig.server.stop(0)
    with pytest.raises(Unavailable, match="STORE_DOWN"):
        await task


async def test_absent_server_is_unavailable_with_its_address(tmp_path: Any) -> None:
    async with open_channel(f"unix:{tmp_path}/none.sock", peer="scheduler") as channel:
        with pytest.raises(Unavailable) as caught:
            await SchedulerServiceStub(channel).GetPool(scheduler_pb.GetPoolRequest(), timeout_s=LIMIT_S)
        assert caught.value.reason == "SCHEDULER_DOWN"
        assert caught.value.fields["address"] == f"unix:{tmp_path}/none.sock"
        with pytest.raises(Unavailable, match="SCHEDULER_DOWN"):
            await channel.wait_ready(0.05)


async def test_unavailable_is_retried_four_times_and_others_once(rig: Any) -> None:
    async def unavailable(_context: Any) -> None:
        raise Unavailable("STARTING", "soon")

    async def internal(_context: Any) -> None:
        raise LooseLeafError("ODD", "x")

    rig.behaviour.act = unavailable
    with pytest.raises(Unavailable, match="STARTING"):
        await rig.scheduler.GetPool(scheduler_pb.GetPoolRequest(), timeout_s=LIMIT_S)
    assert rig.behaviour.calls == 4
    rig.behaviour.act, rig.behaviour.calls = internal, 0
    with pytest.raises(LooseLeafError, match="ODD"):
        await rig.scheduler.GetPool(scheduler_pb.GetPoolRequest(), timeout_s=LIMIT_S)
    assert rig.behaviour.calls == 1


async def test_relayed_unavailable_is_not_retried_again(rig: Any, tmp_path: Any) -> None:
    channel = open_channel(f"unix:{tmp_path}/none.sock", peer="store")

    async def relay(_context: Any) -> None:
        await SchedulerServiceStub(channel).GetPool(scheduler_pb.GetPoolRequest(), timeout_s=LIMIT_S)

    rig.behaviour.act = relay
    with pytest.raises(Unavailable, match="STORE_DOWN"):
        await rig.scheduler.GetPool(scheduler_pb.GetPoolRequest(), timeout_s=LIMIT_S)
    assert rig.behaviour.calls == 1
    await channel.close()


async def test_outgoing_call_is_cut_to_the_callers_deadline_but_not_in_new_tasks(rig: Any) -> None:
    seen: list[float | None] = []

    async def nested(context: Any) -> None:
        if rig.behaviour.calls == 1:
            await rig.scheduler.GetPool(scheduler_pb.GetPoolRequest(), timeout_s=1000)
            await asyncio.create_task(rig.scheduler.GetPool(scheduler_pb.GetPoolRequest(), timeout_s=1000))
        else:
            seen.append(context.time_remaining())

    rig.behaviour.act = nested
    await rig.scheduler.GetPool(scheduler_pb.GetPoolRequest(), timeout_s=LIMIT_S)
    assert seen[0] is not None
    assert seen[0] <= LIMIT_S + 1  # gRPC rounds deadlines up on the wire
    assert seen[1] is not None
    assert seen[1] > LIMIT_S + 1


async def test_channel_finds_a_restarted_server_again(rig: Any) -> None:
    await rig.server.stop(0)
    with pytest.raises(Unavailable):
        await rig.scheduler.GetPool(scheduler_pb.GetPoolRequest(), timeout_s=LIMIT_S)
    from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceServicer

    class Again(SchedulerServiceServicer):
        async def GetPool(self, request: Any, context: Any) -> Any:
            return scheduler_pb.GetPoolResponse(queued_runs=8)

    server = RpcServer(rig.server.address)
    server.bind()
    await server.start([Registration(add_SchedulerServiceServicer_to_server, Again())])
    await rig.channel.wait_ready(LIMIT_S)
    pool = await rig.scheduler.GetPool(scheduler_pb.GetPoolRequest(), timeout_s=LIMIT_S)
    assert pool.queued_runs == 8
    await server.stop(0)
