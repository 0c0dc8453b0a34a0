"""Tiny real gRPC services for tests of the supervisor: `fake_services.py KIND --flags...`.

FAKE_FAIL=<name> makes a service exit at once, FAKE_HANG=<name> makes it never say SERVING, FAKE_ORPHAN makes a daemon
leave a child behind, FAKE_SLOW_STOP=<name> makes it ignore SIGTERM.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from looseleaf.config import DaemonConfig, FrontendConfig, SchedulerConfig, ServiceConfig, StoreConfig
from looseleaf.errors import NotFound
from looseleaf.rpc.server import Registration
from looseleaf.rpc.service import Service
from looseleaf.rpc.service_main import service_main
from looseleaf.v1 import checkpoint_store_pb2, scheduler_pb2
from looseleaf.v1.checkpoint_store_pb2_grpc import (
    CheckpointStoreServiceServicer,
    add_CheckpointStoreServiceServicer_to_server,
)
from looseleaf.v1.scheduler_pb2_grpc import (
    SchedulerServiceServicer,
    SchedulerServiceStub,
    add_SchedulerServiceServicer_to_server,
)

CONFIGS: dict[str, type[ServiceConfig]] = {
    "checkpoint-store": StoreConfig, "scheduler": SchedulerConfig, "frontend": FrontendConfig, "daemon": DaemonConfig,
}


class Scheduler(SchedulerServiceServicer):
    def __init__(self) -> None:
        self._hosts: dict[str, Any] = {}

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        self._hosts[request.host.host_id] = request
        return scheduler_pb2.HeartbeatResponse()

    async def GetPool(self, request: Any, context: Any) -> Any:
        hosts = [
            scheduler_pb2.HostState(host=beat.host, gpu_count=beat.gpu_count, device_kind=beat.device_kind,
                                    liveness="alive", workers=beat.workers)
            for beat in self._hosts.values()
        ]
        return scheduler_pb2.GetPoolResponse(hosts=hosts, ready=True, queued_runs=2)


class Store(CheckpointStoreServiceServicer):
    """Keeps one line per session in a file, so that a second start finds them."""

    def __init__(self, data: Path) -> None:
        data.mkdir(parents=True, exist_ok=True)
        self._file = data / "sessions"

    async def OpenSession(self, request: Any, context: Any) -> Any:
        with open(self._file, "a") as file:  # noqa: ASYNC230
            file.write(request.session_id + "\n")
        return checkpoint_store_pb2.OpenSessionResponse(head={"session_id": request.session_id})

    async def ListSessions(self, request: Any, context: Any) -> Any:
        names = self._file.read_text().split() if self._file.exists() else []
        return checkpoint_store_pb2.ListSessionsResponse(sessions=[{"session_id": name} for name in names])

    async def DeleteSession(self, request: Any, context: Any) -> Any:
        names = self._file.read_text().split() if self._file.exists() else []
        if request.session_id not in names:
            raise NotFound("SESSION_UNKNOWN", "there is no such session")
        self._file.write_text("".join(f"{name}\n" for name in names if name != request.session_id))
        return checkpoint_store_pb2.DeleteSessionResponse()

    async def GetManifest(self, request: Any, context: Any) -> Any:
        return checkpoint_store_pb2.GetManifestResponse(head={"session_id": request.session_id})

    async def ListVersions(self, request: Any, context: Any) -> Any:
        return checkpoint_store_pb2.ListVersionsResponse()


async def build(service: Service[Any]) -> Sequence[Registration]:
    name = service.name
    if os.environ.get("FAKE_FAIL") == name:
        print("planted failure", file=sys.stderr, flush=True)
        sys.exit(7)
    if os.environ.get("FAKE_HANG") == name:
        service.hold_ready()
    if os.environ.get("FAKE_SLOW_STOP") == name:
        service.on_stopping(lambda: time.sleep(600))
    if name == "scheduler":
        return [Registration(add_SchedulerServiceServicer_to_server, Scheduler())]
    if name == "checkpoint-store":
        return [Registration(add_CheckpointStoreServiceServicer_to_server, Store(service.config.data))]
    if name == "daemon":
        if os.environ.get("FAKE_ORPHAN"):
            subprocess.Popen(["sleep", "600"], start_new_session=True)  # noqa: ASYNC220
        stub = SchedulerServiceStub(service.open_channel(service.config.scheduler, peer="scheduler"))
        service.start_task(beat(service, stub), name="heartbeats")
    return []


async def beat(service: Service[Any], stub: Any) -> None:
    import asyncio

    from looseleaf.errors import LooseLeafError

    config = service.config
    request = scheduler_pb2.HeartbeatRequest(
        host={"host_id": config.host_id, "address": service.address}, gpu_count=config.gpus, device_kind=config.device,
        incarnation=str(os.getpid()))
    while True:
        try:
            await stub.Heartbeat(request, timeout_s=2)
        except LooseLeafError:
            pass
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    kind = sys.argv[1]
    sys.exit(service_main(kind, CONFIGS[kind], build, sys.argv[2:]))
