"""Daemons and clients of a random world: plain state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from looseleaf.ids import Epoch, HostId
from looseleaf.services.scheduler.core.actions import PrepareWorker
from looseleaf.services.scheduler.core.facts import Hold, HostReport, Lease, WorkerReport, WorkerStage

WORKER_BYTES, CONTEXT_BYTES = 12, 3


@dataclass
class Held:
    """A lease at its daemon: unused, running, saving, or ended with its last report not answered."""

    lease: Lease
    renewed_at_s: float
    stage: str = "unused"
    worker_id: str = ""


@dataclass
class Daemon:
    """One host's truth."""

    host_id: str
    gpus: int
    incarnation: int = 1
    up: bool = True
    # Ended by provisioning: it comes back when one is asked for.
    stopped: bool = False
    cut_off: bool = False
    beating: bool = False
    leases: dict[str, Held] = field(default_factory=dict)
    workers: dict[str, WorkerReport] = field(default_factory=dict)
    # Workers with variables that no version has: until when they make way for nobody, and in which epoch.
    holds: dict[str, tuple[float, int]] = field(default_factory=dict)
    gpu_memory_bytes: int = 0
    # What others than our workers use of each GPU.
    foreign_bytes: list[int] = field(default_factory=list)

    def report(self, now_s: float) -> HostReport:
        return HostReport(
            HostId(self.host_id), f"unix:/{self.host_id}", f"i{self.incarnation}", self.gpus, "emulated",
            tuple(self.told(worker_id, now_s) for worker_id in self.workers),
            tuple(held.lease for held in self.leases.values()), gpu_memory_bytes=self.gpu_memory_bytes,
            gpu_used_bytes=tuple(self.used_bytes(index) for index in range(self.gpus)))

    def used_bytes(self, index: int) -> int:
        """What a measurement tells of a GPU: everybody's, contexts too."""
        data = sum(WORKER_BYTES for worker in self.workers.values() if index in worker.gpu_indices)
        contexts = sum(CONTEXT_BYTES for worker in self.workers.values() if index in worker.context_gpus)
        return min(self.gpu_memory_bytes, sum(self.foreign_bytes[index:index + 1]) + data + contexts)

    def told(self, worker_id: str, now_s: float) -> WorkerReport:
        worker = self.workers[worker_id]
        if worker_id not in self.holds or runs(worker):
            return worker
        until_s, epoch = self.holds[worker_id]
        return replace(worker, hold=Hold(("it",), max(0.0, until_s - now_s), Epoch(epoch)))

    def keeps(self, worker_id: str, now_s: float) -> bool:
        return worker_id in self.workers and now_s < self.holds.get(worker_id, (0.0, 0))[0]


@dataclass
class Want:
    """What a client wants: one execution, asked for by request `asked`, until it has an outcome."""

    execution_id: str
    session_id: str
    epoch: int
    gpus: int
    asked: str = ""
    done: bool = False
    # The worker whose variables it needs, if it needs any.
    need: str = ""
    # On all of its GPUs together.
    device_bytes: int = 0
    peak_bytes: int = 0


def runs(worker: WorkerReport) -> bool:
    """True while a cell runs on it or is saved."""
    return worker.stage in (WorkerStage.RUNNING, WorkerStage.SAVING)


def serves(worker: WorkerReport, order: PrepareWorker) -> bool:
    """False if another process must be made ready: one can neither leave its device nor change it.

    One that has run a cell goes on where it is.
    """
    opened = worker.gpu_indices or worker.context_gpus
    if worker.execution_id or not opened:
        return True
    if order.leave_device or (worker.gpu_indices and order.stage < WorkerStage.DEVICE_READY):
        return False
    return order.stage is WorkerStage.HOST_READY or opened == order.gpu_indices
