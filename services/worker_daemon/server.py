"""Entry of the worker daemon: `looseleaf-worker-daemon` or `python -m looseleaf.services.worker_daemon`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog

from looseleaf.config import DaemonConfig
from looseleaf.errors import LooseLeafError
from looseleaf.ids import HostId, LeaseId, SessionId
from looseleaf.rpc.server import Registration
from looseleaf.rpc.service import Service
from looseleaf.rpc.service_main import service_main
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.worker_daemon.arena import HostArena
from looseleaf.services.worker_daemon.clients import Clients, Peers
from looseleaf.services.worker_daemon.core.lease_table import LeaseTable
from looseleaf.services.worker_daemon.core.worker_life import KeepRules
from looseleaf.services.worker_daemon.durability import DurabilityQueue
from looseleaf.services.worker_daemon.execution import HostFacts
from looseleaf.services.worker_daemon.heartbeat import CALL_TIMEOUT_S, Heartbeat
from looseleaf.services.worker_daemon.host import Host
from looseleaf.services.worker_daemon.kernel_endpoint import KernelEndpoint
from looseleaf.services.worker_daemon.pool import WorkerPool
from looseleaf.services.worker_daemon.reaper import Reaper, become_subreaper
from looseleaf.services.worker_daemon.region_sources import StoreLocator
from looseleaf.services.worker_daemon.regions import HostRegions
from looseleaf.services.worker_daemon.reports import RETRIED_CODES, Reporter
from looseleaf.services.worker_daemon.servicer import WorkerDaemonServicer
from looseleaf.services.worker_daemon.state_requests import StateOwner, StateRequests
from looseleaf.services.worker_daemon.zygote import Zygote, ZygoteSettings
from looseleaf.v1 import scheduler_pb2
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceStub
from looseleaf.v1.worker_daemon_pb2_grpc import add_WorkerDaemonServiceServicer_to_server

log = structlog.get_logger()

COPY_THREADS = 2


async def build(service: Service[DaemonConfig]) -> Sequence[Registration]:
    """Puts the host together; it is ready when its zygote is and the scheduler has heard of it."""
    return await _Builder(service).build()


class _Builder:
    """Steps of the start, in the order in which later ones need earlier ones."""

    def __init__(self, service: Service[DaemonConfig]) -> None:
        self.service = service
        self.config = service.config
        self.host_id = HostId(self.config.host_id)
        self.store = StoreClient(service.open_channel(self.config.store, peer="store"))
        self.scheduler: Any = SchedulerServiceStub(service.open_channel(self.config.scheduler, peer="scheduler"))
        self.peers = Peers(service.open_channel)
        self.reaper = Reaper()
        self.leases = LeaseTable(self.config.gpus)
        self.heartbeat = Heartbeat(self.scheduler, self._snapshot, self.leases, self.config.heartbeat_interval_s)
        self.regions = self._regions()
        self.durability = DurabilityQueue(self.store, self.regions)
        self.host: Host | None = None

    def _snapshot(self) -> scheduler_pb2.HeartbeatRequest:
        assert self.host is not None
        return self.host.snapshot()

    def _regions(self) -> HostRegions:
        executor = ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="copy")
        arena = HostArena(self.config.arena_bytes)
        locator = StoreLocator(self.store, self.host_id, self.heartbeat.addresses, self.peers.stub)

        async def close() -> None:
            executor.shutdown(cancel_futures=True)
            arena.close()

        self.service.on_stop(close)
        return HostRegions(arena, locator, self.host_id, executor)

    def _requests(self, owner: StateOwner) -> StateRequests:
        return StateRequests(owner, self.regions, self.store, self.host_id, self.config.ring_bytes, self.durability.add)

    async def build(self) -> Sequence[Registration]:
        config = self.config
        self.service.hold_ready()
        become_subreaper()
        self.reaper.start()
        zygote = Zygote(self._zygote_settings(), self.reaper)
        await zygote.start()
        pool = WorkerPool(
            zygote,
            self.reaper,
            KeepRules(config.keep_warm_s, config.workers_max),
            self._requests,
            self._worker_env(),
            self.heartbeat.nudge,
        )
        reporter = Reporter(self._report)
        clients = Clients(
            self.store,
            self.service.open_channel(config.frontend, peer="frontend"),
            self.peers,
            lambda session_id: _evict_session(pool, session_id),
        )
        facts = HostFacts(self.host_id, config.device, config.emulated_delays)
        endpoint = KernelEndpoint(
            str(config.kernel_socket),
            self._requests,
            clients,
            {
                "host_id": self.host_id,
                "device": config.device,
                "gpus": config.gpus,
                "gpu_memory_bytes": config.gpu_memory_bytes,
            },
        )
        self.host = Host(
            facts,
            self.service.address,
            config.gpus,
            config.gpu_memory_bytes,
            self.leases,
            self.regions,
            pool,
            zygote,
            reporter,
            lambda: endpoint.kernels,
            self.heartbeat.nudge,
        )
        servicer = WorkerDaemonServicer(self.host)
        await self._begin(endpoint, pool, reporter, zygote)
        return [Registration(add_WorkerDaemonServiceServicer_to_server, servicer)]

    async def _begin(self, endpoint: KernelEndpoint, pool: WorkerPool, reporter: Reporter, zygote: Zygote) -> None:
        # What an earlier daemon of this host staged died with its arena; the store must not point there any more.
        await self.store.forget_host(self.host_id)
        self.durability.start()
        reporter.start()
        pool.start()
        endpoint.start()
        for stop in (self._stop_reaper, zygote.stop, reporter.stop, self.durability.stop, pool.stop, endpoint.stop):
            self.service.on_stop(stop)
        self.service.start_task(self._ready_when_known(), name="heartbeat")

    async def _ready_when_known(self) -> None:
        await self.heartbeat.send()
        await self.service.set_ready(True)
        await self.heartbeat.run()

    async def _stop_reaper(self) -> None:
        self.reaper.stop()

    async def _report(self, request: scheduler_pb2.ReportExecutionRequest) -> None:
        if request.release:
            # The scheduler must know the completed worker before it places the session's next cell.
            await self.heartbeat.send()
        try:
            await self.scheduler.ReportExecution(request, timeout_s=CALL_TIMEOUT_S)
        except LooseLeafError as error:
            if error.code in RETRIED_CODES:
                raise
            log.warning("report_refused", reason=error.reason, execution=request.execution_id)
        if request.release:
            # Listed in heartbeats until here, so that the scheduler never takes a lease for lost that it is told about.
            self.leases.release(LeaseId(request.lease_id))

    def _zygote_settings(self) -> ZygoteSettings:
        log_path = Path(self.config.data) / "logs" / f"zygote-{self.host_id}.log"
        log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return ZygoteSettings(
            self.config.python,
            tuple(self.config.base_imports),
            {"PYTHONHASHSEED": self.config.hash_seed, **self._worker_env()},
            str(log_path),
        )

    def _worker_env(self) -> dict[str, str]:
        return {
            "LOOSELEAF_HOST_ID": self.host_id,
            "LOOSELEAF_DEVICE": self.config.device,
            # Libraries count GPUs when they are imported: as many as a cell gets, whatever the host has.
            "LOOSELEAF_GPUS": str(min(self.config.gpus, 1)),
            "LOOSELEAF_GPU_MEMORY_BYTES": str(self.config.gpu_memory_bytes),
            "LOOSELEAF_THREADS": str(os.cpu_count() or 1),
        }


async def _evict_session(pool: WorkerPool, session_id: SessionId) -> int:
    evicted = [await pool.evict(facts.worker_id) for facts in pool.roster.of_session(session_id)]
    return sum(evicted)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the daemon until SIGTERM; returns the exit code."""
    return service_main("daemon", DaemonConfig, build, argv)
