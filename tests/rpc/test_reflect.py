from __future__ import annotations

from typing import Any

import pytest

from looseleaf.errors import InvalidArgument, NotFound
from looseleaf.rpc.reflect import Reflection, parse_requests

LIMIT_S = 20.0


async def answers(rig: Any, name: str, requests: list[Any]) -> list[Any]:
    reflection = Reflection(rig.channel)
    return [answer async for answer in reflection.call(await reflection.method(name), requests, LIMIT_S)]


async def test_services_and_symbols_are_described(rig: Any) -> None:
    reflection = Reflection(rig.channel)
    assert "looseleaf.v1.SchedulerService" in await reflection.services()
    text = await reflection.describe("looseleaf.v1.SchedulerService")
    assert "rpc RequestRun(looseleaf.v1.RequestRunRequest) returns (stream looseleaf.v1.RequestRunResponse);" in text
    message = await reflection.describe("looseleaf.v1.PrepareWorkerResponse")
    assert "  map<string, double> stage_ms = 3;" in message
    assert "  repeated looseleaf.v1.HostState hosts = 1;" in await reflection.describe("looseleaf.v1.GetPoolResponse")
    assert "WORKER_STAGE_GONE = 9;" in await reflection.describe("looseleaf.v1.WorkerStage")


async def test_all_four_kinds_of_method_are_called_with_json(rig: Any) -> None:
    assert await answers(rig, "looseleaf.v1.SchedulerService/GetPool", [{}]) == [{"queued_runs": 7}]
    news = await answers(rig, "looseleaf.v1.SchedulerService.RequestRun", [{"session_id": "s-1"}])
    assert [item["queue"]["position"] for item in news] == [3, 2, 1]
    units = [{"unit": {"unit_hash": "AAAA", "data": "eA=="}}] * 3
    assert await answers(rig, "looseleaf.v1.CheckpointStoreService/PutUnits", units) == [{"stored": 3}]
    echoed = await answers(rig, "looseleaf.v1.WorkerDaemonService/Execute", [{"input_reply": {"value": "hi"}}] * 2)
    assert echoed == [{"output": "aGk="}] * 2


async def test_answers_have_the_protos_names_or_those_of_protobufs_json(rig: Any) -> None:
    reflection = Reflection(rig.channel, json_names=True)
    method = await reflection.method("looseleaf.v1.SchedulerService/GetPool")
    assert [answer async for answer in reflection.call(method, [{}], LIMIT_S)] == [{"queuedRuns": 7}]


async def test_unknown_names_and_malformed_requests_are_refused(rig: Any) -> None:
    reflection = Reflection(rig.channel)
    for symbol in ("looseleaf.v1.Nothing", "", "looseleaf.v1.SchedulerService/Nothing"):
        with pytest.raises(NotFound, match="SYMBOL_UNKNOWN"):
            await reflection.method(symbol)
    malformed: list[Any] = [{"no_such_field": 1}, [], 3]
    for request in malformed:
        with pytest.raises(InvalidArgument, match="REQUEST_MALFORMED"):
            await answers(rig, "looseleaf.v1.SchedulerService/GetPool", [request])
    with pytest.raises(InvalidArgument, match="takes one request"):
        await answers(rig, "looseleaf.v1.SchedulerService/GetPool", [{}, {}])


@pytest.mark.parametrize(
    ("text", "streaming", "requests"),
    [
        ("", False, [{}]), ('{"a": 1}', False, [{"a": 1}]), ("", True, []), ('[{"a": 1}, {}]', True, [{"a": 1}, {}]),
        ('{"a": 1}\n{"b": 2}\n', True, [{"a": 1}, {"b": 2}]), ('{"a": 1}', True, [{"a": 1}]),
    ],
)
def test_request_text_is_read_as_one_or_many(text: str, streaming: bool, requests: list[Any]) -> None:
    assert parse_requests(text, streaming) == requests


def test_request_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="REQUEST_MALFORMED"):
        parse_requests("{", False)
