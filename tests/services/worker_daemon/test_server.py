"""The whole daemon as a service in this process: its neighbours are real gRPC servers, its zygote goes by a script."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from daemon_fakes import until, within
from grpc_health.v1 import health_pb2, health_pb2_grpc

from looseleaf.config import DaemonConfig
from looseleaf.errors import InvalidArgument, LooseLeafError, PreconditionFailed, Unavailable
from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId, Version, WorkerId
from looseleaf.protocol.aio import AsyncChannel
from looseleaf.protocol.aio_rpc import AsyncLink
from looseleaf.rpc.client import open_channel
from looseleaf.rpc.server import Registration, RpcServer
from looseleaf.rpc.service import Service
from looseleaf.services.worker_daemon import server, zygote
from looseleaf.services.worker_daemon.core.adoption import OpenRun
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.generations import ZygoteGenerations
from looseleaf.services.worker_daemon.process_stat import process_ticks
from looseleaf.services.worker_daemon.run_journal import RunJournal
from looseleaf.services.worker_daemon.server import build
from looseleaf.v1 import checkpoint_pb2, checkpoint_store_pb2, scheduler_pb2
from looseleaf.v1.checkpoint_store_pb2_grpc import (
    CheckpointStoreServiceServicer,
    add_CheckpointStoreServiceServicer_to_server,
)
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceServicer, add_SchedulerServiceServicer_to_server

LISTENER = "gRPC keeps the listener of a server that was never started until the process ends"


@dataclass
class Store(CheckpointStoreServiceServicer):
    """Forgets hosts and opens sessions, whose newest version is 5."""

    forgotten: list[str] = field(default_factory=list)
    error: LooseLeafError | None = None
    epoch: int = 1

    async def ForgetHostRegions(self, request: Any, context: Any) -> Any:
        if self.error is not None:
            raise self.error
        assert request.all
        self.forgotten.append(request.host_id)
        fallback = checkpoint_store_pb2.SessionFallback(session_id="s-9", lost_version=7, version=5)
        return checkpoint_store_pb2.ForgetHostRegionsResponse(fallbacks=[fallback])

    async def OpenSession(self, request: Any, context: Any) -> Any:
        head = checkpoint_pb2.SessionHead(session_id=request.session_id, epoch=self.epoch, version=0)
        return checkpoint_store_pb2.OpenSessionResponse(head=head)

    async def GetManifest(self, request: Any, context: Any) -> Any:
        head = checkpoint_pb2.SessionHead(session_id=request.session_id, epoch=self.epoch, version=5)
        return checkpoint_store_pb2.GetManifestResponse(head=head, version=5)


@dataclass
class Scheduler(SchedulerServiceServicer):
    """Hears heartbeats when it may."""

    may_hear: asyncio.Event = field(default_factory=asyncio.Event)
    heartbeats: list[scheduler_pb2.HeartbeatRequest] = field(default_factory=list)
    reports: list[scheduler_pb2.ReportExecutionRequest] = field(default_factory=list)

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        if not self.may_hear.is_set():
            raise Unavailable("NOT_YET", "starting")
        self.heartbeats.append(request)
        return scheduler_pb2.HeartbeatResponse()

    async def ReportExecution(self, request: Any, context: Any) -> Any:
        self.reports.append(request)
        return scheduler_pb2.ReportExecutionResponse()


@dataclass
class Rig:
    """The neighbours, and how to start the daemon."""

    store: Store
    scheduler: Scheduler
    config: DaemonConfig

    def service(self) -> Service[DaemonConfig]:
        return Service("daemon", self.config)


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setenv("FAKE_ZYGOTE", "hang")
    interpreter = tmp_path / "python"
    fake = Path(__file__).parent / "fake_zygote.py"
    interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{fake}" "$@"\n')
    interpreter.chmod(0o700)
    store, scheduler = Store(), Scheduler()
    servers = []
    for name, add, servicer in (
        ("store", add_CheckpointStoreServiceServicer_to_server, store),
        ("scheduler", add_SchedulerServiceServicer_to_server, scheduler),
    ):
        server = RpcServer(f"unix:{tmp_path}/{name}.sock")
        server.bind()
        await server.start([Registration(add, servicer)])
        servers.append(server)
    config = DaemonConfig(
        run_dir=tmp_path, data=tmp_path, listen=f"unix:{tmp_path}/d.sock", store=f"unix:{tmp_path}/store.sock",
        scheduler=f"unix:{tmp_path}/scheduler.sock", frontend=f"unix:{tmp_path}/frontend.sock",
        kernel_socket=tmp_path / "k.sock", device="emulated", gpus=4, arena_bytes=128 << 20, python=str(interpreter),
        base_imports=("json",), hash_seed="7", heartbeat_interval_s=0.01, shutdown_grace_s=0.0,
    )  # fmt: skip
    yield Rig(store, scheduler, config)
    for server in servers:
        await server.stop(0)


async def healthy(address: str) -> bool:
    async with open_channel(address, peer="host") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # type: ignore[arg-type]
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout_s=5)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_daemon_is_ready_when_the_scheduler_has_heard_and_leaves_nothing_when_stopped(rig: Rig) -> None:
    service = rig.service()
    running = asyncio.create_task(service.run(build))
    await until(rig.config.kernel_socket.exists)
    assert not await healthy(rig.config.listen) and rig.store.forgotten == ["h0"]
    rig.scheduler.may_hear.set()
    await until(lambda: bool(rig.scheduler.heartbeats))
    await asyncio.sleep(0)
    assert await healthy(rig.config.listen)
    told = rig.scheduler.heartbeats[0]
    assert (told.host.host_id, told.gpu_count, told.device_kind, told.draining) == ("h0", 4, "emulated", False)

    reader, writer = await asyncio.open_unix_connection(str(rig.config.kernel_socket))
    sock = writer.get_extra_info("socket").dup()
    writer.close()
    link = AsyncLink(AsyncChannel(sock))
    serving = asyncio.create_task(link.serve())
    reply, _fds = await within(link.request("hello", {"v": 1, "session_id": "s-1"}))
    assert (reply["host_id"], reply["gpus"], reply["hash_seed"], reply["epoch"]) == ("h0", 1, "7", 1)
    del reader

    service.request_stop("test ended")
    assert await within(running) == 0
    assert (await within(serving)).reason == "PEER_CLOSED"
    assert rig.scheduler.heartbeats[-1].draining, "the scheduler was told to place nothing here"
    assert "k.sock" not in os.listdir(rig.config.run_dir)


@pytest.fixture
def sleeper(rig: Rig) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the last daemon that runs a cell on GPU 2 and never comes back."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    journal = RunJournal(Path(rig.config.data) / "running" / "h0", str(rig.config.run_dir / "adopt-h0.sock"))
    journal.lock()
    lease = HeldLease(
        LeaseId("l-1"), SessionId("s-1"), Epoch(1), ExecutionId("x-1"), (2,), None, 3, 10.0, 1.0, 11.0
    )
    journal.open(OpenRun(
        lease, Version(5), 7, 0.0, 20.0, 1.0, "START_PATH_COLD", WorkerId("w-1"), process.pid,
        process_ticks(process.pid) or 0, journal.boot_id, journal.socket_path, lives=1,
    ))  # fmt: skip
    journal.unlock()
    yield process
    process.kill()
    process.wait()


async def test_daemon_serves_while_it_waits_for_a_silent_worker_and_keeps_its_gpu_for_it(
    rig: Rig, sleeper: subprocess.Popen[bytes]
) -> None:
    rig.scheduler.may_hear.set()
    service = rig.service()
    running = asyncio.create_task(service.run(build))
    await until(lambda: bool(rig.scheduler.heartbeats))
    told = rig.scheduler.heartbeats[0]
    assert [(lease.lease_id, list(lease.gpu_indices)) for lease in told.leases] == [("l-1", [2])]
    assert [(one.worker_id, one.execution_id, one.stage) for one in told.workers] == [
        ("w-1", "x-1", scheduler_pb2.WORKER_STAGE_RUNNING)
    ]
    # Its notebook comes back as a new owner, and nobody needs what the cell has made.
    rig.store.epoch = 2
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, str(rig.config.kernel_socket))
    link = AsyncLink(AsyncChannel(sock))
    serving = asyncio.create_task(link.serve())
    await within(link.request("hello", {"v": 1, "session_id": "s-1"}))
    await asyncio.to_thread(sleeper.wait, 20)
    await until(lambda: not rig.scheduler.heartbeats[-1].leases and not rig.scheduler.heartbeats[-1].workers)
    (end,) = rig.scheduler.reports
    assert (end.execution_id, end.lease_id, end.state, end.reason, end.release, end.worker.stage) == (
        "x-1", "l-1", scheduler_pb2.EXECUTION_STATE_INDETERMINATE, "DAEMON_RESTARTED", True,
        scheduler_pb2.WORKER_STAGE_GONE,
    )  # fmt: skip
    service.request_stop("test ended")
    assert await within(running) == 0
    await within(serving)


@pytest.mark.parametrize("fault", ["unclean", "ours"])
async def test_daemon_without_zygotes_serves_the_cells_of_the_last_one_until_they_end_and_takes_no_others(
    rig: Rig, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    async def fail(_zygotes: ZygoteGenerations) -> None:
        raise RuntimeError("a fault of ours")

    if fault == "ours":
        monkeypatch.setattr(ZygoteGenerations, "start", fail)
    monkeypatch.setenv("FAKE_ZYGOTE", "unclean")
    rig.scheduler.may_hear.set()
    running = asyncio.create_task(rig.service().run(build))
    await until(lambda: bool(rig.scheduler.heartbeats))
    told = rig.scheduler.heartbeats[0]
    assert told.draining and [lease.lease_id for lease in told.leases] == ["l-1"]
    # Its worker ends by itself.
    sleeper.kill()
    assert await within(running) == 1


@pytest.mark.leaks_ok(LISTENER)
async def test_workers_of_the_last_daemon_find_this_one_while_a_driver_wakes(
    rig: Rig, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def probed(_python: str) -> Any:
        with socket.socket(socket.AF_UNIX) as worker:
            worker.connect(str(rig.config.run_dir / "adopt-h0.sock"))
        raise LooseLeafError("WOKEN", "that is all")

    monkeypatch.setattr(server, "probed_gpus", probed)
    rig.config = rig.config.model_copy(update={"device": "cuda"})
    with pytest.raises(LooseLeafError, match="WOKEN"):
        await within(rig.service().run(build))
    assert sleeper.poll() is None, "the next daemon may need it"


@pytest.mark.leaks_ok(LISTENER)
async def test_workers_of_the_last_daemon_do_not_wait_for_the_zygotes_of_this_one(
    rig: Rig, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ZYGOTE", "mute")
    monkeypatch.setattr(zygote, "EXIT_TIMEOUT_S", 0.05)
    # Whether this one may go on is known by now: its session has another owner.
    rig.store.epoch = 2
    service = rig.service()
    running = asyncio.create_task(service.run(build))
    await asyncio.to_thread(sleeper.wait, 20)
    assert not rig.config.kernel_socket.exists(), "without a zygote no cell of a notebook can begin"
    service.request_stop("test ended")
    await within(running)


@pytest.mark.leaks_ok(LISTENER)
async def test_start_that_cannot_succeed_leaves_the_cells_of_the_last_daemon_to_the_next(
    rig: Rig, sleeper: subprocess.Popen[bytes]
) -> None:
    # Its worker would be ended at once.
    rig.store.epoch = 2
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(rig.config.kernel_socket))
        other.listen()
        with pytest.raises(Unavailable, match="SOCKET_TAKEN"):
            await within(rig.service().run(build))
    assert sleeper.poll() is None and rig.store.forgotten == []


@pytest.mark.leaks_ok(LISTENER)
async def test_start_that_fails_leaves_no_zygote(rig: Rig) -> None:
    rig.store.error = LooseLeafError("BROKEN", "the store cannot")
    with pytest.raises(LooseLeafError):
        await within(rig.service().run(build))
    assert "k.sock" not in os.listdir(rig.config.run_dir)


@pytest.mark.leaks_ok(LISTENER)
async def test_zygote_that_cannot_start_stops_the_daemon_and_says_why(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ZYGOTE", "unclean")
    with pytest.raises(Unavailable, match="FORBIDDEN_MODULE: ray.*zygote-h0.log"):
        await within(rig.service().run(build))


@pytest.mark.leaks_ok(LISTENER)
async def test_daemon_that_listens_on_every_interface_must_say_how_it_is_reached(rig: Rig) -> None:
    rig.config = rig.config.model_copy(update={"listen": "0.0.0.0:0", "allow_remote_tcp": True})
    with pytest.raises(InvalidArgument, match=r"ADDRESS_NOT_DIALABLE.*--advertise"):
        await within(rig.service().run(build))


async def test_daemon_reports_the_address_it_advertises_and_cells_that_see_a_gpu_without_one_here(rig: Rig) -> None:
    changed = {"listen": "127.0.0.1:0", "advertise": "localhost:0", "gpus": 0, "cell_gpus": 1}
    rig.config = rig.config.model_copy(update=changed)
    rig.scheduler.may_hear.set()
    service = rig.service()
    running = asyncio.create_task(service.run(build))
    await until(lambda: bool(rig.scheduler.heartbeats))
    told = rig.scheduler.heartbeats[0]
    assert told.host.address == f"localhost:{service.address.rpartition(':')[2]}" and told.gpu_count == 0
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, str(rig.config.kernel_socket))
    link = AsyncLink(AsyncChannel(sock))
    serving = asyncio.create_task(link.serve())
    reply, _fds = await within(link.request("hello", {"v": 1, "session_id": "s-1"}))
    assert reply["gpus"] == 1
    service.request_stop("test ended")
    assert await within(running) == 0
    await within(serving)


@pytest.mark.leaks_ok(LISTENER)
async def test_user_of_workers_that_this_host_does_not_have_stops_the_daemon(rig: Rig) -> None:
    rig.config = rig.config.model_copy(update={"worker_user": "nobody-of-that-name"})
    with pytest.raises(PreconditionFailed, match="WORKER_USER_REFUSED"):
        await within(rig.service().run(build))


@pytest.mark.leaks_ok(LISTENER)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run workers as another user")
async def test_environment_that_the_user_of_workers_may_write_stops_a_daemon_of_root(rig: Rig, tmp_path: Path) -> None:
    user = next((row for row in pwd.getpwall() if row.pw_uid != 0), None)
    if user is None:
        pytest.skip("this host has no other user")
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").touch()
    os.chown(tmp_path / "env", user.pw_uid, user.pw_gid)
    python = str(tmp_path / "env" / "bin" / "python")
    rig.config = rig.config.model_copy(update={"worker_user": str(user.pw_uid), "python": python})
    with pytest.raises(PreconditionFailed, match=f"WORKER_USER_REFUSED: {user.pw_name} may write {tmp_path}/env, "):
        await within(rig.service().run(build))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run workers as another user")
async def test_kernel_socket_is_given_to_the_user_of_workers_and_heartbeats_tell_the_memory_of_gpus(rig: Rig) -> None:
    user = next((row for row in pwd.getpwall() if row.pw_uid != 0), None)
    if user is None:
        pytest.skip("this host has no other user")
    rig.config = rig.config.model_copy(update={"worker_user": str(user.pw_uid)})
    rig.scheduler.may_hear.set()
    service = rig.service()
    running = asyncio.create_task(service.run(build))
    await until(lambda: bool(rig.scheduler.heartbeats))
    found = rig.config.kernel_socket.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (user.pw_uid, user.pw_gid, 0o600)
    assert list(rig.scheduler.heartbeats[0].gpu_used_bytes) == [0, 0, 0, 0]
    service.request_stop("test ended")
    assert await within(running) == 0
