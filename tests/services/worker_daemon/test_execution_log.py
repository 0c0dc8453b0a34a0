from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from daemon_fakes import within

from looseleaf.ids import ExecutionId
from looseleaf.services.worker_daemon import execution_log
from looseleaf.services.worker_daemon.execution_log import ExecutionLog, ExecutionRecord
from looseleaf.v1 import worker_daemon_pb2 as pb


def output(text: str) -> pb.ExecuteResponse:
    return pb.ExecuteResponse(output=msgpack.packb({"type": "stream", "name": "stdout", "text": text}))


def saved() -> pb.ExecuteResponse:
    return pb.ExecuteResponse(saved=pb.CellSaved(version=2))


def record_of(*texts: str) -> ExecutionRecord:
    record = ExecutionRecord(ExecutionId("x-1"))
    for text in texts:
        record.add(output(text))
    return record


async def heard(record: ExecutionRecord) -> list[tuple[int, str]]:
    """(position, text) of each message; the text of what is no output is its kind."""
    return [
        (message.position, msgpack.unpackb(message.output)["text"] if message.output else message.WhichOneof("message"))
        async for message in record.follow()
    ]


async def test_follow_hears_everything_from_the_beginning_and_what_comes() -> None:
    record = record_of("a")
    following = asyncio.create_task(heard(record))
    await asyncio.sleep(0)
    record.add(output("b"))
    record.add(saved())
    assert await within(following) == [(1, "a"), (2, "b"), (3, "saved")] == await heard(record)


async def test_record_after_saved_takes_nothing() -> None:
    record = record_of("a")
    record.add(saved())
    record.add(output("late"))
    assert record.done and [text for _position, text in await heard(record)] == ["a", "saved"]


async def test_record_over_its_limit_drops_the_oldest_and_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_log, "MESSAGES_BYTES_MAX", 1000)
    record = record_of(*("x" * 80 for _ in range(50)))
    record.add(saved())
    messages = await heard(record)
    assert record.size_bytes <= 1000
    position, note = messages[0]
    assert f"{position} earlier output messages were dropped" in note
    assert [number for number, _text in messages[1:]] == list(range(position + 1, 52))


async def test_slow_follower_is_told_what_it_missed_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_log, "MESSAGES_BYTES_MAX", 1000)
    record = record_of("first")
    messages: Any = record.follow()
    assert (await anext(messages)).position == 1
    for _ in range(50):
        record.add(output("x" * 80))
    missed = await anext(messages)
    assert b"dropped" in missed.output and (await anext(messages)).position == missed.position + 1
    await messages.aclose()


async def test_unheard_counts_from_the_last_follower_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(execution_log, "time", SimpleNamespace(monotonic=lambda: now))
    record = record_of("a")
    now = 105.0
    assert record.unheard_s() == 5.0
    messages: Any = record.follow()
    await anext(messages)
    now = 200.0
    assert record.unheard_s() == 0.0
    await messages.aclose()
    now = 207.0
    assert record.unheard_s() == 7.0


def ended(log: ExecutionLog, number: int, text: str = "") -> ExecutionRecord:
    record = log.start(ExecutionId(f"x-{number}"))
    record.add(output(text))
    record.add(saved())
    return record


async def test_log_keeps_the_newest_ended_executions_and_all_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_log, "EXECUTIONS_KEPT_MAX", 3)
    log = ExecutionLog()
    running = log.start(ExecutionId("x-0"))
    for number in range(1, 7):
        ended(log, number)
    log.start(ExecutionId("x-7"))
    kept = [number for number in range(8) if log.get(ExecutionId(f"x-{number}")) is not None]
    assert kept == [0, 5, 6, 7] and log.get(ExecutionId("x-0")) is running


async def test_log_over_its_limit_keeps_only_the_end_of_old_executions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_log, "ENDED_BYTES_MAX", 2000)
    log = ExecutionLog()
    records = [ended(log, number, "x" * 900) for number in range(4)]
    log.start(ExecutionId("x-9"))
    texts = [[text for _position, text in await heard(record)] for record in records]
    assert [len(text[0]) == 900 for text in texts] == [False, False, True, True]
    assert all(text[-1] == "saved" for text in texts) and "1 earlier" in texts[0][0]


def test_execution_starts_once() -> None:
    log = ExecutionLog()
    log.start(ExecutionId("x-1"))
    with pytest.raises(AssertionError):
        log.start(ExecutionId("x-1"))
