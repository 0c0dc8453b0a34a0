"""Comm messages of the front end while a GPU cell runs: to its worker, or held until it is over, in order."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from looseleaf.kernel import comm_traffic
from looseleaf.kernel.comm_traffic import CommPlaces, CommTraffic
from looseleaf.kernel.forwarder import Publishers


class Run:
    """A GPU cell whose worker has the comm "there"."""

    def __init__(self) -> None:
        self.over: Future[None] = Future()
        self.got: list[dict[str, Any]] = []

    def send_comm(self, _origin: str, message: dict[str, Any]) -> Future[bool]:
        done: Future[bool] = Future()
        self.got.append(message)
        done.set_result(message["comm_id"] == "there")
        return done


class Session:
    """Nothing is missing here."""

    tracker = manifest = None


class Shadows:
    def get(self, _comm_id: str) -> None:
        return None


class Bench:
    def __init__(self) -> None:
        self.run: Run | None = Run()
        self.events: list[Any] = []
        publishers = Publishers(
            lambda parent, kind, content, *_: self.events.append((kind, parent["header"]["msg_id"], content["text"])),
            lambda *_: None, dict,
        )  # fmt: skip
        places: Any = CommPlaces(
            Session(), Shadows(), publishers, lambda: self.run,  # type: ignore[arg-type]
            lambda status, message: self.events.append((status, message["header"]["msg_id"])),
            lambda work: Future(), lambda: self.events.append("changed"),
        )  # fmt: skip
        self.traffic = CommTraffic(places)

    def say(self, msg_id: str, comm_id: str) -> asyncio.Task[None]:
        message = {"header": {"msg_id": msg_id}, "content": {"comm_id": comm_id, "data": {}}, "buffers": [b"raw"]}
        handler = self.traffic.handler("comm_msg", lambda _s, _i, m: self.events.append(m["header"]["msg_id"]))
        return asyncio.ensure_future(handler(None, None, message))

    def end(self) -> None:
        run, self.run = self.run, None
        assert run is not None
        run.over.set_result(None)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_message_for_the_cells_comm_is_served_there_and_framed_at_its_end() -> None:
    bench = Bench()
    run = bench.run
    task = bench.say("a", "there")
    await turns()
    assert bench.events == [] and run is not None and run.got[0]["buffers"] == [b"raw"]
    bench.end()
    await asyncio.wait_for(task, 10)
    assert bench.events == [("busy", "a"), ("idle", "a"), "changed"]


async def test_messages_for_widgets_here_wait_in_order() -> None:
    bench = Bench()
    tasks = [bench.say(name, "here") for name in "abc"]
    await turns()
    assert bench.events == []
    bench.end()
    await asyncio.wait_for(asyncio.gather(*tasks), 10)
    assert [event for event in bench.events if isinstance(event, str) and event != "changed"] == ["a", "b", "c"]


async def test_message_waits_for_the_cell_that_follows_at_once() -> None:
    bench = Bench()
    task = bench.say("a", "here")
    await turns()
    bench.end()
    bench.run = Run()
    await turns()
    assert bench.events == []
    bench.end()
    await asyncio.wait_for(task, 10)
    assert "a" in bench.events


async def test_message_beyond_the_limit_is_dropped_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm_traffic, "HELD_MAX", 2)
    bench = Bench()
    tasks = [bench.say(name, "here") for name in "abc"]
    await turns()
    (said,) = [event for event in bench.events if event[0] == "stream"]
    assert said[1] == "c" and "dropped" in said[2]
    bench.end()
    await asyncio.wait_for(asyncio.gather(*tasks), 10)
    assert "c" not in bench.events and {"a", "b"} <= {event for event in bench.events if isinstance(event, str)}


async def test_message_between_cells_is_the_ordinary_kernels() -> None:
    bench = Bench()
    bench.run = None
    await bench.say("a", "here")
    assert bench.events == ["a", "changed"]
