"""A worker daemon of the simulator: workers, what they hold, and how long their parts of a start take.

It does what the scheduler orders and checks that no order takes a GPU from a cell or from memory that somebody holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from looseleaf.ids import ExecutionId, HostId, LeaseId, SessionId, Version, WorkerId
from looseleaf.services.scheduler.core.facts import HostReport, Lease, WorkerReport, WorkerStage
from looseleaf.sim.ledger import GpuState
from looseleaf.sim.model import Mechanism
from looseleaf.sim.pool import SimHost
from looseleaf.sim.world import Session, World


class SimWorker:
    """One worker process. `source_hash`: the recipe whose closure it holds in host memory.

    `gpus`: where its context is open. `loaded`: the recipe whose payloads lie on them. `state_of`: the number of the
    session's last GPU cell whose state it has, as it ran it. `leased`: a cell starts, runs or is saved on it.
    """

    __slots__ = (
        "execution_id", "gpus", "has_run", "leased", "loaded", "ready_at_s", "report", "resident_bytes", "session",
        "session_id", "source_hash", "stage", "state_of", "version", "worker_id",
    )  # fmt: skip

    def __init__(self, worker_id: WorkerId, session: Session, session_id: SessionId) -> None:
        self.worker_id = worker_id
        self.session = session
        self.session_id = session_id
        self.source_hash = self.loaded = ""
        self.gpus: tuple[int, ...] = ()
        self.has_run = self.leased = False
        self.state_of = 0
        self.stage = WorkerStage.FORKED
        self.version = Version(0)
        self.execution_id = ExecutionId("")
        self.resident_bytes = 0
        self.ready_at_s = 0.0
        self.report: WorkerReport | None = None

    @property
    def resident(self) -> bool:
        """Whether it holds device memory beyond its context."""
        return bool(self.loaded)

    def told(self) -> WorkerReport:
        """As a heartbeat lists it; the same object while nothing changed."""
        if self.report is None:
            gpus = self.gpus if self.resident else ()
            idle_stage = WorkerStage.COMPLETED if self.has_run else WorkerStage.HOST_READY
            stage = self.stage if gpus or self.stage is not WorkerStage.DEVICE_READY else idle_stage
            self.report = WorkerReport(
                self.worker_id, self.session_id, stage, self.version, self.source_hash, gpus, self.execution_id,
                self.resident_bytes,
            )
        return self.report

    def change(self, stage: WorkerStage) -> None:
        """Goes on to a stage; what was told of it is out of date."""
        self.stage = stage
        self.report = None


class SimDaemon:
    """The daemon of one host."""

    def __init__(self, world: World, host: SimHost) -> None:
        self.host = host
        self.host_id = HostId(f"h{host.number:05d}")
        self.workers: dict[WorkerId, SimWorker] = {}
        self.leases: dict[LeaseId, Lease] = {}
        # The workers under way by session: a Run that comes meanwhile goes on with them.
        self.arriving: dict[SessionId, SimWorker] = {}
        self._world = world
        self._gpus = [GpuState.IDLE] * host.gpus
        self._holders: list[set[WorkerId]] = [set() for _ in range(host.gpus)]
        self._leased: list[GpuState | None] = [None] * host.gpus

    def report(self) -> HostReport:
        """A heartbeat. A host that the scheduler drains does not say so, as a real one: it may be taken back."""
        workers = tuple([worker.report or worker.told() for worker in self.workers.values()])
        return HostReport(
            self.host_id, self.host_id, "1", self.host.gpus, "cuda", workers, tuple(self.leases.values()),
            gpu_memory_bytes=self.host.memory_bytes,
        )

    def add(self, worker: SimWorker) -> None:
        """A new process."""
        self.workers[worker.worker_id] = worker

    def load(self, worker: SimWorker, gpus: Sequence[int], what: str, resident_bytes: int) -> None:
        """The worker takes device memory for `what` on `gpus`."""
        self.unload(worker)
        worker.gpus, worker.loaded, worker.resident_bytes, worker.report = tuple(gpus), what, resident_bytes, None
        for index in worker.gpus:
            self._holders[index].add(worker.worker_id)
        self._settle(worker.gpus)

    def unload(self, worker: SimWorker) -> None:
        """Its device memory is free, or given to what is loaded next; the context stays."""
        worker.report = None
        if worker.loaded:
            worker.loaded = ""
            for index in worker.gpus:
                self._holders[index].discard(worker.worker_id)
            self._settle(worker.gpus)

    def end(self, worker: SimWorker) -> None:
        """The process is gone."""
        assert not worker.leased, f"{worker.worker_id} is ended while a cell runs on it"
        self.unload(worker)
        del self.workers[worker.worker_id]
        if self.arriving.get(worker.session_id) is worker:
            del self.arriving[worker.session_id]

    def worker_for(self, lease: Lease) -> SimWorker | None:
        """Who takes the lease's cell: the worker it names or the one under way; None: a new one.

        A process that has opened other GPUs cannot change to these: it is ended.
        """
        worker = self.workers.get(lease.worker_id) or self.arriving.get(lease.session_id)
        if worker is not None and worker.gpus not in ((), lease.gpu_indices):
            self.end(worker)
            return None
        return worker

    def lease(self, lease: Lease, worker: SimWorker) -> None:
        """GPUs go to a cell: nobody else may have memory there."""
        for index in lease.gpu_indices:
            assert self._leased[index] is None, f"GPU {index} of {self.host_id} is in two leases"
            for other in sorted(self._holders[index] - {worker.worker_id}):
                self._yield(self.workers[other], index)
            self._leased[index] = GpuState.PREPARING
        worker.leased = True
        self.leases[lease.lease_id] = lease
        self._settle(lease.gpu_indices)

    def _yield(self, worker: SimWorker, index: int) -> None:
        """Data that are only on their way to a GPU make way for a lease; the policy learns of it with their end."""
        under_way = worker.ready_at_s > self._world.engine.now_s and not worker.leased
        assert under_way, f"GPU {index} of {self.host_id} is leased over {worker.worker_id}"
        self.unload(worker)

    def leased(self, gpus: Sequence[int]) -> bool:
        """Whether a lease holds one of them."""
        return any(self._leased[index] is not None for index in gpus)

    def set_lease_state(self, lease: Lease, state: GpuState | None) -> None:
        """What the leased GPUs do from now on; None: the lease ends."""
        for index in lease.gpu_indices:
            self._leased[index] = state
        if state is None:
            del self.leases[lease.lease_id]
        self._settle(lease.gpu_indices)

    def _settle(self, gpus: Sequence[int]) -> None:
        ledger, now_s = self._world.ledger, self._world.engine.now_s
        for index in gpus:
            state = self._leased[index]
            if state is None:
                holders = self._holders[index]
                if not holders:
                    state = GpuState.IDLE
                elif any(self.workers[worker_id].has_run for worker_id in holders):
                    state = GpuState.WARM
                else:
                    state = GpuState.SPECULATIVE
            if state is not self._gpus[index]:
                ledger.move(self._gpus[index], state, 1, now_s)
                self._gpus[index] = state

    def release_all(self) -> None:
        """The host stops: every GPU is idle. No cell may run here."""
        assert not self.leases, f"{self.host_id} is stopped under a cell"
        for worker in list(self.workers.values()):
            self.end(worker)


def serves(worker: SimWorker, stage: WorkerStage, gpus: tuple[int, ...], *, leave: bool) -> bool:
    """False if a preparation needs another worker: a process can neither leave its device nor change it.

    One that has run a cell goes on where it is, its data too. As `services/worker_daemon/opening.py` has it.
    """
    if worker.has_run:
        return True
    if (stage is not WorkerStage.DEVICE_READY and worker.loaded) or (leave and worker.gpus):
        return False
    return stage is WorkerStage.HOST_READY or worker.gpus in ((), gpus)


def told_stage(worker: SimWorker, reached: WorkerStage) -> WorkerStage:
    """How far the worker is said to be after a preparation up to `reached`: it has kept what it had on a device.

    One that has run, or has a lease meanwhile, is not. As `services/worker_daemon/core/worker_life.py` has it.
    """
    if worker.has_run or worker.leased or not worker.gpus:
        return reached
    return max(reached, WorkerStage.DEVICE_READY if worker.loaded else WorkerStage.CONTEXT_READY)


def preparation_s(mechanism: Mechanism, worker: SimWorker | None, source_hash: str, session: Session) -> float:
    """What is left to do up to host_ready of the session's cell on `worker`, None: on a new one."""
    if worker is not None and worker.source_hash == source_hash:
        return 0.0
    if worker is not None and worker.has_run:
        return mechanism.refresh_s
    whole_s = session.cell.prepare_s * mechanism.prepare_factor
    return mechanism.retarget_share * whole_s if worker is not None and worker.source_hash else whole_s


def attach_s(
    mechanism: Mechanism, worker: SimWorker, gpus: tuple[int, ...], source_hash: str, last_gpu_cell: int,
) -> float:
    """What is left to do on `gpus` after host_ready: open the context, copy the closure (design §5)."""
    cell = worker.session.cell
    context_s, copy_s = mechanism.attach_parts_s(cell.closure_bytes)
    if worker.gpus != gpus:
        return context_s + copy_s
    current = worker.has_run and worker.resident and worker.state_of == last_gpu_cell
    return 0.0 if current or worker.loaded == source_hash else copy_s
