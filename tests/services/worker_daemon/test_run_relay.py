from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest
from daemon_fakes import SESSION, down, until, within

from looseleaf.errors import (
    CapacityExceeded,
    Conflict,
    InvalidArgument,
    LooseLeafError,
    PreconditionFailed,
    Unavailable,
)
from looseleaf.ids import Epoch
from looseleaf.services.worker_daemon import caller_requests, run_relay
from looseleaf.services.worker_daemon.execution_log import LIFE_MESSAGES
from looseleaf.services.worker_daemon.run_relay import RunRelay
from looseleaf.services.worker_daemon.state_requests import StateOwner
from looseleaf.v1 import frontend_pb2, recipe_pb2, types_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb

BODY = {"execution_id": "x-1", "source": "x.cuda()", "epoch": 1, "version": 3, "execution_count": 4, "cell_id": "c"}
LEASE = types_pb2.Lease(
    lease_id="l-1", epoch=1, host=types_pb2.HostAddress(host_id="h1", address="unix:/h1"), gpu_indices=[2],
    worker_id="w-1", path="START_PATH_WARM",
)  # fmt: skip


def message(position: int, **fields: Any) -> pb.ExecuteResponse:
    return pb.ExecuteResponse(position=position, **fields)


def text(position: int) -> pb.ExecuteResponse:
    return message(position, output=msgpack.packb({"type": "stream", "name": "stdout", "text": str(position)}))


def saved(position: int) -> pb.ExecuteResponse:
    return message(position, saved=pb.CellSaved(version=4, host_id="h1"))


@dataclass
class FakeClients:
    """A frontend that leases when it may, and a host that goes by a script for each connection."""

    may_lease: asyncio.Event = field(default_factory=asyncio.Event)
    leases: bool = True
    connections: list[list[pb.ExecuteResponse | Exception | asyncio.Event]] = field(default_factory=list)
    submitted: list[frontend_pb2.SubmitCellRequest] = field(default_factory=list)
    sent: list[list[pb.ExecuteRequest]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    where: list[str] = field(default_factory=list)

    async def submit(
        self, request: frontend_pb2.SubmitCellRequest
    ) -> AsyncGenerator[frontend_pb2.SubmitCellResponse, None]:
        self.submitted.append(request)
        try:
            yield frontend_pb2.SubmitCellResponse(recipe=recipe_pb2.ExecutionRecipe(names=["x"]))
            yield frontend_pb2.SubmitCellResponse(queue=frontend_pb2.QueueNews(position=2, reason="waits"))
            await self.may_lease.wait()
            if self.leases:
                yield frontend_pb2.SubmitCellResponse(lease=LEASE)
        finally:
            self.closed.append("submit")

    async def address(self, _host_id: str) -> str:
        return self.where.pop(0) if self.where else "unix:/h1"

    async def execute(
        self, address: str, requests: AsyncIterator[pb.ExecuteRequest]
    ) -> AsyncGenerator[pb.ExecuteResponse, None]:
        sent: list[pb.ExecuteRequest] = []
        self.sent.append(sent)

        async def write() -> None:
            async for request in requests:
                sent.append(request)  # noqa: PERF401 - what was sent so far counts

        writer = asyncio.create_task(write())
        try:
            await until(lambda: bool(sent))
            for item in self.connections.pop(0):
                if isinstance(item, asyncio.Event):
                    await item.wait()
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield item
        finally:
            writer.cancel()
            self.closed.append("execute")


class Kernel:
    """Who submitted the cell; hears its events."""

    def __init__(self, clients: FakeClients, **body: Any) -> None:
        self.events: list[dict[str, Any]] = []
        fakes: Any = clients
        self.relay = RunRelay(StateOwner(SESSION, Epoch(1)), {**BODY, **body}, fakes, self._hear)

    async def _hear(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events]

    @property
    def texts(self) -> list[str]:
        return [event["message"]["text"] for event in self.events if event["kind"] == "output"]


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> FakeClients:
    monkeypatch.setattr(run_relay, "REJOIN_DELAY_S", 0.001)
    made = FakeClients()
    made.may_lease.set()
    return made


async def test_cell_is_carried_from_its_recipe_to_its_save(clients: FakeClients) -> None:
    stage = pb.StageNews(stage="WORKER_STAGE_RUNNING", worker_id="w-1", pid=7, elapsed_ms=1.5)
    ended = pb.CellEnded(reply=msgpack.packb({"status": "ok"}), run_s=0.5)
    asked = pb.InputRequest(prompt="?", password=True)
    clients.connections = [
        [message(1, stage=stage), text(2), message(3, input_request=asked), message(4, ended=ended), saved(5)]
    ]
    kernel = Kernel(clients, context={"columns": 80})
    found = await within(kernel.relay.run())
    assert (found["version"], found["host_id"], found["error_reason"]) == (4, "h1", "")
    assert kernel.kinds == ["recipe", "queue", "lease", "stage", "output", "input_request", "ended"]
    assert all(event["execution_id"] == "x-1" for event in kernel.events)
    assert kernel.events[2] == {
        "execution_id": "x-1", "kind": "lease", "host_id": "h1", "gpu": 2, "path": 2, "worker_id": "w-1",
        "lease_id": "l-1",
    }  # fmt: skip
    start = clients.sent[0][0].start
    assert (start.lease_id, start.version, list(start.recipe.names)) == ("l-1", 3, ["x"])
    assert msgpack.unpackb(start.context) == {"columns": 80}
    assert clients.closed == ["submit", "execute"]


async def test_what_the_cell_needs_of_one_worker_is_told_to_scheduler_and_host(clients: FakeClients) -> None:
    clients.connections = [[saved(1)]]
    kernel = Kernel(clients, needed_worker="w-1", needed_names=["it"])
    await within(kernel.relay.run())
    [request] = clients.submitted
    assert (request.needed_worker_id, list(request.needed_names)) == ("w-1", ["it"])
    assert list(clients.sent[0][0].start.needed_names) == ["it"]


async def test_connection_that_breaks_is_joined_again_and_nothing_is_heard_twice(clients: FakeClients) -> None:
    clients.connections = [
        [text(1), text(2), down("host")],
        [text(1), text(2), text(3)],
        # What was dropped meanwhile is told in one message at the place of the last that is gone.
        [text(2), text(3), text(4), saved(5)],
    ]
    kernel = Kernel(clients)
    await within(kernel.relay.run())
    assert kernel.texts == ["1", "2", "3", "4"] and len(clients.sent) == 3


async def test_note_about_dropped_output_does_not_hide_what_follows(clients: FakeClients) -> None:
    clients.connections = [[text(1), down("host")], [text(50), text(51), saved(52)]]
    kernel = Kernel(clients)
    await within(kernel.relay.run())
    assert kernel.texts == ["1", "50", "51"]


async def test_host_that_stays_away_is_given_up(clients: FakeClients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_relay, "REJOIN_S", 0.02)
    clients.connections = [[down("host")] for _ in range(1000)]
    with pytest.raises(Unavailable, match="HOST_LOST.*h1"):
        await within(Kernel(clients).relay.run())


@pytest.mark.parametrize("reason", ["LEASE_UNKNOWN", "LEASE_USED"])
async def test_host_that_was_started_anew_says_lost_not_unrun(clients: FakeClients, reason: str) -> None:
    clients.connections = [[down("host")], [PreconditionFailed(reason, "nothing was run")]]
    with pytest.raises(Unavailable, match="HOST_LOST"):
        await within(Kernel(clients).relay.run())


async def test_host_that_knows_that_the_cell_had_not_begun_is_believed(clients: FakeClients) -> None:
    clients.connections = [[down("host")], [PreconditionFailed("CELL_NOT_STARTED", "nothing was run")]]
    with pytest.raises(PreconditionFailed, match="CELL_NOT_STARTED"):
        await within(Kernel(clients).relay.run())


async def test_lease_that_is_refused_at_once_ran_nothing(clients: FakeClients) -> None:
    clients.connections = [[PreconditionFailed("LEASE_UNKNOWN", "nothing was run")]]
    with pytest.raises(PreconditionFailed, match="LEASE_UNKNOWN"):
        await within(Kernel(clients).relay.run())


def told(position: int, number: int, life: int = 1) -> pb.ExecuteResponse:
    """Text `number` of the worker, as the daemon tells it that has the cell in its `life`."""
    return pb.ExecuteResponse(
        position=life * LIFE_MESSAGES + position, worker_event=number,
        output=msgpack.packb({"type": "stream", "name": "stdout", "text": str(number)}),
    )  # fmt: skip


async def test_kernel_that_lost_its_daemon_hears_the_rest_of_its_cell_once(clients: FakeClients) -> None:
    clients.where = ["", "unix:/h1"]
    clients.connections = [[told(1, 3), told(2, 4), told(3, 5), down("host")], [told(3, 5), told(4, 6), saved(9 << 40)]]
    kernel = Kernel(clients, heard=4, host_id="h1", lease_id="l-1")
    found = await within(kernel.relay.resume())
    assert found["version"] == 4 and kernel.texts == ["5", "6"] and kernel.kinds == ["output", "output"]
    assert [event["n"] for event in kernel.events] == [5, 6]
    start = clients.sent[0][0].start
    assert (start.execution_id, start.lease_id, start.follow_only) == ("x-1", "l-1", True) and not clients.submitted


async def test_host_whose_daemon_was_started_anew_tells_all_of_its_cell_again(clients: FakeClients) -> None:
    clients.connections = [
        [told(1, 1, 0), told(2, 2, 0), down("host")],
        # The worker has kept what it told from its second message on; its daemon's positions begin anew.
        [told(1, 2), told(2, 3), saved(9 << 40)],
    ]
    kernel = Kernel(clients)
    await within(kernel.relay.run())
    assert kernel.texts == ["1", "2", "3"]


async def test_answer_and_stop_that_a_lost_host_may_have_had_are_told_again(clients: FakeClients) -> None:
    may_go = asyncio.Event()
    clients.connections = [[told(1, 1, 0), may_go, down("host")], [may_go, told(1, 1), told(2, 2), saved(9 << 40)]]
    kernel = Kernel(clients)
    running = asyncio.create_task(kernel.relay.run())
    await until(lambda: kernel.texts == ["1"])
    await kernel.relay.input_reply(pb.InputReply(value="Ada", question=4))
    await kernel.relay.interrupt(kill=False)
    await until(lambda: len(clients.sent[0]) == 3)
    clients.where = ["unix:/h1-again"]
    may_go.set()
    await within(running)
    again = clients.sent[1]
    assert again[1].input_reply.question == 4 and again[2].HasField("interrupt") and kernel.texts == ["1", "2"]


async def test_stop_that_went_out_long_ago_is_not_told_again(
    clients: FakeClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_requests, "INTERRUPT_AGAIN_S", 0.0)
    may_go = asyncio.Event()
    clients.connections = [[told(1, 1, 0), may_go, down("host")], [told(1, 1), told(2, 2), saved(9 << 40)]]
    kernel = Kernel(clients)
    running = asyncio.create_task(kernel.relay.run())
    await until(lambda: kernel.texts == ["1"])
    await kernel.relay.interrupt(kill=False)
    await until(lambda: len(clients.sent[0]) == 2)
    clients.where = ["unix:/h1-again"]
    may_go.set()
    await within(running)
    assert not any(request.HasField("interrupt") for request in clients.sent[1])


async def test_what_no_daemon_and_no_worker_has_any_more_is_told_as_lost(clients: FakeClients) -> None:
    clients.connections = [[told(1, 7), told(2, 8), saved(9 << 40)]]
    kernel = Kernel(clients, heard=4, host_id="h1", lease_id="l-1")
    await within(kernel.relay.resume())
    assert "2 earlier output messages were dropped" in kernel.texts[0] and kernel.texts[1:] == ["7", "8"]


@pytest.mark.parametrize("gone", ["host", "cell"])
async def test_cell_that_nobody_has_any_more_is_lost_and_not_started(
    clients: FakeClients, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    monkeypatch.setattr(run_relay, "REJOIN_S", 0.02)
    if gone == "host":
        clients.where = [""] * 1000
    clients.connections = [[PreconditionFailed("LEASE_UNKNOWN", "it is not known here")]]
    with pytest.raises(Unavailable, match="HOST_LOST"):
        await within(Kernel(clients, heard=4, host_id="h1", lease_id="l-1").relay.resume())


async def test_frontend_without_an_answer_is_an_error(clients: FakeClients) -> None:
    clients.leases = False
    with pytest.raises(Unavailable, match="NO_LEASE.*nothing was run"):
        await within(Kernel(clients).relay.run())


async def waiting(kernel: Kernel, clients: FakeClients, happened: Callable[[], bool]) -> asyncio.Task[Any]:
    task = asyncio.create_task(kernel.relay.run())
    await until(happened)
    return task


async def test_interrupt_in_the_queue_ends_the_wait(clients: FakeClients) -> None:
    clients.may_lease.clear()
    kernel = Kernel(clients)
    task = await waiting(kernel, clients, lambda: "queue" in kernel.kinds)
    await kernel.relay.interrupt(kill=False)
    with pytest.raises(Conflict, match="INTERRUPTED.*nothing was run"):
        await within(task)
    assert clients.closed == ["submit"]


async def test_cell_that_waits_for_no_gpu_leaves_the_queue_at_once(clients: FakeClients) -> None:
    clients.may_lease.clear()
    kernel = Kernel(clients, waits=False)
    with pytest.raises(CapacityExceeded, match="NO_GPU_FREE.*nothing was run"):
        await within(kernel.relay.run())
    assert clients.closed == ["submit"] and "lease" not in kernel.kinds


async def test_interrupts_and_input_are_passed_on(clients: FakeClients) -> None:
    may_end = asyncio.Event()
    clients.connections = [[text(1), may_end, saved(2)]]
    kernel = Kernel(clients)
    task = await waiting(kernel, clients, lambda: bool(kernel.texts))
    await kernel.relay.interrupt(kill=True)
    await kernel.relay.input_reply(pb.InputReply(value="yes", question=3))
    await kernel.relay.comm({"origin": "m-1", "message": {"type": "comm_msg"}})
    await until(lambda: len(clients.sent[0]) == 4)
    may_end.set()
    await within(task)
    _start, interrupt, answer, comm = clients.sent[0]
    assert interrupt.interrupt.kill and answer.input_reply == pb.InputReply(value="yes", question=3)
    assert msgpack.unpackb(comm.comm) == {"origin": "m-1", "message": {"type": "comm_msg"}}


def left(position: int, state: str) -> pb.ExecuteResponse:
    news = pb.LeftNews(items=[pb.LeftItem(kind="thread", name="t")], limit_s=60.0)
    news.MergeFrom(pb.LeftNews(state=pb.LeftState.Value(f"LEFT_STATE_{state.upper()}")))
    return message(position, left=news)


async def test_outcome_is_told_before_what_the_cell_left_running_ends(clients: FakeClients) -> None:
    may_end = asyncio.Event()
    running = message(2, saved=pb.CellSaved(version=4, host_id="h1", left_running=True))
    clients.connections = [[text(1), running, text(3), left(4, "held"), may_end, left(5, "ended")]]
    kernel = Kernel(clients)
    saved_body = await within(kernel.relay.run())
    assert saved_body["left_running"] and saved_body["version"] == 4
    await until(lambda: "left" in kernel.kinds)
    assert kernel.texts == ["1", "3"]
    await kernel.relay.release_left()
    await until(lambda: clients.sent[0][-1].HasField("release_left"))
    may_end.set()
    assert kernel.relay.following is not None
    await within(kernel.relay.following)
    assert [event["state"] for event in kernel.events if event["kind"] == "left"] == ["held", "ended"]


async def test_kernel_that_goes_lets_what_its_cell_left_make_way(clients: FakeClients) -> None:
    may_end = asyncio.Event()
    running = message(1, saved=pb.CellSaved(version=4, host_id="h1", left_running=True))
    clients.connections = [[running, left(2, "held"), may_end, text(3), left(4, "released")]]
    kernel = Kernel(clients)
    await within(kernel.relay.run())
    await until(lambda: "left" in kernel.kinds)
    leaving = asyncio.create_task(kernel.relay.leave())
    await until(lambda: clients.sent[0][-1].HasField("release_left"))
    may_end.set()
    await within(leaving)
    assert kernel.relay.following is not None and kernel.relay.following.done()
    assert not kernel.relay.following.cancelled(), "the host was heard to the end"
    assert [event["state"] for event in kernel.events if event["kind"] == "left"] == ["held"] and kernel.texts == []


async def test_kernel_that_goes_does_not_wait_for_a_host_that_is_silent(
    clients: FakeClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_relay, "LEAVE_S", 0.0)
    running = message(1, saved=pb.CellSaved(version=4, host_id="h1", left_running=True))
    clients.connections = [[running, asyncio.Event()]]
    relay = Kernel(clients).relay
    await relay.leave()  # before it began there is nothing to leave
    await within(relay.run())
    await within(relay.leave())
    await until(lambda: clients.closed[-1:] == ["execute"])
    assert relay.following is not None and relay.following.cancelled()


async def test_interrupts_that_nobody_takes_are_bounded(clients: FakeClients) -> None:
    relay = Kernel(clients).relay
    for _ in range(caller_requests.REQUESTS_WAITING_MAX):
        await relay.interrupt(kill=False)
    with pytest.raises(CapacityExceeded, match="INTERRUPT_PENDING"):
        await relay.interrupt(kill=False)


@pytest.mark.parametrize("stage", ["queue", "run"])
async def test_kernel_that_goes_closes_its_streams(clients: FakeClients, stage: str) -> None:
    clients.connections = [[text(1), asyncio.Event()]]
    if stage == "queue":
        clients.may_lease.clear()
    kernel = Kernel(clients)
    task = await waiting(kernel, clients, lambda: bool(kernel.texts) if stage == "run" else "queue" in kernel.kinds)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(task)
    await until(lambda: clients.closed[-1:] == ["submit" if stage == "queue" else "execute"])


@pytest.mark.parametrize("body", [{"source": 3}, {"epoch": "1"}, {"version": -1}])
async def test_malformed_cell_is_refused(clients: FakeClients, body: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="FIELD_MALFORMED"):
        await within(Kernel(clients, **body).relay.run())


async def test_error_of_the_host_is_the_cells(clients: FakeClients) -> None:
    clients.connections = [[CapacityExceeded("TOO_MANY", "no room")]]
    with pytest.raises(LooseLeafError, match="TOO_MANY"):
        await within(Kernel(clients).relay.run())
