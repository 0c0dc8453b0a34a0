"""A real server on a Unix socket with all four kinds of method; what it does is set by each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from looseleaf.rpc.client import Channel, open_channel
from looseleaf.rpc.server import Registration, RpcServer
from looseleaf.v1 import checkpoint_store_pb2 as store_pb
from looseleaf.v1 import scheduler_pb2 as scheduler_pb
from looseleaf.v1 import worker_daemon_pb2 as daemon_pb
from looseleaf.v1.checkpoint_store_pb2_grpc import (
    CheckpointStoreServiceServicer,
    CheckpointStoreServiceStub,
    add_CheckpointStoreServiceServicer_to_server,
)
from looseleaf.v1.scheduler_pb2_grpc import (
    SchedulerServiceServicer,
    SchedulerServiceStub,
    add_SchedulerServiceServicer_to_server,
)
from looseleaf.v1.worker_daemon_pb2_grpc import (
    WorkerDaemonServiceServicer,
    WorkerDaemonServiceStub,
    add_WorkerDaemonServiceServicer_to_server,
)


@dataclass
class Behaviour:
    """What the servicers do besides answering."""

    act: Callable[[Any], Awaitable[None]] | None = None
    calls: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def do(self, context: Any) -> None:
        self.calls += 1
        if self.act is not None:
            await self.act(context)


class Scheduler(SchedulerServiceServicer):
    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    async def GetPool(self, request: Any, context: Any) -> Any:
        try:
            await self._behaviour.do(context)
        except asyncio.CancelledError:
            self._behaviour.cancelled.set()
            raise
        return scheduler_pb.GetPoolResponse(queued_runs=7)

    async def RequestRun(self, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            for position in (3, 2, 1):
                yield scheduler_pb.RequestRunResponse(queue={"position": position})
            await self._behaviour.do(context)
        finally:
            self._behaviour.ended.set()


class Store(CheckpointStoreServiceServicer):
    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    async def PutUnits(self, requests: AsyncIterator[Any], context: Any) -> Any:
        stored = 0
        async for _request in requests:
            stored += 1
            await self._behaviour.do(context)
        return store_pb.PutUnitsResponse(stored=stored)


class Daemon(WorkerDaemonServiceServicer):
    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    async def Execute(self, requests: AsyncIterator[Any], context: Any) -> None:
        async for request in requests:
            await self._behaviour.do(context)
            await context.write(daemon_pb.ExecuteResponse(output=request.input_reply.value.encode()))


@dataclass
class Rig:
    """A running server, a channel to it and stubs."""

    server: RpcServer
    channel: Channel
    behaviour: Behaviour

    @property
    def scheduler(self) -> Any:
        return SchedulerServiceStub(self.channel)

    @property
    def store(self) -> Any:
        return CheckpointStoreServiceStub(self.channel)

    @property
    def daemon(self) -> Any:
        return WorkerDaemonServiceStub(self.channel)


def registrations(behaviour: Behaviour) -> list[Registration]:
    return [
        Registration(add_SchedulerServiceServicer_to_server, Scheduler(behaviour)),
        Registration(add_CheckpointStoreServiceServicer_to_server, Store(behaviour)),
        Registration(add_WorkerDaemonServiceServicer_to_server, Daemon(behaviour)),
    ]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    behaviour = Behaviour()
    server = RpcServer(f"unix:{tmp_path}/r.sock")
    server.bind()
    await server.start(registrations(behaviour))
    await server.set_ready(True)
    channel = open_channel(server.address, peer="store")
    yield Rig(server, channel, behaviour)
    await channel.close()
    await server.stop(0)
