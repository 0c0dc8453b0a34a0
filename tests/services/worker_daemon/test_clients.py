"""The daemon's outgoing calls against real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_fakes import SESSION, until, within

from looseleaf.errors import CapacityExceeded, InvalidArgument
from looseleaf.ids import HostId
from looseleaf.rpc.client import Channel, open_channel
from looseleaf.rpc.server import Registration, RpcServer
from looseleaf.services.worker_daemon import clients as clients_module
from looseleaf.services.worker_daemon.clients import Clients, Peers
from looseleaf.v1 import frontend_pb2, recipe_pb2, types_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb
from looseleaf.v1.frontend_pb2_grpc import FrontendServiceServicer, add_FrontendServiceServicer_to_server
from looseleaf.v1.worker_daemon_pb2_grpc import (
    WorkerDaemonServiceServicer,
    add_WorkerDaemonServiceServicer_to_server,
)


class Frontend(FrontendServiceServicer):
    """Answers at once; hears what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def RecordRuns(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        return frontend_pb2.RecordRunsResponse(next_sequence=len(request.runs) + 1)

    async def PrepareCell(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        recipe = recipe_pb2.ExecutionRecipe(names=["x"], label="DEVICE_LABEL_GPU", confidence=0.5)
        return frontend_pb2.PrepareCellResponse(recipe=recipe, worker_id="w-1", prepare_ms=2.0)

    async def SubmitCell(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        await context.write(frontend_pb2.SubmitCellResponse(lease=types_pb2.Lease(lease_id="l-1")))


class Host(WorkerDaemonServiceServicer):
    """Echoes each request as an output."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.released: list[Any] = []
        self.evicted: list[str] = []
        self.evicted_here = asyncio.Event()
        self.addresses_known = asyncio.Event()
        self.addresses_known.set()

    async def ReleaseUnsaved(self, request: Any, context: Any) -> Any:
        self.released.append((request.session_id, request.worker_id, list(request.names)))
        return pb.ReleaseUnsavedResponse()

    async def EvictSession(self, request: Any, context: Any) -> Any:
        self.evicted.append(request.session_id)
        return pb.EvictSessionResponse(evicted=2)

    async def Execute(self, requests: Any, context: Any) -> Any:
        try:
            async for request in requests:
                if request.HasField("interrupt"):
                    return
                yield pb.ExecuteResponse(output=request.WhichOneof("message").encode())
        finally:
            self.ended.set()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[tuple[Clients, Frontend, Host, str]]:
    frontend, host = Frontend(), Host()
    address = f"unix:{tmp_path}/x.sock"
    server = RpcServer(address)
    server.bind()
    await server.start([
        Registration(add_FrontendServiceServicer_to_server, frontend),
        Registration(add_WorkerDaemonServiceServicer_to_server, host),
    ])  # fmt: skip
    opened: list[Channel] = []

    def new_channel(target: str, peer: str) -> Channel:
        opened.append(open_channel(target, peer))
        return opened[-1]

    async def evict(_session_id: str) -> int:
        host.evicted_here.set()
        return 3

    async def addresses(_wanted: Any) -> dict[str, str]:
        await host.addresses_known.wait()
        return {"h0": f"unix:{tmp_path}/own.sock", "h1": address, "h2": f"unix:{tmp_path}/nobody.sock"}

    store: Any = SimpleNamespace(tenant="team")
    clients = Clients(
        store, new_channel(address, "frontend"), Peers(new_channel), HostId("h0"), evict, addresses
    )  # fmt: skip
    yield clients, frontend, host, address
    for channel in opened:
        await channel.close()
    await server.stop(0)


async def test_runs_are_recorded_as_they_came(rig: Any) -> None:
    clients, frontend, _host, _address = rig
    runs = [{"sequence": 1, "cell_id": "c", "source": "x = 1", "ok": True}, {"sequence": 2, "source": "y", "ok": False}]
    runs[1]["observed"] = {"guess": "g", "touched_gpu": True, "peak_bytes": 5, "duration_s": 0.5}
    assert await clients.record_runs(SESSION, runs) == 3
    heard = [(run.sequence, run.source, run.ok) for run in frontend.asked[0].runs]
    assert heard == [(1, "x = 1", True), (2, "y", False)]
    seen = frontend.asked[0].runs[1].observed
    assert (seen.guess, seen.touched_gpu, seen.peak_bytes, seen.duration_s) == ("g", True, 5, 0.5)
    assert not frontend.asked[0].runs[0].HasField("observed")


@pytest.mark.parametrize(
    "run", [3, {}, {"sequence": 0, "source": "x", "ok": True}, {"sequence": 1, "source": 2, "ok": True}]
)
async def test_run_that_makes_no_sense_is_refused(rig: Any, run: Any) -> None:
    with pytest.raises(InvalidArgument, match="FIELD_MALFORMED"):
        await rig[0].record_runs(SESSION, [run])


async def test_preparation_comes_back_as_the_kernel_reads_it(rig: Any) -> None:
    clients, frontend, _host, _address = rig
    reply = await clients.prepare(SESSION, {"source": "x", "edit_sequence": 4})
    assert (reply["worker_id"], reply["prepare_ms"], reply["recipe"]["label"]) == ("w-1", 2.0, "gpu")
    assert frontend.asked[0].edit_sequence == 4 and frontend.asked[0].request_id
    assert frontend.asked[0].cell.tenant == "team"


async def test_submit_streams_the_news(rig: Any) -> None:
    news = [item async for item in rig[0].submit(frontend_pb2.SubmitCellRequest(execution_id="x-1"))]
    assert [item.lease.lease_id for item in news] == ["l-1"]
    assert rig[1].asked[0].cell.tenant == "team"


async def test_workers_of_a_session_end_on_all_hosts_and_silent_ones_are_named(rig: Any) -> None:
    clients, _frontend, host, _address = rig
    assert await clients.evict_workers(SESSION) == (5, ["h2"])
    assert host.evicted == [SESSION]


async def test_workers_end_though_the_scheduler_hangs_and_whoever_asked_has_gone(rig: Any) -> None:
    clients, _frontend, host, _address = rig
    host.addresses_known.clear()
    asking = asyncio.create_task(clients.evict_workers(SESSION))
    await within(host.evicted_here.wait())
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert asking.cancelled() and host.evicted == []
    host.addresses_known.set()
    await until(lambda: host.evicted == [SESSION] and not clients._evictions)


async def test_evictions_at_once_are_limited(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "EVICTIONS_MAX", 0)
    with pytest.raises(CapacityExceeded, match="TOO_MANY_REQUESTS"):
        await rig[0].evict_workers(SESSION)


async def test_release_of_unsaved_variables_goes_to_their_host_if_there_is_one(rig: Any) -> None:
    clients, _frontend, host, _address = rig
    await clients.release_unsaved(SESSION, "h-gone", "w-1", ["it"])
    await clients.release_unsaved(SESSION, "h1", "w-1", ["it", "f"])
    assert host.released == [(SESSION, "w-1", ["it", "f"])]


async def test_execute_sends_while_it_hears_and_ends_with_either_side(rig: Any) -> None:
    clients, _frontend, host, address = rig
    interrupted = asyncio.Event()
    pending: asyncio.Queue[pb.ExecuteRequest] = asyncio.Queue()

    async def requests() -> AsyncIterator[pb.ExecuteRequest]:
        yield pb.ExecuteRequest(start=pb.ExecuteStart(execution_id="x-1"))
        while True:
            yield await pending.get()

    heard: list[bytes] = []
    async with aclosing(clients.execute(address, requests())) as responses:
        async for response in responses:
            heard.append(response.output)
            kind = pb.ExecuteRequest(interrupt=pb.InterruptCell()) if interrupted.is_set() else pb.ExecuteRequest(
                input_reply=pb.InputReply(value="a")
            )  # fmt: skip
            interrupted.set()
            pending.put_nowait(kind)
    assert heard == [b"start", b"input_reply"]

    host.ended.clear()
    async with aclosing(clients.execute(address, requests())) as responses:
        assert (await within(anext(responses))).output == b"start"
    await within(host.ended.wait())


async def test_peers_keep_one_channel_each_and_close_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "PEERS_MAX", 2)
    closed: list[str] = []

    class Fake:
        def __init__(self, target: str) -> None:
            self.target = target

        def __getattr__(self, _name: str) -> Any:
            return lambda *_args, **_kwargs: None

        async def close(self) -> None:
            closed.append(self.target)

    def new_channel(target: str, _peer: str) -> Any:
        return Fake(target)

    peers = Peers(new_channel)
    first = peers.stub("a")
    peers.stub("b")
    assert peers.stub("a") is first
    peers.stub("c")
    await until(lambda: closed == ["b"])
    assert peers.stub("a") is first
