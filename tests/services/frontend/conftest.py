"""The real frontend on a Unix socket; its store and scheduler are real servers too, small and set by each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from looseleaf.checkpoint.manifest import (
    ALGORITHM_XXH3,
    Manifest,
    PayloadEntry,
    RegionList,
    UnitEntry,
    UnitHeader,
    encode_manifest,
)
from looseleaf.config import FrontendConfig
from looseleaf.errors import LooseLeafError, NotFound
from looseleaf.ids import Epoch, PayloadId, SessionId, UnitId, Version
from looseleaf.rpc.client import Channel, open_channel
from looseleaf.rpc.server import Registration, RpcServer
from looseleaf.rpc.service import Service
from looseleaf.services.frontend.server import build
from looseleaf.units import REGION_BYTES
from looseleaf.v1 import checkpoint_pb2, checkpoint_store_pb2, frontend_pb2, recipe_pb2, scheduler_pb2, types_pb2
from looseleaf.v1.checkpoint_store_pb2_grpc import (
    CheckpointStoreServiceServicer,
    add_CheckpointStoreServiceServicer_to_server,
)
from looseleaf.v1.frontend_pb2_grpc import FrontendServiceStub
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceServicer, add_SchedulerServiceServicer_to_server

SESSION = "s-1"
WAIT_S = 20.0


def manifest_of(version: int, names: dict[str, int], *, epoch: int = 1) -> bytes:
    """A manifest whose variables hold so many bytes on a GPU, 0 for a plain value."""
    units, payloads, roots = {}, {}, {}
    for index, (name, size_bytes) in enumerate(names.items()):
        unit, payload = UnitId(1 + 2 * index), PayloadId(2 + 2 * index)
        refs = (payload,) if size_bytes else ()
        device_bytes = {"cuda:0": size_bytes} if size_bytes else {}
        header = UnitHeader(payloads=refs, device_bytes=device_bytes)
        units[unit] = UnitEntry(bytes([index + 1]) * 16, 10, (), header)
        roots[name] = unit
        if size_bytes:
            regions = RegionList(bytes([index + 1]) * 16 * -(-size_bytes // REGION_BYTES), size_bytes, REGION_BYTES)
            payloads[payload] = PayloadEntry("memory", "cuda:0", size_bytes, ALGORITHM_XXH3, REGION_BYTES, regions)
    manifest = Manifest(
        SessionId(SESSION), Version(version), Version(version - 1), Epoch(epoch),
        next_id=2 * len(names) + 1, roots=roots, units=units, payloads=payloads,
    )  # fmt: skip
    return encode_manifest(manifest)


@dataclass
class Store(CheckpointStoreServiceServicer):
    """Answers GetManifest with what a test put here."""

    epoch: int = 1
    version: int = 0
    manifest: bytes = b""
    asked: list[checkpoint_store_pb2.GetManifestRequest] = field(default_factory=list)
    sent_bytes: list[int] = field(default_factory=list)

    def put(self, names: dict[str, int], *, epoch: int = 1) -> None:
        self.version, self.epoch = self.version + 1, epoch
        self.manifest = manifest_of(self.version, names, epoch=epoch)

    async def GetManifest(self, request: Any, context: Any) -> Any:
        if request.session_id != SESSION:
            raise NotFound("SESSION_UNKNOWN", "no such session")
        self.asked.append(request)
        known = request.known_version and request.known_version == self.version
        data = b"" if known else self.manifest
        self.sent_bytes.append(len(data))
        head = checkpoint_pb2.SessionHead(session_id=SESSION, epoch=self.epoch, version=self.version)
        return checkpoint_store_pb2.GetManifestResponse(head=head, version=self.version, manifest=data)


@dataclass
class Scheduler(SchedulerServiceServicer):
    """Queues a run as long as a test wants, then leases; prepares at once or when a test lets it."""

    positions: list[int] = field(default_factory=list)
    runs: list[scheduler_pb2.RequestRunRequest] = field(default_factory=list)
    preparations: list[scheduler_pb2.RequestPreparationRequest] = field(default_factory=list)
    may_lease: asyncio.Event = field(default_factory=asyncio.Event)
    may_prepare: asyncio.Event = field(default_factory=asyncio.Event)
    preparing: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    error: LooseLeafError | None = None
    # What ends the stream of a run that waits, each once.
    breaks: list[LooseLeafError] = field(default_factory=list)

    async def RequestRun(self, request: Any, context: Any) -> None:
        self.runs.append(request)
        if self.error is not None:
            raise self.error
        try:
            for position in self.positions:
                queue = frontend_pb2.QueueNews(position=position, reason="waits")
                await context.write(scheduler_pb2.RequestRunResponse(queue=queue))
            if self.breaks:
                raise self.breaks.pop()
            await self.may_lease.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        lease = types_pb2.Lease(lease_id="l-1", session_id=request.session_id, execution_id=request.execution_id)
        await context.write(scheduler_pb2.RequestRunResponse(lease=lease))

    async def RequestPreparation(self, request: Any, context: Any) -> Any:
        self.preparations.append(request)
        self.preparing.set()
        await self.may_prepare.wait()
        return scheduler_pb2.RequestPreparationResponse(worker_id="w-1", host_id="h0", prepare_ms=12.5)


@dataclass
class Rig:
    """The frontend with its neighbours; `stub` talks to the frontend."""

    store: Store
    scheduler: Scheduler
    servers: dict[str, RpcServer]
    channel: Channel
    registry: CollectorRegistry

    @property
    def stub(self) -> Any:
        return FrontendServiceStub(self.channel)

    async def record(self, *sources: str, first: int = 1, ok: bool = True) -> int:
        runs = [
            recipe_pb2.CellRun(sequence=first + i, cell_id=f"c{first + i}", source=source, ok=ok)
            for i, source in enumerate(sources)
        ]
        request = frontend_pb2.RecordRunsRequest(session_id=SESSION, runs=runs)
        return int((await self.stub.RecordRuns(request, timeout_s=WAIT_S)).next_sequence)

    async def derive(self, source: str, **cell: Any) -> recipe_pb2.ExecutionRecipe:
        request = frontend_pb2.DeriveRecipeRequest(cell=cell_text(source, **cell))
        recipe: recipe_pb2.ExecutionRecipe = (await self.stub.DeriveRecipe(request, timeout_s=WAIT_S)).recipe
        return recipe

    async def prepare(
        self, source: str, edit: int, edited: bool = True, predicted: bool = False, **cell: Any
    ) -> frontend_pb2.PrepareCellResponse:
        request = frontend_pb2.PrepareCellRequest(
            request_id=f"r-{edit}", cell=cell_text(source, **cell), edit_sequence=edit, edited=edited,
            predicted=predicted,
        )  # fmt: skip
        response: frontend_pb2.PrepareCellResponse = await self.stub.PrepareCell(request, timeout_s=WAIT_S)
        return response

    def submit(
        self, source: str, *, version: int = 0, epoch: int = 1, worker_id: str = "", names: tuple[str, ...] = (),
        **cell: Any,
    ) -> Any:
        request = frontend_pb2.SubmitCellRequest(
            execution_id="x-1", cell=cell_text(source, **cell), epoch=epoch, version=version, priority="interactive",
            needed_worker_id=worker_id, needed_names=names,
        )
        return self.stub.SubmitCell(request, timeout_s=WAIT_S)


def cell_text(source: str, **fields: Any) -> frontend_pb2.CellText:
    return frontend_pb2.CellText(**{"session_id": SESSION, "cell_id": "cell", "source": source, **fields})


@pytest.fixture
def listen(tmp_path: Path) -> Callable[[str], str]:
    return lambda name: f"unix:{tmp_path}/{name}.sock"


@pytest.fixture
async def rig(listen: Callable[[str], str]) -> AsyncIterator[Rig]:
    store, scheduler = Store(), Scheduler()
    servers = {}
    for name, add, servicer in (
        ("store", add_CheckpointStoreServiceServicer_to_server, store),
        ("scheduler", add_SchedulerServiceServicer_to_server, scheduler),
    ):
        servers[name] = RpcServer(listen(name))
        servers[name].bind()
        await servers[name].start([Registration(add, servicer)])
    config = FrontendConfig(
        listen=listen("frontend"), store=listen("store"), scheduler=listen("scheduler"),
        manifest_timeout_s=2.0, shutdown_grace_s=0.0, source_bytes_max=4096,
    )  # fmt: skip
    service = Service("frontend", config)
    running = asyncio.create_task(service.run(build))
    channel = open_channel(listen("frontend"), peer="frontend")
    await channel.wait_ready(WAIT_S)
    yield Rig(store, scheduler, servers, channel, service.registry)
    await channel.close()
    service.request_stop("test ended")
    assert await running == 0
    for server in servers.values():
        await server.stop(0)
