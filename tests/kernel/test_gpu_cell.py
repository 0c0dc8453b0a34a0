"""Events around the end of a submitted cell: none is lost, none overtakes another, none blocks the link."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from looseleaf.errors import CapacityExceeded, LooseLeafError, PreconditionFailed, Unavailable
from looseleaf.kernel import gpu_cell, gpu_run
from looseleaf.kernel.forwarder import Publishers
from looseleaf.kernel.gpu_cell import EVENTS_BEHIND_MAX, EVENTS_WAITING_MAX, Ask, GpuCell, Rejoin
from looseleaf.kernel.gpu_run import CellFrame, GpuRun

LIMIT_S = 10.0


class Link:
    """A daemon that answers when the test says so."""

    error: LooseLeafError | None = None

    def __init__(self) -> None:
        self.submitted: Future[Any] = Future()
        self.asked: tuple[str, dict[str, Any]] = ("", {})
        self.told: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    def request_future(self, type_: str, body: dict[str, Any]) -> Future[Any]:
        if type_ in ("submit", "resume"):
            self.asked = (type_, body)
            return self.submitted
        self.told.put_nowait((type_, body))
        done: Future[Any] = Future()
        done.set_result(({}, []))
        return done


class Bench:
    def __init__(self, ask: Ask | None = None, note: str = "", rejoin: Rejoin | None = None) -> None:
        self.link: Any = Link()
        self.shown: list[str] = []
        publishers = Publishers(
            lambda _parent, _kind, content, *_: self.shown.append(content["text"]), lambda *_: None, dict
        )  # fmt: skip
        self.cell = GpuCell(self.link, {"execution_id": "x"}, publishers.request({}), ask, note, rejoin)

    def end(self) -> None:
        self.link.submitted.set_result(({"saved": {"version": 2}}, []))


def output(text: str, execution_id: str = "x") -> dict[str, Any]:
    message = {"type": "stream", "name": "stdout", "text": text}
    return {"t": "event", "execution_id": execution_id, "kind": "output", "message": message}


async def test_event_behind_the_outcome_is_kept_until_it_is_handed_over() -> None:
    bench = Bench()
    bench.cell.take_event(output("before"))
    bench.end()
    result = await asyncio.wait_for(bench.cell.run(), LIMIT_S)
    assert result.saved == {"version": 2} and bench.shown == ["before"]
    # No turn of the event loop between: the kernel takes the version over meanwhile.
    late = output("behind")
    assert bench.cell.take_event(late) and not bench.cell.take_event(output("other", "y"))
    assert bench.cell.rest() == [late]
    assert not bench.cell.take_event(output("later")) and bench.cell.rest() == []


async def test_events_behind_the_outcome_never_hold_the_reader_up() -> None:
    bench = Bench()
    bench.end()
    await asyncio.wait_for(bench.cell.run(), LIMIT_S)
    taken: list[bool] = []

    def read() -> None:
        taken.extend(bench.cell.take_event(output("late")) for _ in range(EVENTS_BEHIND_MAX + EVENTS_WAITING_MAX))

    reader = threading.Thread(target=read)
    reader.start()
    reader.join(LIMIT_S)
    assert not reader.is_alive() and taken.count(True) == EVENTS_BEHIND_MAX == len(bench.cell.rest())


async def test_reader_that_waits_for_room_goes_on_at_the_outcome() -> None:
    bench = Bench()
    for _ in range(EVENTS_WAITING_MAX):
        bench.cell.take_event({"execution_id": "x", "kind": "unknown"})
    reader = threading.Thread(target=bench.cell.take_event, args=[output("late")])
    reader.start()
    bench.end()
    await asyncio.wait_for(bench.cell.run(), LIMIT_S)
    reader.join(LIMIT_S)
    shown = bench.shown + [event["message"]["text"] for event in bench.cell.rest()]
    assert not reader.is_alive() and shown == ["late"]


@pytest.mark.parametrize("fault", [OSError("no socket"), RuntimeError("a fault of ours")])
async def test_question_that_cannot_be_asked_is_answered_all_the_same(fault: Exception) -> None:
    async def ask(_prompt: str, _password: bool) -> str:
        raise fault

    bench = Bench(ask)
    bench.cell.take_event({"execution_id": "x", "kind": "input_request", "prompt": "?", "question": 3})
    run = asyncio.ensure_future(bench.cell.run())
    kind, body = await asyncio.wait_for(bench.link.told.get(), LIMIT_S)
    assert kind == "input_reply" and body["refused"] is True and body["question"] == 3
    bench.end()
    await asyncio.wait_for(run, LIMIT_S)


async def test_cell_that_an_interrupt_does_not_stop_says_what_another_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_cell, "INTERRUPT_GRACE_S", 1e-3)
    bench = Bench()
    run = asyncio.ensure_future(bench.cell.run())
    await asyncio.sleep(0)
    bench.cell.interrupt()
    await _until(lambda: bool(bench.shown))
    assert "another interrupt ends its GPU process" in bench.shown[0]
    bench.cell.interrupt()
    kills = [(await asyncio.wait_for(bench.link.told.get(), LIMIT_S))[1]["kill"] for _ in range(2)]
    assert kills == [False, True]
    bench.end()
    await asyncio.wait_for(run, LIMIT_S)
    assert len(bench.shown) == 1


@pytest.mark.parametrize("ends", ["ended", "outcome"])
async def test_cell_that_ends_after_its_interrupt_says_nothing(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    monkeypatch.setattr(gpu_cell, "INTERRUPT_GRACE_S", 600.0)
    bench = Bench()
    run = asyncio.ensure_future(bench.cell.run())
    await asyncio.sleep(0)
    bench.cell.interrupt()
    await _until(lambda: bench.cell._reminder is not None)
    if ends == "ended":
        bench.cell.take_event({"execution_id": "x", "kind": "ended", "reply": {"status": "error"}})
        await _until(lambda: bench.cell._reminder is None)
    bench.end()
    await asyncio.wait_for(run, LIMIT_S)
    assert bench.cell._reminder is None and bench.shown == []


async def test_note_is_told_once_the_cell_runs_and_not_of_one_that_does_not_begin_there() -> None:
    bench = Bench(note="breakpoints")
    running = {"execution_id": "x", "kind": "stage", "stage": gpu_cell.RUNNING}
    for event in ({**running, "stage": gpu_cell.RUNNING - 1}, running, running, output("first")):
        bench.cell.take_event(event)
    bench.end()
    await asyncio.wait_for(bench.cell.run(), LIMIT_S)
    assert bench.shown == ["breakpoints", "first"]

    bench = Bench(note="breakpoints")
    bench.cell.take_event({"execution_id": "x", "kind": "queue", "position": 1})
    bench.link.submitted.set_exception(CapacityExceeded("NO_GPU_FREE", "all are busy"))
    result = await asyncio.wait_for(bench.cell.run(), LIMIT_S)
    assert result.error is not None and result.error.reason == "NO_GPU_FREE" and bench.shown == []


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)


GONE = Unavailable("PEER_CLOSED", "the daemon was killed")


def news(kind: str, number: int = 0, **body: Any) -> dict[str, Any]:
    return {"t": "event", "execution_id": "x", "kind": kind, **({"n": number} if number else {}), **body}


async def test_cell_whose_daemon_is_lost_goes_on_with_the_next_one() -> None:
    links: list[Any] = [Link()]

    async def rejoin(_error: LooseLeafError) -> Any:
        # The person stops the cell while nobody is there.
        bench.link.error = GONE
        bench.cell.interrupt()
        return links[0]

    async def ask(_prompt: str, _password: bool) -> str:
        return "Ada"

    bench = Bench(ask, rejoin=rejoin)
    run = asyncio.ensure_future(bench.cell.run())
    for event in (
        news("lease", host_id="h1", lease_id="l-1"), news("stage", 1, stage=6), {**output("a"), "n": 2},
        news("input_request", 3, prompt="?", question=1),
    ):  # fmt: skip
        bench.cell.take_event(event)
    kind, answer = await asyncio.wait_for(bench.link.told.get(), LIMIT_S)
    bench.link.submitted.set_exception(GONE)
    # What the lost daemon may not have passed on is told again; the worker knows by its number whether it had it.
    told = [await asyncio.wait_for(links[0].told.get(), LIMIT_S) for _ in range(2)]
    assert told == [(kind, answer), ("interrupt", {"execution_id": "x", "kill": False})] and kind == "input_reply"
    resumed = {"execution_id": "x", "host_id": "h1", "lease_id": "l-1", "heard": 3}
    assert links[0].asked == ("resume", resumed)
    bench.cell.take_event({**output("b"), "n": 4})
    links[0].submitted.set_result(({"saved": {"version": 2}}, []))
    result = await asyncio.wait_for(run, LIMIT_S)
    assert result.saved == {"version": 2} and result.error is None and bench.shown == ["a", "b"]


@pytest.mark.parametrize("told", ["nothing", "lease", "stage"])
async def test_cell_whose_daemon_does_not_come_back_or_whose_host_is_not_known_is_lost(told: str) -> None:
    asked: list[LooseLeafError] = []

    async def rejoin(error: LooseLeafError) -> Any:
        asked.append(error)
        raise error

    bench = Bench(rejoin=rejoin)
    if told != "nothing":
        bench.cell.take_event(news("lease", host_id="h1", lease_id="l-1"))
    if told == "stage":
        bench.cell.take_event(news("stage", stage=1))
    bench.link.submitted.set_exception(GONE)
    result = await asyncio.wait_for(bench.cell.run(), LIMIT_S)
    assert result.error is GONE and asked == ([] if told == "nothing" else [GONE])


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (CapacityExceeded("EXECUTION_RUNNING", "it is followed already"), "HOST_LOST"),
        (PreconditionFailed("CELL_NOT_STARTED", "nothing was run"), "CELL_NOT_STARTED"),
    ],
)
async def test_daemon_that_refuses_to_follow_a_cell_which_may_run_does_not_make_it_unrun(
    refused: LooseLeafError, told: str
) -> None:
    links: list[Any] = [Link()]

    async def rejoin(_error: LooseLeafError) -> Any:
        return links[0]

    bench = Bench(rejoin=rejoin)
    bench.cell.take_event(news("lease", host_id="h1", lease_id="l-1"))
    bench.cell.take_event(news("stage", 1, stage=6))
    bench.link.submitted.set_exception(GONE)
    links[0].submitted.set_exception(refused)
    result = await asyncio.wait_for(bench.cell.run(), LIMIT_S)
    assert result.error is not None and result.error.reason == told


async def test_daemon_that_stays_away_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "AWAY_TOLD_AFTER_S", 0.0)
    monkeypatch.setattr(gpu_run, "RECONNECT_POLL_S", 0.0)
    tries: list[Any] = [GONE, GONE, "the link"]
    shown: list[str] = []

    async def connected() -> Any:
        if isinstance(found := tries.pop(0), LooseLeafError):
            raise found
        return found

    publishers = Publishers(
        lambda _parent, _kind, content, *_: shown.append(content["text"]), lambda *_: None, dict
    )  # fmt: skip
    fakes: Any = SimpleNamespace(config=SimpleNamespace(recover_timeout_s=9.0), connected=connected)
    run = GpuRun(fakes, fakes, fakes, CellFrame(1, publishers.request({}), None), 0.0)
    assert await run._rejoin(GONE) == "the link"  # type: ignore[comparison-overlap]
    assert len(shown) == 1 and "9 s at most" in shown[0]
    # Whatever else keeps it out ends the wait: the store is asked what became of the cell.
    tries.append(CapacityExceeded("TOO_MANY_KERNELS", "no room"))
    with pytest.raises(Unavailable, match="PEER_CLOSED"):
        await run._rejoin(GONE)
