"""A provider of several kinds of hosts, and cells that end: enough to see whether everybody is served, and how soon."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, Version, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import (
    ExecutionState,
    HostReport,
    Lease,
    RecipeFacts,
    WorkerReport,
    WorkerStage,
)
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.policy import Scheduler
from looseleaf.services.scheduler.core.shapes import HostShape

BOOT_S = 4.0
LIST_S = 5.0
BOOT_TIMEOUT_S = 20.0


@dataclass
class Cell:
    """One run of a session of its own: when Run is pressed, what it needs on its GPUs, how long it takes."""

    at_s: float
    gpus: int
    gpu_bytes: int
    run_s: float
    asked_s: float | None = None
    started_s: float | None = None
    refused: str = ""

    @property
    def waits(self) -> bool:
        return self.asked_s is not None and self.started_s is None and not self.refused


@dataclass
class Host:
    """A host that is up. `busy`: its leases, with the time at which their cells end."""

    shape: HostShape
    busy: dict[str, tuple[Lease, float]] = field(default_factory=dict)
    workers: dict[str, WorkerReport] = field(default_factory=dict)


class ProvidedWorld:
    """Hosts `lasting` stay for ever, others are the provider's, of `kinds`; `names_memory`: it says how much they have.

    Everybody answers at once; time goes on in seconds. Nothing fails but the start of hosts of the kinds `refused`, and
    of those `lost`, which never come.
    """

    def __init__(
        self, kinds: tuple[HostShape, ...], lasting: tuple[HostShape, ...], cells: list[Cell], hosts_max: int,
        names_memory: bool = True, refused: frozenset[HostShape] = frozenset(),
        lost: frozenset[HostShape] = frozenset(),
    ) -> None:
        self.refused, self.lost = refused, lost
        self.kinds, self.cells, self.hosts_max = kinds, cells, hosts_max
        self.offered = kinds if names_memory else tuple(HostShape(kind.gpu_count) for kind in kinds)
        numbers = itertools.count(1)
        self.names = itertools.count(1)
        self.scheduler = Scheduler(Limits(
            hosts_min=len(lasting), hosts_max=hosts_max, gpus_per_host=kinds[0].gpu_count, headroom_hosts=0,
            demand_peak_s=10.0, power_off_after_s=6.0, drain_busy_after_s=12.0, boot_timeout_s=BOOT_TIMEOUT_S,
            boot_retry_s=2.0, gang_patience_s=3.0, stop_heartbeats=1,
        ), lambda: LeaseId(f"l{next(numbers)}"))
        self.now_s = 0.0
        self.hosts = {HostId(f"h{number}"): Host(shape) for number, shape in enumerate(lasting)}
        self.lasting = set(self.hosts)
        self.boots: dict[HostId, tuple[HostShape, float]] = {}
        self.send(ev.JournalRestored())
        self.list_hosts()
        for host_id in self.hosts:
            self.beat(host_id)

    def could_serve(self, cell: Cell) -> bool:
        """Whether some set of hosts that is allowed, and can be had, has one that holds the cell."""
        return self._holds(cell, but=self.refused | self.lost)

    def is_offered(self, cell: Cell) -> bool:
        """The same with the hosts that the provider offers and cannot start."""
        return self._holds(cell, but=frozenset())

    def _holds(self, cell: Cell, but: frozenset[HostShape]) -> bool:
        shapes = [self.hosts[host_id].shape for host_id in self.lasting]
        shapes += [kind for kind in self.kinds if kind not in but] if len(self.lasting) < self.hosts_max else []
        return any(shape.fits(cell.gpus, cell.gpu_bytes) for shape in shapes)

    def run_until(self, end_s: float) -> None:
        """Goes on until nobody waits any more who can be helped, or until then."""
        cells = [cell for cell in self.cells if self.could_serve(cell) or not self.refused | self.lost]
        while self.now_s < end_s and not all(cell.started_s is not None or cell.refused for cell in cells):
            self.second()

    def second(self) -> None:
        self.now_s += 1.0
        for number, cell in enumerate(self.cells):
            if cell.asked_s is None and cell.at_s <= self.now_s:
                cell.asked_s = self.now_s
                recipe = RecipeFacts(f"t{number}", Version(1), gpu_count=cell.gpus,
                                     device_bytes=cell.gpu_bytes * cell.gpus)
                self.send(ev.RunRequested(
                    f"r{number}", ExecutionId(f"x{number}"), SessionId(f"s{number}"), Epoch(1), recipe))
        for host_id, (shape, up_s) in list(self.boots.items()):
            if up_s <= self.now_s:
                del self.boots[host_id]
                self.hosts[host_id] = Host(shape)
        for host_id in list(self.hosts):
            if host_id in self.hosts:
                self.end_cells(host_id)
                self.beat(host_id)
        if self.now_s % LIST_S == 0:
            self.list_hosts()
        self.send(ev.Tick())

    def list_hosts(self) -> None:
        owned = frozenset({*self.hosts, *self.boots} - self.lasting)
        self.send(ev.HostsProvided(owned, owned, self.offered))

    def beat(self, host_id: HostId) -> None:
        host = self.hosts[host_id]
        self.send(ev.HeartbeatReceived(f"b{next(self.names)}", HostReport(
            host_id, f"a:{host_id}", "i1", host.shape.gpu_count, "emulated", tuple(host.workers.values()),
            tuple(lease for lease, _end_s in host.busy.values()), gpu_memory_bytes=host.shape.gpu_memory_bytes)))

    def end_cells(self, host_id: HostId) -> None:
        host = self.hosts[host_id]
        for lease_id, (lease, end_s) in list(host.busy.items()):
            if end_s <= self.now_s:
                del host.busy[lease_id]
                self.report(lease, ExecutionState.FINISHED, WorkerStage.SAVING)
                self.report(lease, ExecutionState.SAVED, WorkerStage.COMPLETED)

    def report(self, lease: Lease, state: ExecutionState, stage: WorkerStage) -> None:
        worker = WorkerReport(
            WorkerId(f"w-{lease.execution_id}"), lease.session_id, stage, Version(1), "", lease.gpu_indices,
            lease.execution_id)
        self.hosts[lease.host_id].workers[worker.worker_id] = worker
        self.send(ev.ExecutionReported(
            f"e{next(self.names)}", lease.execution_id, lease.lease_id, state, "", state.ended, None, worker))

    def send(self, event: ev.Event) -> None:
        for action in self.scheduler.handle(event, self.now_s):
            self.carry_out(action)

    def carry_out(self, action: act.Action) -> None:
        match action:
            case act.GrantLease(lease):
                self.send(ev.LeaseGranted(lease.lease_id))
            case act.NotifyLease(request_id, lease):
                cell = self.cells[int(request_id[1:])]
                cell.started_s = self.now_s
                host = self.hosts[lease.host_id]
                assert host.shape.fits(cell.gpus, cell.gpu_bytes), "a cell is where it does not fit"
                host.busy[lease.lease_id] = (lease, self.now_s + cell.run_s)
                self.report(lease, ExecutionState.STARTED, WorkerStage.RUNNING)
            case act.Refuse(request_id, _code, reason) if request_id.startswith("r"):
                self.cells[int(request_id[1:])].refused = reason
            case act.EvictWorker(host_id, _address, worker_id, lease_id):
                del self.hosts[host_id].workers[worker_id]
                self.send(ev.EvictionEnded(host_id, worker_id, lease_id, True))
            case act.PowerOn(count, shape):
                self.power_on(count, shape)
            case act.StopHost(host_id):
                assert host_id not in self.lasting, "a host is ended that is not the provider's"
                self.boots.pop(host_id, None)
                ended = self.hosts.pop(host_id, None)
                assert ended is None or not ended.busy, "a host is ended under a cell"
                self.send(ev.HostEnded(host_id))

    def power_on(self, count: int, shape: HostShape) -> None:
        kind = self.kinds[self.offered.index(shape)]
        if kind in self.refused:
            self.send(ev.PowerOnFailed(count, "NO_MORE_HOSTS", shape))
            return
        started = tuple(HostId(f"p{next(self.names)}") for _ in range(count))
        for host_id in started:
            self.boots[host_id] = (kind, math.inf if kind in self.lost else self.now_s + BOOT_S)
        assert len(self.hosts) + len(self.boots) <= self.hosts_max, "more hosts than may be paid for"
        self.send(ev.HostsStarting(started, shape))
