"""The servicer on a real gRPC server over scripted workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from daemon_fakes import SESSION, FakeReaper, Parts, ScriptedWorker, prepare_well, region, saved_reply, until, within

from looseleaf.errors import Conflict, InvalidArgument, LooseLeafError, PreconditionFailed
from looseleaf.ids import ExecutionId
from looseleaf.rpc.client import NO_DEADLINE, Channel, open_channel
from looseleaf.rpc.server import Registration, RpcServer
from looseleaf.services.worker_daemon import servicer as servicer_module
from looseleaf.services.worker_daemon.core.lease_table import LeaseTable
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.core.zygote_nodes import TreeKey
from looseleaf.services.worker_daemon.execution import HostFacts
from looseleaf.services.worker_daemon.execution_log import ExecutionRecord
from looseleaf.services.worker_daemon.host import Host
from looseleaf.services.worker_daemon.import_cache import CacheSettings, ImportCache
from looseleaf.services.worker_daemon.run_journal import RunJournal
from looseleaf.services.worker_daemon.servicer import WorkerDaemonServicer
from looseleaf.v1 import checkpoint_pb2, recipe_pb2, scheduler_pb2, types_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb
from looseleaf.v1.worker_daemon_pb2_grpc import WorkerDaemonServiceStub, add_WorkerDaemonServiceServicer_to_server

WAIT_S = 20.0
RECIPE = recipe_pb2.ExecutionRecipe(version=1, names=["x"])


class FakeZygotes:
    pids = (4711,)
    imports = ("json",)

    def __init__(self) -> None:
        base: Any = SimpleNamespace(pid=4711, environment_id="e", seconds={"json": 0.5}, modules=frozenset(),
                                    private_bytes=9)
        reaper: Any = FakeReaper()
        self.cache = ImportCache(CacheSettings(lambda: base), reaper)
        self.cache.open(TreeKey(1), base)
        self.cache.base_ready(TreeKey(1))


@dataclass
class Rig:
    """A daemon's face, as the scheduler and other daemons see it."""

    parts: Parts
    host: Host
    servicer: WorkerDaemonServicer
    channel: Channel
    reports: list[scheduler_pb2.ReportExecutionRequest] = field(default_factory=list)

    @property
    def stub(self) -> Any:
        return WorkerDaemonServiceStub(self.channel)

    async def grant(self, number: int = 1, **lease: Any) -> None:
        fields: dict[str, Any] = {
            "lease_id": f"l-{number}", "session_id": SESSION, "epoch": 1, "execution_id": f"x-{number}",
            "gpu_indices": [0], "path": "START_PATH_COLD", "ttl_ms": 10_000, **lease,
        }  # fmt: skip
        await self.stub.GrantLease(pb.GrantLeaseRequest(lease=types_pb2.Lease(**fields)), timeout_s=WAIT_S)

    def start(self, number: int = 1, **start: Any) -> pb.ExecuteRequest:
        fields = {
            "execution_id": f"x-{number}", "lease_id": f"l-{number}", "session_id": SESSION, "epoch": 1, "version": 1,
            "recipe": RECIPE, "source": "x", "execution_count": 1, **start,
        }  # fmt: skip
        return pb.ExecuteRequest(start=pb.ExecuteStart(**fields))

    async def execute(self, number: int = 1, **start: Any) -> list[pb.ExecuteResponse]:
        async with self.stub.Execute(timeout_s=NO_DEADLINE) as call:
            await call.write(self.start(number, **start))
            return [message async for message in call]

    async def prepare(self, request_id: str = "r-1", **request: Any) -> pb.PrepareWorkerResponse:
        fields = {"request_id": request_id, "session_id": SESSION, "epoch": 1, "recipe": RECIPE, **request}
        answer: pb.PrepareWorkerResponse = await self.stub.PrepareWorker(
            pb.PrepareWorkerRequest(**fields), timeout_s=WAIT_S
        )
        return answer


@pytest.fixture
async def rig(parts: Parts, tmp_path: Path) -> AsyncIterator[Rig]:
    reports: list[scheduler_pb2.ReportExecutionRequest] = []

    class Reporter:
        report_progress = report_end = staticmethod(reports.append)

    fakes: Any = (FakeZygotes(), Reporter())
    address = f"unix:{tmp_path}/d.sock"
    host = Host(
        HostFacts("h0", "none", False), address, 2, 1 << 30, LeaseTable(2), parts.regions, parts.pool(), *fakes,
        lambda: 0, lambda: None,
    )  # fmt: skip
    servicer = WorkerDaemonServicer(host)
    server = RpcServer(address)
    server.bind()
    await server.start([Registration(add_WorkerDaemonServiceServicer_to_server, servicer)])
    channel = open_channel(address, peer="host")
    yield Rig(parts, host, servicer, channel, reports)
    await channel.close()
    await server.stop(0)


async def hang(_worker: ScriptedWorker, _request: Any) -> Any:
    await asyncio.Event().wait()


async def test_cell_under_a_lease_runs_once_and_is_heard_by_every_caller(rig: Rig) -> None:
    await rig.grant()
    first, second = await within(asyncio.gather(rig.execute(), rig.execute()))
    third = await within(rig.execute())
    assert first == second == third and first[-1].saved.version == 2
    assert [message.position for message in first] == list(range(1, len(first) + 1))
    assert rig.parts.forker.workers[0].asked.count("run") == 1
    assert [lease.finished for lease in rig.host.leases.held()] == [True]


async def test_execution_that_was_forgotten_is_not_started_again(rig: Rig) -> None:
    await rig.grant()
    await within(rig.execute())
    rig.host.executions._records.clear()
    with pytest.raises(PreconditionFailed, match="LEASE_USED"):
        await within(rig.execute())


async def test_adopted_cell_waits_for_its_notebook_from_when_that_can_come(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer_module, "ADOPTED_S", 0.0)
    monkeypatch.setattr(servicer_module, "ABANDONED_S", 0.0)
    ended: list[str] = []

    def adopt(execution_id: str) -> None:
        over = asyncio.Event()

        def end(why: LooseLeafError) -> None:
            ended.append(f"{execution_id} {why.reason}")
            over.set()

        lease = SimpleNamespace(execution_id=execution_id, session_id="s-1", epoch=1)
        record = ExecutionRecord(ExecutionId(execution_id))
        execution: Any = SimpleNamespace(lease=lease, record=record, adopted=True, run=over.wait, end=end)
        rig.servicer.adopt(execution)

    adopt("x-1")
    # A limit of nothing is over in the next turn of the loop.
    for _turn in range(3):
        await asyncio.sleep(0)
    assert ended == []
    rig.servicer.callers_may_come()
    adopt("x-2")
    await within(rig.servicer.until_idle())
    assert ended == ["x-1 CALLER_GONE", "x-2 CALLER_GONE"]


async def test_caller_of_a_cell_whose_worker_is_awaited_hears_when_that_is_known(rig: Rig) -> None:
    known, asked = asyncio.Event(), asyncio.Event()

    async def wait(_execution_id: str) -> None:
        asked.set()
        await known.wait()

    returning: Any = SimpleNamespace(known=wait, facts=list)
    rig.host.returning = returning
    calling = asyncio.create_task(rig.execute(follow_only=True))
    await within(asked.wait())
    assert not calling.done()
    rig.host.executions.start(ExecutionId("x-1")).add(pb.ExecuteResponse(saved=pb.CellSaved(version=7)))
    known.set()
    assert (await within(calling))[-1].saved.version == 7


@pytest.mark.parametrize("begins", [True, False])
async def test_cell_that_the_last_daemon_had_only_made_ready_is_told_as_not_run(
    rig: Rig, tmp_path: Path, begins: bool
) -> None:
    """From the first moment that a worker is made for it until it is handed over, and then never again."""
    journal = rig.host.journal = RunJournal(tmp_path / "running", "")
    journal.lock()
    made_ready, runs = asyncio.Event(), asyncio.Event()

    async def prepare(worker: ScriptedWorker, request: Any) -> Any:
        made_ready.set()
        if not begins:
            await asyncio.Event().wait()
        return await prepare_well(worker, request)

    async def run(worker: ScriptedWorker, request: Any) -> Any:
        runs.set()
        return await hang(worker, request)

    rig.parts.script.prepare, rig.parts.script.run = prepare, run
    await rig.grant()
    first = asyncio.create_task(rig.execute())
    await within((runs if begins else made_ready).wait())
    # The daemon is killed: nothing of it is left but its files.
    journal.unlock()
    journal.lock()
    rig.host.executions._records.clear()
    rig.host.leases = LeaseTable(2)
    reason = "LEASE_UNKNOWN" if begins else "CELL_NOT_STARTED"
    for follow_only in (True, False):
        with pytest.raises(PreconditionFailed, match=reason):
            await within(rig.execute(follow_only=follow_only))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await within(rig.servicer.end_cells())
    journal.unlock()


@pytest.mark.parametrize("start", [{"lease_id": "l-9"}, {"execution_id": "x-9"}, {"epoch": 2}])
async def test_cell_without_its_lease_is_refused(rig: Rig, start: dict[str, Any]) -> None:
    await rig.grant()
    with pytest.raises(PreconditionFailed, match="LEASE_UNKNOWN.*nothing was run"):
        await within(rig.execute(**start))
    assert rig.parts.forker.workers == []


async def test_first_message_that_is_no_start_is_refused(rig: Rig) -> None:
    async with rig.stub.Execute(timeout_s=NO_DEADLINE) as call:
        await call.write(pb.ExecuteRequest(interrupt=pb.InterruptCell()))
        with pytest.raises(InvalidArgument, match="EXECUTE_MALFORMED"):
            await within(call.read())


@pytest.mark.parametrize(
    "lease",
    [{"gpu_indices": []}, {"ttl_ms": 0}, {"path": 77}, {"session_id": ""}, {"execution_id": ""}, {"lease_id": ""}],
)
async def test_malformed_lease_is_refused_and_the_heartbeat_lives(rig: Rig, lease: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="LEASE_MALFORMED"):
        await rig.grant(**lease)
    assert list(rig.host.snapshot().leases) == []


async def test_interrupt_and_input_reach_the_cell(rig: Rig) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await worker.tell("started", request)
        await worker.tell("input_request", request, prompt="?", password=True)
        await worker.interrupted.wait()
        await until(lambda: bool(worker.told))
        await worker.tell("ended", request, reply={"status": "ok"}, run_s=0.1)
        return saved_reply()

    rig.parts.script.run = run
    await rig.grant()
    async with rig.stub.Execute(timeout_s=NO_DEADLINE) as call:
        await call.write(rig.start())
        while not (await within(call.read())).HasField("input_request"):
            pass
        await call.write(pb.ExecuteRequest(input_reply=pb.InputReply(value="yes")))
        await call.write(pb.ExecuteRequest(interrupt=pb.InterruptCell(kill=False)))
        assert [message async for message in call][-1].saved.version == 2
    assert rig.parts.forker.workers[0].told[0]["value"] == "yes"


async def test_caller_that_leaves_and_comes_back_finds_its_cell(rig: Rig) -> None:
    may_end = asyncio.Event()

    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await worker.tell("started", request)
        await may_end.wait()
        await worker.tell("ended", request, reply={"status": "ok"}, run_s=0.1)
        return saved_reply()

    rig.parts.script.run = run
    await rig.grant()
    async with rig.stub.Execute(timeout_s=NO_DEADLINE) as call:
        await call.write(rig.start())
        await within(call.read())
    may_end.set()
    assert (await within(rig.execute()))[-1].saved.error_reason == ""


async def test_cell_that_all_callers_left_for_good_is_ended(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer_module, "ABANDONED_S", 0.05)
    rig.parts.script.run = hang
    await rig.grant()
    async with rig.stub.Execute(timeout_s=NO_DEADLINE) as call:
        await call.write(rig.start())
        await until(lambda: bool(rig.parts.forker.workers) and "run" in rig.parts.forker.workers[0].asked)
    await within(rig.servicer.until_idle())
    assert rig.reports[-1].reason == "CALLER_GONE" and rig.reports[-1].release
    assert [lease.finished for lease in rig.host.leases.held()] == [True]


async def test_host_that_stops_ends_its_cells_and_waits_a_while_for_saves(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer_module, "SAVE_AT_STOP_S", 0.05)
    save = asyncio.Event()

    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await worker.tell("started", request)
        if request["execution_id"] == "x-1":
            await asyncio.Event().wait()
        await worker.tell("ended", request, reply={"status": "ok"}, run_s=0.1)
        await save.wait()
        return saved_reply()

    rig.parts.script.run = run
    running = []
    for number in (1, 2):
        await rig.grant(number, gpu_indices=[number - 1], session_id=f"s-{number}")
        running.append(asyncio.create_task(rig.execute(number)))
    await until(lambda: len(rig.reports) == 3)  # started, started, finished
    await within(rig.servicer.end_cells())
    cut = (await within(running[0]))[-1].saved
    assert cut.error_reason == "HOST_STOPPED" and "changes are lost" in cut.error_message
    assert not running[1].done()
    save.set()
    assert (await within(running[1]))[-1].saved.version == 2


async def test_prepare_again_with_the_same_request_gets_the_first_answer(rig: Rig) -> None:
    first, second = await rig.prepare(), await rig.prepare()
    assert first == second and len(rig.parts.forker.workers) == 1
    assert set(first.stage_ms) == {"fork", "import", "restore", "total"} and first.mapped_bytes == 7


async def test_prepare_goes_as_far_as_asked_where_no_cell_has_the_gpu(rig: Rig) -> None:
    rig.host.facts = HostFacts("h0", "emulated", False)
    await rig.grant(gpu_indices=[0])
    taken = await rig.prepare("r-1", stage="WORKER_STAGE_DEVICE_READY", gpu_indices=[0])
    assert (taken.stage, list(taken.gpu_indices)) == (Stage.HOST_READY, [])
    free = await rig.prepare("r-2", stage="WORKER_STAGE_CONTEXT_READY", gpu_indices=[1], worker_id=taken.worker_id)
    assert (free.worker_id, free.stage, list(free.gpu_indices)) == (taken.worker_id, Stage.CONTEXT_READY, [1])
    further = await rig.prepare("r-3", stage="WORKER_STAGE_DEVICE_READY", gpu_indices=[1], worker_id=taken.worker_id)
    assert (further.worker_id, further.stage) == (taken.worker_id, Stage.DEVICE_READY) and "attach" in further.stage_ms
    # As the scheduler takes it off the GPU again, without a recipe.
    request = pb.PrepareWorkerRequest(request_id="r-4", session_id=SESSION, epoch=1, worker_id=taken.worker_id)
    back = await rig.stub.PrepareWorker(request, timeout_s=WAIT_S)
    assert back.worker_id != taken.worker_id and (back.stage, list(back.gpu_indices)) == (Stage.HOST_READY, [])
    with pytest.raises(PreconditionFailed, match="GPU_UNKNOWN"):
        await rig.prepare("r-5", stage="WORKER_STAGE_CONTEXT_READY", gpu_indices=[2])


async def test_prepare_does_not_reach_a_worker_between_its_refresh_and_its_cell(rig: Rig) -> None:
    may_attach = asyncio.Event()

    async def attach(worker: ScriptedWorker, _request: Any) -> Any:
        await may_attach.wait()
        return {}

    rig.parts.script.attach = attach
    await rig.grant()
    running = asyncio.create_task(rig.execute())
    await until(lambda: bool(rig.parts.forker.workers) and "attach" in rig.parts.forker.workers[0].asked)
    with pytest.raises(Conflict, match="WORKER_BUSY"):
        await rig.prepare(worker_id=rig.host.pool.facts()[0].worker_id)
    may_attach.set()
    assert (await within(running))[-1].saved.version == 2


async def test_lease_for_a_worker_in_preparation_waits_for_it(rig: Rig) -> None:
    may_prepare, order = asyncio.Event(), []

    async def prepare(worker: ScriptedWorker, request: Any) -> Any:
        order.append(tuple(request["names"]))
        await may_prepare.wait()
        return await prepare_well(worker, request)

    rig.parts.script.prepare = prepare
    preparing = asyncio.create_task(rig.prepare(recipe=recipe_pb2.ExecutionRecipe(version=1, names=["ahead"])))
    await until(lambda: bool(order))
    worker_id = rig.host.pool.facts()[0].worker_id
    await rig.grant(worker_id=worker_id, path="START_PATH_PREPARED")
    running = asyncio.create_task(rig.execute())
    await until(lambda: rig.host.pool.facts()[0].users == 2)
    may_prepare.set()
    messages = await within(running)
    assert (await within(preparing)).worker_id == worker_id == messages[-1].saved.worker_id
    assert order == [("ahead",), ("x",)] and messages[-1].saved.path == types_pb2.START_PATH_PREPARED


async def test_evict_answers_for_idle_busy_and_unknown_workers(rig: Rig) -> None:
    worker_id = (await rig.prepare()).worker_id

    async def evict(name: str) -> bool:
        request = pb.EvictWorkerRequest(request_id="r-2", worker_id=name)
        return bool((await rig.stub.EvictWorker(request, timeout_s=WAIT_S)).evicted)

    async with rig.host.pool.reserved(worker_id, SESSION, 1):  # type: ignore[arg-type]
        assert not await evict(worker_id)
    assert await evict(worker_id) and await evict(worker_id) and await evict("w-unknown")


async def test_revoke_tells_whether_a_cell_runs(rig: Rig) -> None:
    async def revoke() -> bool:
        request = pb.RevokeLeaseRequest(request_id="r-3", lease_id="l-1")
        return bool((await rig.stub.RevokeLease(request, timeout_s=WAIT_S)).in_use)

    assert not await revoke()
    await rig.grant()
    assert not await revoke()
    with pytest.raises(LooseLeafError, match="LEASE_UNKNOWN"):
        await within(rig.execute())
    await rig.grant()
    rig.parts.script.run = hang
    running = asyncio.create_task(rig.execute())
    await until(lambda: bool(rig.parts.forker.workers) and "run" in rig.parts.forker.workers[0].asked)
    assert await revoke()
    rig.parts.forker.workers[0].die(-9)
    await within(running)


async def test_fetch_leaves_out_what_the_arena_lacks(rig: Rig) -> None:
    key, data = region(1)
    await rig.parts.regions.put(key, memoryview(data), "save")
    wanted = [checkpoint_pb2.RegionRef(region_id=k[0], length_bytes=k[1]) for k in (region(2)[0], key)]
    async with rig.stub.FetchRegions(pb.FetchRegionsRequest(regions=wanted), timeout_s=WAIT_S) as chunks:
        assert [chunk.chunk.data async for chunk in chunks] == [data]
    rig.parts.regions.unpin("save")


async def test_host_tells_its_workers_leases_and_zygote(rig: Rig) -> None:
    await rig.prepare()
    await rig.grant()
    rig.host.draining = True
    told = await rig.stub.GetHost(pb.GetHostRequest(), timeout_s=WAIT_S)
    assert [worker.stage for worker in told.state.workers] == [Stage.HOST_READY]
    assert [(lease.lease_id, lease.ttl_ms) for lease in told.state.leases] == [("l-1", 10_000)]
    assert (list(told.zygote_pids), list(told.zygote_imports), told.state.draining) == ([4711], ["json"], True)
    [base] = told.zygotes
    shown = (base.node_id, base.parent_id, base.pid, list(base.imports), base.state, base.import_s, base.private_bytes)
    assert shown == (1, 0, 4711, ["json"], "serving", 0.5, 9)
    assert told.arena_limit_bytes > told.arena_used_bytes == 0


async def test_output_reaches_the_caller_as_it_was_sent(rig: Rig) -> None:
    await rig.grant()
    outputs = [msgpack.unpackb(message.output) for message in await within(rig.execute()) if message.output]
    assert outputs == [{"type": "stream", "name": "stdout", "text": "hi\n"}]
