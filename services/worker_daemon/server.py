"""Entry of the worker daemon: `looseleaf-worker-daemon` or `python -m looseleaf.services.worker_daemon`."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from looseleaf.config import DaemonConfig
from looseleaf.devices.description import GpuDescription
from looseleaf.errors import LooseLeafError
from looseleaf.ids import HostId, LeaseId
from looseleaf.rpc.address import dialled_address
from looseleaf.rpc.server import Registration
from looseleaf.rpc.service import Service
from looseleaf.rpc.service_main import service_main
from looseleaf.services.worker_daemon.adopted_execution import adopt, head_of
from looseleaf.services.worker_daemon.adoption import Adoption, Found
from looseleaf.services.worker_daemon.clients import Clients, Peers
from looseleaf.services.worker_daemon.core.adoption import OpenRun
from looseleaf.services.worker_daemon.core.lease_table import LeaseTable
from looseleaf.services.worker_daemon.core.worker_life import KeepRules
from looseleaf.services.worker_daemon.execution import HostFacts
from looseleaf.services.worker_daemon.gpu_memory import GpuMemory
from looseleaf.services.worker_daemon.gpus import probed_gpus
from looseleaf.services.worker_daemon.heartbeat import CALL_TIMEOUT_S, Heartbeat
from looseleaf.services.worker_daemon.host import Host
from looseleaf.services.worker_daemon.host_state import HostState
from looseleaf.services.worker_daemon.kernel_endpoint import KernelEndpoint
from looseleaf.services.worker_daemon.limits import Confiner, WorkerUser
from looseleaf.services.worker_daemon.metrics import DaemonMetrics
from looseleaf.services.worker_daemon.pool import WorkerPool
from looseleaf.services.worker_daemon.reaper import Reaper
from looseleaf.services.worker_daemon.reports import Reporter, RunReports
from looseleaf.services.worker_daemon.returning_runs import ReturningRuns
from looseleaf.services.worker_daemon.run_journal import RunJournal
from looseleaf.services.worker_daemon.scrubbed_env import scrubbed
from looseleaf.services.worker_daemon.servicer import WorkerDaemonServicer
from looseleaf.services.worker_daemon.trusted_folders import refuse_writable_folders
from looseleaf.services.worker_daemon.worker_forks import WorkerForks
from looseleaf.services.worker_daemon.worker_process import WorkerLimits
from looseleaf.services.worker_daemon.worker_setup import WorkerSetup
from looseleaf.subreaper import become_subreaper
from looseleaf.v1 import scheduler_pb2
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceStub
from looseleaf.v1.worker_daemon_pb2_grpc import add_WorkerDaemonServiceServicer_to_server

log = structlog.get_logger()


async def build(service: Service[DaemonConfig]) -> Sequence[Registration]:
    """Puts the host together; it is ready when its zygote is and the scheduler has heard of it."""
    return await _Builder(service).build()


class _Builder:
    """Steps of the start, in the order in which later ones need earlier ones."""

    def __init__(self, service: Service[DaemonConfig]) -> None:
        self.service = service
        self.config = service.config
        self.host_id = HostId(self.config.host_id)
        self.scheduler: Any = SchedulerServiceStub(service.open_channel(self.config.scheduler, peer="scheduler"))
        self.peers = Peers(service.open_channel)
        self.reaper = Reaper()
        self.leases = LeaseTable(self.config.gpus)
        self.heartbeat = Heartbeat(self.scheduler, self._snapshot, self.leases, self.config.heartbeat_interval_s)
        self.state = HostState(service, self.heartbeat.addresses, self.peers.stub)
        self.confiner = self._confiner()
        self.heartbeat.on_retiring = self.state.durability.hurry
        self.journal = RunJournal(Path(self.config.data) / "running" / self.host_id, self._adoption_socket())
        self.adoption = Adoption(self.journal, self.confiner.user)
        self.returning = ReturningRuns(self.adoption, self.leases, self.heartbeat.nudge)
        self.host: Host | None = None
        # What the real GPUs of this host are, as their driver told.
        self.gpus: list[GpuDescription] = []

    def _snapshot(self) -> scheduler_pb2.HeartbeatRequest:
        assert self.host is not None
        return self.host.snapshot()

    def _confiner(self) -> Confiner:
        config = self.config
        user = WorkerUser.find(config.worker_user)
        refuse_writable_folders(user, config.python, os.environ)
        return Confiner(
            user, config.worker_memory_bytes, config.worker_open_files_max,
            config.worker_processes_max, withheld=scrubbed(os.environ)[1],
            owner=hashlib.blake2b(f"{self.host_id} {config.data}".encode(), digest_size=4).hexdigest(),
        )  # fmt: skip

    def _adoption_socket(self) -> str:
        """Where workers of an earlier daemon come; empty if their user could not reach it."""
        user = self.confiner.user
        # No longer a name than that of the kernels' socket, which fits.
        path = self.config.kernel_socket.with_name(f"adopt-{self.host_id}.sock")
        return str(path) if user is None or user.may_enter(path.parent) else ""

    def _worker_limits(self) -> WorkerLimits:
        return WorkerLimits(self.config.prepare_timeout_s, self.config.save_timeout_s, self.confiner)

    async def build(self) -> Sequence[Registration]:
        config = self.config
        self.service.hold_ready()
        address = dialled_address(self.service.address, config.advertise)
        # Before all that takes longer than workers of the last daemon look for somebody who listens.
        self.service.on_stop(self.adoption.stop)
        self.adoption.start()
        self.returning.begin()
        # Before anything takes the exits of processes for its own.
        self.gpus = await probed_gpus(config.python) if config.device == "cuda" and config.gpus else []
        become_subreaper()
        self.reaper.start()
        self.service.on_stop(self._stop_reaper)
        setup = WorkerSetup(config, self.gpus, self.confiner.user is None)
        zygotes = setup.zygotes(self.reaper)
        metrics = DaemonMetrics(self.service.registry)
        metrics.follow(zygotes)
        self.service.on_stop(zygotes.stop)
        forks = WorkerForks(
            zygotes, self.reaper, self._worker_limits(), self.state.worker_requests, setup.worker_env()
        )
        keep = KeepRules(config.keep_warm_s, config.workers_max)
        pool = WorkerPool(forks, keep, self.heartbeat.nudge, metrics)
        gpu_memory = GpuMemory(config.device, config.gpus, pool.facts)
        metrics.follow_gpus(gpu_memory, config.gpus)
        self.service.start_task(gpu_memory.watch(), name="gpu_memory")
        reporter = Reporter(self._report, self._release)
        endpoint = self._endpoint(pool, setup)
        self.host = Host(
            HostFacts(
                self.host_id, config.device, config.emulated_delays, config.keep_leftovers_s, config.keep_unsaved_s
            ),
            address,
            config.gpus,
            setup.gpu_memory_bytes,
            self.leases,
            self.state.regions,
            pool,
            zygotes,
            reporter,
            lambda: endpoint.kernels,
            self.heartbeat.nudge,
            gpu=self.gpus[0] if self.gpus else None,
            gpu_used=lambda: gpu_memory.used_bytes,
            kernel_sessions=lambda: endpoint.sessions,
            staged_sessions=lambda: self.state.durability.staged_sessions,
            journal=self.journal,
            returning=self.returning,
        )
        servicer = WorkerDaemonServicer(self.host)
        stops = (endpoint.stop, servicer.end_cells, pool.stop, servicer.until_idle)
        for stop in reversed((*stops, self.state.durability.stop, reporter.stop)):
            self.service.on_stop(stop)
        # Before the last daemon's cells are taken over: they would end with a start that fails.
        endpoint.refuse_taken()
        # Zygotes may import for longer than workers of the last daemon wait to be let in.
        starting = asyncio.create_task(zygotes.start())
        try:
            await self._take_over(servicer, pool, reporter)
            await self._ready_to_fork(starting, servicer)
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        self._serve_kernels(endpoint, servicer)
        self.service.on_stop(self._say_draining)
        self.service.on_stopping(self._drain)
        self.service.start_task(self._ready_when_known(), name="heartbeat")
        return [Registration(add_WorkerDaemonServiceServicer_to_server, servicer)]

    def _endpoint(self, pool: WorkerPool, setup: WorkerSetup) -> KernelEndpoint:
        frontend = self.service.open_channel(self.config.frontend, peer="frontend")
        clients = Clients(
            self.state.store, frontend, self.peers, self.host_id, pool.evict_session, self.heartbeat.addresses,
            dialled_address(self.service.address, self.config.advertise),
        )  # fmt: skip
        told = {
            "host_id": self.host_id,
            "device": self.config.device,
            "gpus": setup.cell_gpus,
            "gpu_memory_bytes": setup.gpu_memory_bytes,
            "hash_seed": self.config.hash_seed,
        }
        return KernelEndpoint(
            str(self.config.kernel_socket), self.state.kernel_requests, clients, told, self.config.kernels_max,
            self._pool_gpu, worker_pids=lambda: [facts.pid for facts in pool.facts()],
        )  # fmt: skip

    async def _pool_gpu(self) -> GpuDescription | None:
        """What kernels may say of the GPUs that their cells get; virtual ones are described by their own code."""
        if self.config.device != "cuda":
            return None
        return self.gpus[0] if self.gpus else await self.heartbeat.pool_gpu()

    async def _take_over(self, servicer: WorkerDaemonServicer, pool: WorkerPool, reporter: Reporter) -> None:
        await self.state.forget_last()
        self.state.durability.start()
        reporter.start()
        pool.start()

        async def take(found: Found) -> None:
            assert self.host is not None
            servicer.adopt(await adopt(found, self.host, self.state.worker_requests, self._worker_limits()))

        def lost(run: OpenRun) -> None:
            RunReports(reporter, run.lease).lost(run.facts())

        settling = self.returning.settle(partial(head_of, self.state.store), take, servicer.fence, lost)
        self.service.start_task(settling, name="adoption")

    async def _ready_to_fork(self, starting: asyncio.Task[None], servicer: WorkerDaemonServicer) -> None:
        """Raises as `ZygoteGenerations.start`; a host that has cells of the last daemon then ends with these."""
        assert self.host is not None
        try:
            await starting
        except Exception as error:
            if servicer.idle and not self.returning.facts():
                raise
            reason = error.reason if isinstance(error, LooseLeafError) else type(error).__name__
            log.error("host_ends_with_its_cells", reason=reason, text=str(error))
            self.host.draining = True
            self.service.start_task(self._end_with_cells(servicer, error), name="zygotes")

    async def _end_with_cells(self, servicer: WorkerDaemonServicer, why: Exception) -> None:
        await self.returning.all_known()
        await servicer.until_idle()
        raise why

    def _serve_kernels(self, endpoint: KernelEndpoint, servicer: WorkerDaemonServicer) -> None:
        endpoint.on_owner = servicer.fence
        endpoint.start()
        servicer.callers_may_come()
        if (user := self.confiner.user) is not None:
            # Its kernels are of the same person.
            os.chown(endpoint.path, user.uid, user.gid)

    async def _ready_when_known(self) -> None:
        await self.heartbeat.until_heard()
        await self.service.set_ready(True)
        await self.heartbeat.run()

    def _drain(self) -> None:
        """The scheduler places nothing here any more; cells that run may end within the grace period."""
        if self.host is not None:
            self.host.draining = True
            self.heartbeat.nudge()

    async def _say_draining(self) -> None:
        await self.heartbeat.send()

    async def _stop_reaper(self) -> None:
        self.reaper.stop()

    async def _report(self, request: scheduler_pb2.ReportExecutionRequest) -> None:
        await self.scheduler.ReportExecution(request, timeout_s=CALL_TIMEOUT_S)

    def _release(self, request: scheduler_pb2.ReportExecutionRequest) -> None:
        # Listed in heartbeats until here, so that the scheduler never takes a lease for lost that it is told about.
        self.leases.release(LeaseId(request.lease_id))
        self.heartbeat.nudge()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the daemon until SIGTERM; returns the exit code."""
    return service_main("daemon", DaemonConfig, build, argv)
