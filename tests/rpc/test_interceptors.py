from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest
import structlog

from looseleaf import logs
from looseleaf.errors import Internal, NotFound, Timeout, Unsupported
from looseleaf.v1 import checkpoint_store_pb2 as store_pb
from looseleaf.v1 import scheduler_pb2 as scheduler_pb
from looseleaf.v1 import worker_daemon_pb2 as daemon_pb

LIMIT_S = 20.0
SECRET = "the person's own text"


async def unary(rig: Any) -> None:
    await rig.scheduler.GetPool(scheduler_pb.GetPoolRequest(), timeout_s=LIMIT_S)


async def server_stream(rig: Any) -> None:
    async for _message in rig.scheduler.RequestRun(scheduler_pb.RequestRunRequest(), timeout_s=LIMIT_S):
        pass


async def client_stream(rig: Any) -> None:
    await rig.store.PutUnits([store_pb.PutUnitsRequest()], timeout_s=LIMIT_S)


async def two_way(rig: Any) -> None:
    async with rig.daemon.Execute(timeout_s=LIMIT_S) as call:
        await call.write(daemon_pb.ExecuteRequest(input_reply={"value": "x"}))
        await call.read()


KINDS = [unary, server_stream, client_stream, two_way]


def counted(rig: Any, name: str, **labels: str) -> float:
    return float(rig.server.metrics.registry.get_sample_value(name, labels) or 0.0)


@pytest.mark.parametrize("kind", KINDS)
async def test_our_error_reaches_the_client_whole(rig: Any, kind: Any) -> None:
    async def refuse(_context: Any) -> None:
        raise NotFound("CHECKPOINT_UNKNOWN", "there is none", version=3)

    rig.behaviour.act = refuse
    with pytest.raises(NotFound) as caught:
        await kind(rig)
    assert caught.value.reason == "CHECKPOINT_UNKNOWN"
    assert caught.value.message == "there is none"
    assert caught.value.fields == {"version": 3}


@pytest.mark.parametrize("kind", KINDS)
async def test_unexpected_exception_becomes_internal_without_its_text(rig: Any, kind: Any) -> None:
    async def fail(_context: Any) -> None:
        raise ValueError(SECRET)

    rig.behaviour.act = fail
    with structlog.testing.capture_logs() as events:
        with pytest.raises(Internal) as caught:
            await kind(rig)
    assert caught.value.reason == "BUG"
    assert SECRET not in str(caught.value) + json.dumps(caught.value.fields)
    logged = [event for event in events if event["event"] == "rpc_failed_unexpectedly"]
    assert [event["error_id"] for event in logged] == [caught.value.fields["error_id"]]


async def test_method_that_the_servicer_lacks_is_unsupported(rig: Any) -> None:
    with pytest.raises(Unsupported, match="METHOD_UNKNOWN"):
        await rig.store.ListSessions(store_pb.ListSessionsRequest(), timeout_s=LIMIT_S)


async def test_servicers_own_time_limit_is_a_timeout(rig: Any) -> None:
    async def late(_context: Any) -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    rig.behaviour.act = late
    with pytest.raises(Timeout, match="TIME_LIMIT"):
        await unary(rig)


async def test_servicers_own_abort_passes_with_its_code(rig: Any) -> None:
    async def abort(context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "plain")

    rig.behaviour.act = abort
    with pytest.raises(NotFound, match="RPC_NOT_FOUND"):
        await unary(rig)
    await rig.server.stop(LIMIT_S)  # the client hears of the end before the server has counted it
    method = "looseleaf.v1.SchedulerService/GetPool"
    assert counted(rig, "looseleaf_rpc_requests_total", method=method, code="NOT_FOUND") == 1


async def test_log_context_has_the_ids_of_the_request_and_none_after_it(rig: Any) -> None:
    seen: list[dict[str, Any]] = []

    async def look(_context: Any) -> None:
        seen.append(structlog.contextvars.get_contextvars())

    rig.behaviour.act = look
    request = scheduler_pb.RequestRunRequest(session_id="s-1", execution_id="x-1", epoch=4)
    with structlog.contextvars.bound_contextvars(request="r-1"):
        async for _message in rig.scheduler.RequestRun(request, timeout_s=LIMIT_S):
            pass
    assert seen == [{
        "request": "r-1", "method": "looseleaf.v1.SchedulerService/RequestRun",
        "session": "s-1", "execution": "x-1", "epoch": 4,
    }]
    assert structlog.contextvars.get_contextvars() == {}


async def test_ids_of_the_caller_go_along_and_give_way_to_the_requests_and_the_servers_own(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    async def look(_context: Any) -> None:
        seen.append(structlog.contextvars.get_contextvars())

    rig.behaviour.act = look
    request = scheduler_pb.RequestRunRequest(session_id="s-1")
    caller = {"session": "s-0", "execution": "x-1", "cell": "häuser", "worker": "w" * 200, "host": "h1", "epoch": 9}
    with structlog.contextvars.bound_contextvars(**caller):
        async for _message in rig.scheduler.RequestRun(request, timeout_s=LIMIT_S):
            pass
        monkeypatch.setitem(logs._own_ids, "host", "h7")
        async for _message in rig.scheduler.RequestRun(request, timeout_s=LIMIT_S):
            pass
    first, second = ({key: value for key, value in ids.items() if key not in ("request", "method")} for ids in seen)
    assert first == {"session": "s-1", "execution": "x-1", "host": "h1"}
    assert second == {"session": "s-1", "execution": "x-1", "host": "h7"}


async def test_metrics_count_outcomes_and_nothing_stays_running(rig: Any) -> None:
    async def wait(_context: Any) -> None:
        await asyncio.Event().wait()

    method = "looseleaf.v1.SchedulerService/GetPool"
    await unary(rig)
    rig.behaviour.act = wait
    # On a busy machine the deadline may pass before the handler begins: then it is asked once more, with more time.
    for timeout_s in (0.1, 1.0, 10.0):
        with pytest.raises(Timeout):
            await rig.scheduler.GetPool(scheduler_pb.GetPoolRequest(), timeout_s=timeout_s)
        if rig.behaviour.calls > 1:
            break
    async with asyncio.timeout(LIMIT_S):
        await rig.behaviour.cancelled.wait()
    await rig.server.stop(LIMIT_S)
    assert counted(rig, "looseleaf_rpc_running", method=method) == 0
    assert counted(rig, "looseleaf_rpc_requests_total", method=method, code="OK") == 1
    failed = [
        counted(rig, "looseleaf_rpc_errors_total", method=method, reason=reason)
        for reason in ("DEADLINE_EXCEEDED", "CANCELLED")
    ]
    assert sum(failed) >= 1
    # Each call has one outcome, however many it took.
    assert counted(rig, "looseleaf_rpc_latency_seconds_count", method=method) == 1 + sum(failed)
