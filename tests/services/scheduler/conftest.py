"""The real scheduler on a Unix socket, and fake daemons that are real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from looseleaf.config import SchedulerConfig
from looseleaf.errors import PreconditionFailed
from looseleaf.rpc.client import Channel, open_channel
from looseleaf.rpc.dedupe import RequestMemory
from looseleaf.rpc.server import Registration, RpcServer
from looseleaf.rpc.service import Service
from looseleaf.services.scheduler.server import build
from looseleaf.v1 import recipe_pb2, scheduler_pb2, types_pb2, worker_daemon_pb2
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceStub
from looseleaf.v1.worker_daemon_pb2_grpc import (
    WorkerDaemonServiceServicer,
    add_WorkerDaemonServiceServicer_to_server,
)

LIMIT_S = 10.0


class FakeDaemon(WorkerDaemonServiceServicer):
    """Keeps leases and workers as a daemon does, without processes; tests set how it answers."""

    def __init__(self, host_id: str, folder: Path, gpus: int) -> None:
        self.host_id = host_id
        self.gpus = gpus
        self.incarnation = "i1"
        self.leases: dict[str, types_pb2.Lease] = {}
        self.workers: dict[str, scheduler_pb2.WorkerState] = {}
        self.running: set[str] = set()
        self.grants: list[types_pb2.Lease] = []
        self.evicted: list[str] = []
        self.prepared: list[worker_daemon_pb2.PrepareWorkerRequest] = []
        self.changed = asyncio.Event()
        self.hold_grants: asyncio.Event | None = None
        self.refuse_grants = False
        self._memory = RequestMemory()
        self.server = RpcServer(f"unix:{folder}/{host_id}.sock")

    async def GrantLease(self, request: Any, context: Any) -> Any:
        self.grants.append(request.lease)
        self.changed.set()
        if self.hold_grants is not None:
            await self.hold_grants.wait()
        if self.refuse_grants:
            raise PreconditionFailed("GPU_BUSY", "a cell runs there")
        self.leases[request.lease.lease_id] = request.lease
        return worker_daemon_pb2.GrantLeaseResponse()

    async def RevokeLease(self, request: Any, context: Any) -> Any:
        in_use = request.lease_id in self.running
        if not in_use:
            self.leases.pop(request.lease_id, None)
        self.changed.set()
        return worker_daemon_pb2.RevokeLeaseResponse(in_use=in_use)

    async def PrepareWorker(self, request: Any, context: Any) -> Any:
        async def work() -> Any:
            self.prepared.append(request)
            self.changed.set()
            worker_id = request.worker_id or f"w-{request.session_id}"
            return worker_daemon_pb2.PrepareWorkerResponse(
                worker_id=worker_id, pid=42, stage_ms={"total": 12.5}, stage=request.stage,
                gpu_indices=request.gpu_indices)

        return await self._memory.once(request, work)

    async def EvictWorker(self, request: Any, context: Any) -> Any:
        self.evicted.append(request.worker_id)
        self.workers.pop(request.worker_id, None)
        self.changed.set()
        return worker_daemon_pb2.EvictWorkerResponse(evicted=True)

    @property
    def address(self) -> str:
        return self.server.address

    async def start(self) -> None:
        self.server.bind()
        await self.server.start([Registration(add_WorkerDaemonServiceServicer_to_server, self)])
        await self.server.set_ready(True)

    async def stop(self) -> None:
        await self.server.stop(0)

    def heartbeat(self) -> scheduler_pb2.HeartbeatRequest:
        return scheduler_pb2.HeartbeatRequest(
            host=types_pb2.HostAddress(host_id=self.host_id, address=self.address), incarnation=self.incarnation,
            gpu_count=self.gpus, device_kind="emulated", workers=self.workers.values(), leases=self.leases.values(),
        )

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Until something that the scheduler ordered makes `condition` true."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Client:
    """Calls of daemons and frontends at one scheduler."""

    def __init__(self, address: str) -> None:
        self.channel: Channel = open_channel(address, peer="scheduler")
        self.stub: Any = SchedulerServiceStub(self.channel)

    async def beat(self, *daemons: FakeDaemon) -> list[Any]:
        return [await self.stub.Heartbeat(daemon.heartbeat(), timeout_s=LIMIT_S) for daemon in daemons]

    def run(self, execution: str, session: str = "s1", epoch: int = 1, gpus: int = 1, **recipe: Any) -> Any:
        request = scheduler_pb2.RequestRunRequest(
            execution_id=execution, session_id=session, epoch=epoch, priority="interactive",
            recipe=recipe_pb2.ExecutionRecipe(gpu_count=gpus, **recipe),
        )
        return self.stub.RequestRun(request, timeout_s=60)

    async def lease(self, execution: str, session: str = "s1", **run: Any) -> types_pb2.Lease:
        async with asyncio.timeout(LIMIT_S), self.run(execution, session, **run) as news:
            async for message in news:
                if message.HasField("lease"):
                    lease: types_pb2.Lease = message.lease
                    return lease
        raise AssertionError("the stream ended without a lease")

    async def prepare(
        self, session: str = "s1", epoch: int = 1, certain: bool = False, predicted: bool = False, tenant: str = "",
        **recipe: Any,
    ) -> Any:
        request = scheduler_pb2.RequestPreparationRequest(
            request_id="r", session_id=session, epoch=epoch, recipe=recipe_pb2.ExecutionRecipe(gpu_count=1, **recipe),
            certain=certain, predicted=predicted, tenant=tenant)
        return await self.stub.RequestPreparation(request, timeout_s=LIMIT_S)

    async def report(
        self, lease: types_pb2.Lease, state: str, release: bool = False, worker: Any = None,
    ) -> Any:
        request = scheduler_pb2.ReportExecutionRequest(
            request_id=f"{lease.lease_id}-{state}", execution_id=lease.execution_id, lease_id=lease.lease_id,
            state=f"EXECUTION_STATE_{state}", release=release, worker=worker)
        return await self.stub.ReportExecution(request, timeout_s=LIMIT_S)

    async def state(self, execution: str) -> str:
        answer = await self.stub.GetExecution(
            scheduler_pb2.GetExecutionRequest(execution_id=execution), timeout_s=LIMIT_S)
        return scheduler_pb2.ExecutionState.Name(answer.state).removeprefix("EXECUTION_STATE_")

    async def pool(self) -> Any:
        return await self.stub.GetPool(scheduler_pb2.GetPoolRequest(), timeout_s=LIMIT_S)

    async def close(self) -> None:
        await self.channel.close()


ServeScheduler = Callable[..., Any]


@pytest.fixture
def serve_scheduler(tmp_path: Path) -> ServeScheduler:
    """`async with serve_scheduler(**settings) as client`: a scheduler of this process; the journal outlives it."""

    @asynccontextmanager
    async def serve(**settings: Any) -> AsyncIterator[Client]:
        config = SchedulerConfig(
            listen=f"unix:{tmp_path}/s.sock", run_dir=tmp_path, data=tmp_path / "data", shutdown_grace_s=0.2,
            **{"tick_s": 0.02, **settings})
        service = Service("scheduler", config)
        started = asyncio.Event()

        async def build_and_tell(inner: Service[SchedulerConfig]) -> Any:
            registrations = await build(inner)
            started.set()
            return registrations

        life = asyncio.get_running_loop().create_task(service.run(build_and_tell))
        waiting = asyncio.get_running_loop().create_task(started.wait())
        await asyncio.wait([life, waiting], timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if life.done():
            await life
        client = Client(service.address)
        try:
            yield client
        finally:
            service.request_stop("test over")
            assert await asyncio.wait_for(life, LIMIT_S) == 0
            await client.close()

    return serve


@pytest.fixture
async def client(serve_scheduler: ServeScheduler) -> AsyncIterator[Client]:
    async with serve_scheduler() as made:
        yield made


StartDaemon = Callable[..., Awaitable[FakeDaemon]]


@pytest.fixture
async def start_daemon(tmp_path: Path) -> AsyncIterator[StartDaemon]:
    """`await start_daemon("h0", gpus=1)`: a running fake daemon; it sends heartbeats only when told."""
    made: list[FakeDaemon] = []

    async def start(host_id: str = "h0", gpus: int = 1) -> FakeDaemon:
        daemon = FakeDaemon(host_id, tmp_path, gpus)
        await daemon.start()
        made.append(daemon)
        return daemon

    yield start
    for daemon in made:
        await daemon.stop()


@pytest.fixture
def connect() -> type[Client]:
    return Client
