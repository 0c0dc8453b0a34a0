"""The parts of one host put together."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from looseleaf.devices.description import GpuDescription
from looseleaf.ids import SessionId
from looseleaf.services.worker_daemon.core.lease_table import LeaseTable
from looseleaf.services.worker_daemon.core.worker_life import WorkerFacts
from looseleaf.services.worker_daemon.execution import HostFacts
from looseleaf.services.worker_daemon.execution_log import ExecutionLog
from looseleaf.services.worker_daemon.generations import ZygoteGenerations
from looseleaf.services.worker_daemon.gpus import gpu_message
from looseleaf.services.worker_daemon.import_cache_view import zygote_messages
from looseleaf.services.worker_daemon.pool import WorkerPool
from looseleaf.services.worker_daemon.regions import HostRegions
from looseleaf.services.worker_daemon.reports import Reporter
from looseleaf.services.worker_daemon.returning_runs import ReturningRuns
from looseleaf.services.worker_daemon.run_journal import RunJournal
from looseleaf.services.worker_daemon.wire import lease_message, worker_state
from looseleaf.v1 import scheduler_pb2, types_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb


@dataclass
class Host:
    """What the servicer, the kernels' endpoint and the heartbeat share."""

    facts: HostFacts
    address: str
    gpu_count: int
    gpu_memory_bytes: int
    leases: LeaseTable
    regions: HostRegions
    pool: WorkerPool
    zygotes: ZygoteGenerations
    reporter: Reporter
    kernels: Callable[[], int]
    changed: Callable[[], None]
    # What its GPUs are, if they are real and the driver told.
    gpu: GpuDescription | None = None
    # Bytes in use on each GPU, if that is known.
    gpu_used: Callable[[], Sequence[int]] = tuple
    kernel_sessions: Callable[[], Sequence[SessionId]] = tuple
    # Sessions with versions that are nowhere but in this host's arena.
    staged_sessions: Callable[[], int] = lambda: 0
    executions: ExecutionLog = field(default_factory=ExecutionLog)
    # Where the next daemon finds the cells that run. None, as in tests: nowhere.
    journal: RunJournal | None = None
    # Cells of the last daemon whose workers may come back. None, as in tests: no daemon was here before.
    returning: ReturningRuns | None = None
    # A new start of the daemon is a new incarnation: its old leases and workers are gone but for those that it lists.
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))
    draining: bool = False

    @property
    def workers(self) -> list[WorkerFacts]:
        """This daemon's own, and those of the last one that may come back."""
        return [*self.pool.facts(), *(self.returning.facts() if self.returning is not None else ())]

    def snapshot(self) -> scheduler_pb2.HeartbeatRequest:
        """The host's state as its heartbeat carries it."""
        now_s = time.monotonic()
        own = types_pb2.HostAddress(host_id=self.facts.host_id, address=self.address)
        return scheduler_pb2.HeartbeatRequest(
            host=own,
            incarnation=self.incarnation,
            gpu_count=self.gpu_count,
            device_kind=self.facts.device,
            workers=[worker_state(facts, now_s) for facts in self.workers],
            leases=[lease_message(lease, own) for lease in self.leases.held()],
            draining=self.draining,
            gpu_memory_bytes=self.gpu_memory_bytes,
            gpu=gpu_message(self.gpu),
            gpu_used_bytes=self.gpu_used(),
            staged_sessions=self.staged_sessions(),
            ended_holders=[
                scheduler_pb2.EndedHolder(worker_id=ended.worker_id, why=ended.why, ended_s_ago=now_s - ended.ended_s)
                for ended in self.pool.ended_holders.told(now_s)
            ],
        )

    def describe(self) -> pb.GetHostResponse:
        """The host for people."""
        return pb.GetHostResponse(
            state=self.snapshot(),
            arena_used_bytes=self.regions.arena.used_bytes,
            arena_limit_bytes=self.regions.arena.limit_bytes,
            zygote_pids=self.zygotes.pids,
            zygote_imports=list(self.zygotes.imports),
            kernels=self.kernels(),
            kernel_sessions=self.kernel_sessions(),
            zygotes=zygote_messages(self.zygotes.cache, time.monotonic()),
        )
