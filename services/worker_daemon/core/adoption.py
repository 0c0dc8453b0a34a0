"""Which workers of a daemon that was lost go on under the next one (design §5; provisioning study §5, case 7)."""

from __future__ import annotations

from dataclasses import dataclass

from looseleaf.ids import Epoch, ExecutionId, Version, WorkerId
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.core.worker_life import Stage, WorkerFacts


@dataclass(frozen=True)
class OpenRun:
    """A cell that was handed to a worker, as its host's journal has it. Times are on the host's monotonic clock.

    `version`: what the cell starts from. `path`: what it found ready, by the wire's name. `pid_ticks`: when the process
    began, in the kernel's ticks since the boot `boot_id`. `socket_path`: where the worker looks for the next daemon.
    `lives`: how many daemons had it before.
    """

    lease: HeldLease
    version: Version
    execution_count: int
    keep_s: float
    elapsed_ms: float
    arrived_s: float
    path: str
    worker_id: WorkerId
    pid: int
    pid_ticks: int
    boot_id: str
    socket_path: str
    environment_id: str = ""
    kernel_environment_id: str = ""
    lives: int = 0

    def facts(self) -> WorkerFacts:
        """Its worker as the last daemon had it while the cell ran."""
        lease = self.lease
        return WorkerFacts(
            self.worker_id, self.pid, lease.session_id, lease.epoch, Stage.RUNNING, self.version, gpus=lease.gpus,
            execution_id=lease.execution_id, environment_id=self.environment_id,
            kernel_environment_id=self.kernel_environment_id,
        )  # fmt: skip


@dataclass(frozen=True)
class SessionHead:
    """The newest version of a session: its number, the run that made it, the epoch of the session's owner."""

    epoch: Epoch
    version: Version
    execution_id: ExecutionId


def is_alive(run: OpenRun, boot_id: str, pid_ticks: int | None) -> bool:
    """Its worker is there: a process of its pid (`pid_ticks`, None: none) that began when it did, in the same boot."""
    return run.boot_id == boot_id and run.pid_ticks == pid_ticks


def refusal(run: OpenRun, head: SessionHead | None, socket_path: str) -> str:
    """Why a worker that is there may not go on, as one word for the log; empty if it may.

    Its save must be able to become the session's next version, or have become it: nobody else owns the session since,
    nobody else has committed, and what it started from was not lost with the last daemon's arena.
    """
    if run.socket_path != socket_path:
        return "SOCKET_MOVED"
    if head is None:
        return "SESSION_UNKNOWN"
    if head.epoch != run.lease.epoch:
        return "STALE_EPOCH"
    if head.version != run.version and head.execution_id != run.lease.execution_id:
        return "VERSION_MOVED"
    return ""
