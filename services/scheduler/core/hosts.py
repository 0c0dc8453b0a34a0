"""Hosts and their workers as the scheduler sees them: heartbeats merged with what it was told in between.

A heartbeat may have been composed before the last order reached the daemon. So a worker that was touched since
(`settled` False) keeps its state over one heartbeat, and a missing one counts as gone only after
`missed_heartbeats_max` in a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from looseleaf.devices.description import GpuDescription
from looseleaf.ids import ExecutionId, HostId, SessionId, Version, WorkerId
from looseleaf.services.scheduler.core.facts import (
    Hold,
    HostRecord,
    HostReport,
    RecipeFacts,
    WorkerReport,
    WorkerStage,
)
from looseleaf.services.scheduler.core.limits import Limits


class Liveness(StrEnum):
    """What the age of a host's last heartbeat says."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    DRAINING = "draining"


@dataclass(slots=True)
class Worker:
    """One worker. `prepared` is what it is known to hold; `prepared_at` the event number when that became known."""

    worker_id: WorkerId
    session_id: SessionId
    stage: WorkerStage
    version: Version = Version(0)
    gpu_indices: tuple[int, ...] = ()
    execution_id: ExecutionId = ExecutionId("")
    resident_bytes: int = 0
    pid: int = 0
    prepared: RecipeFacts | None = None
    prepared_at: int = 0
    prepared_at_s: float = 0.0
    prepare_ms: float = 0.0
    has_run: bool = False
    eviction_priority: float = 0.0
    # Asked to end; not to be used and not to be asked again.
    evicting: bool = False
    # A prepare is under way on it.
    preparing: bool = False
    # GPUs on which it has a context without being bound to them, or gets one by the prepare under way. A context cannot
    # be moved: on others it is of no use.
    context_gpus: tuple[int, ...] = ()
    # Its data were put on its GPUs by a prepare: device_ready without a lease, so it makes way like any idle worker.
    parked: bool = False
    # Its tenant's speculation holds more GPUs than its part.
    over_share: bool = False
    # Refused to end: not evictable before this heartbeat of its host.
    pinned_until: int = 0
    settled: bool = True
    missing: int = 0
    # The report that this state comes from; None once anything else changed it.
    merged: WorkerReport | None = None
    # What it is kept for, and until when it makes way for nobody.
    hold: Hold | None = None
    held_until_s: float = 0.0

    def take_hold(self, hold: Hold | None, now_s: float) -> None:
        """The daemon's word, as of now: it can only be late, so the worker never goes too early."""
        self.hold = hold
        self.held_until_s = now_s + hold.left_s if hold is not None else 0.0

    def unsettle(self) -> None:
        """What is known is newer than a heartbeat that may be under way: the next one does not count."""
        self.settled, self.merged = False, None

    @property
    def speculative(self) -> bool:
        """True if nothing ever ran on it: it was prepared for a Run that has not come."""
        return not self.has_run and not self.stage.busy


@dataclass(slots=True)
class Host:
    """One host. `last_seen_s` is on the scheduler's clock; `heartbeats` counts all of them."""

    host_id: HostId
    address: str
    incarnation: str
    last_seen_s: float
    gpu_count: int = 0
    device_kind: str = ""
    gpu_memory_bytes: int = 0
    gpu: GpuDescription | None = None
    draining: bool = False
    # Provisioning wants it to go: no new work, and it is ended once nothing runs there.
    retiring: bool = False
    heartbeats: int = 0
    # Sessions with versions that its loss would lose, by its last heartbeat.
    staged_sessions: int = 0
    # How many of its heartbeats in a row told neither of leases nor of such versions, since it is to go.
    clean_heartbeats: int = 0
    alive: bool = True
    # Restored from the journal and not heard since.
    awaited: bool = False
    # Did not answer an order: no new work before this heartbeat.
    unresponsive_until: int = 0
    workers: dict[WorkerId, Worker] = field(default_factory=dict)
    past_incarnations: deque[str] = field(default_factory=deque)

    def liveness(self, now_s: float, limits: Limits) -> Liveness:
        """What is known about the host at `now_s`."""
        age_s = now_s - self.last_seen_s
        if not self.alive or age_s >= limits.heartbeat_dead_s:
            return Liveness.DEAD
        if age_s >= limits.heartbeat_suspect_s or self.awaited:
            return Liveness.SUSPECT
        return Liveness.DRAINING if self.draining or self.retiring else Liveness.ALIVE

    def takes_work(self, now_s: float, limits: Limits) -> bool:
        """True if new leases and workers may go there."""
        return self.liveness(now_s, limits) is Liveness.ALIVE and self.heartbeats >= self.unresponsive_until

    def holds(self, recipe: RecipeFacts) -> bool:
        """True if the cell's GPUs and what it needs on them fit on this host when nobody else is there."""
        return fits(self.gpu_count, self.gpu_memory_bytes, recipe)

    def record(self) -> HostRecord:
        """What the journal keeps of it."""
        return HostRecord(self.host_id, self.address, self.incarnation, self.alive)


def fits(gpu_count: int, gpu_memory_bytes: int, recipe: RecipeFacts) -> bool:
    """True if the cell fits on so many GPUs of that memory. 0 bytes are not known: then the cell itself will tell."""
    if gpu_count < recipe.gpu_count:
        return False
    return not gpu_memory_bytes or recipe.device_bytes <= recipe.gpu_count * gpu_memory_bytes


class HostTable:
    """Every known host, dead ones included until they are forgotten.

    Who changes a worker or what a host offers calls `touch`: indexes are brought up to date from `changed`.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._hosts: dict[HostId, Host] = {}
        self._ordered: list[Host] | None = None
        # Hosts whose room must be looked at again.
        self.changed: set[HostId] = set()
        self._unindexed: set[HostId] = set()
        # Those that provisioning wants to go.
        self.retiring: set[HostId] = set()
        self._shapes: set[tuple[int, int]] = set()
        self._sessions_on: dict[HostId, set[SessionId]] = {}
        self._hosts_of: dict[SessionId, set[HostId]] = {}

    def __iter__(self) -> Iterator[Host]:
        """Hosts ordered by id."""
        if self._ordered is None:
            self._ordered = sorted(self._hosts.values(), key=lambda host: host.host_id)
        return iter(self._ordered)

    def __len__(self) -> int:
        return len(self._hosts)

    def get(self, host_id: HostId) -> Host | None:
        """The host, or None if it is not known."""
        return self._hosts.get(host_id)

    def add(self, host: Host) -> None:
        """Makes a host known; replaces one of the same id."""
        self._hosts[host.host_id] = host
        self._ordered = None
        self.touch(host.host_id)

    def forget(self, host_id: HostId) -> None:
        """Drops a host."""
        del self._hosts[host_id]
        self.retiring.discard(host_id)
        self._ordered = None
        self.touch(host_id)

    def retire(self, host: Host, retiring: bool) -> None:
        """The host is to go, or stays after all."""
        host.retiring, host.clean_heartbeats = retiring, 0
        (self.retiring.add if retiring else self.retiring.discard)(host.host_id)
        self.touch(host.host_id)

    def touch(self, host_id: HostId) -> None:
        """The host's workers, or what it offers, changed."""
        self.changed.add(host_id)
        self._unindexed.add(host_id)

    def restore(self, record: HostRecord, now_s: float) -> None:
        """Makes a journaled host known; it counts as last seen now and gets no work before it reports."""
        alive = record.alive
        self.add(Host(record.host_id, record.address, record.incarnation, now_s, alive=alive, awaited=alive))

    def awaited(self) -> bool:
        """True while a host that the journal knew alive has not reported."""
        return any(host.awaited for host in self._hosts.values())

    def learn_shape(self, host: Host) -> None:
        """Remembers what hosts there can be, beyond the life of this one."""
        if host.gpu_count and len(self._shapes) < self._limits.host_shapes_max:
            self._shapes.add((host.gpu_count, host.gpu_memory_bytes))

    def could_hold(self, recipe: RecipeFacts) -> bool:
        """True if a host like one that there once was can hold the cell."""
        return any(fits(count, memory_bytes, recipe) for count, memory_bytes in self._shapes)

    def with_gpus(self) -> Iterator[Host]:
        """Every known host with GPUs, whatever its liveness, ordered by id."""
        return (host for host in self if host.gpu_count > 0)

    def open_for_work(self, now_s: float) -> list[Host]:
        """Hosts with GPUs that may get new work, ordered by id."""
        return [host for host in self.with_gpus() if host.takes_work(now_s, self._limits)]

    def worker(self, host_id: HostId, worker_id: WorkerId) -> Worker | None:
        """The worker, or None if it is not known."""
        host = self._hosts.get(host_id)
        return host.workers.get(worker_id) if host else None

    def workers_of(self, session_id: SessionId) -> list[tuple[Host, Worker]]:
        """Every worker of a session with its host, ordered by host id."""
        self._index_sessions()
        hosts = [self._hosts[host_id] for host_id in sorted(self._hosts_of.get(session_id, ()))]
        return [(host, w) for host in hosts for w in host.workers.values() if w.session_id == session_id]

    def _index_sessions(self) -> None:
        for host_id in self._unindexed:
            host = self._hosts.get(host_id)
            before = self._sessions_on.pop(host_id, set())
            now = {worker.session_id for worker in host.workers.values()} if host is not None else set()
            if now:
                self._sessions_on[host_id] = now
            for session_id in now - before:
                self._hosts_of.setdefault(session_id, set()).add(host_id)
            for session_id in before - now:
                self._hosts_of[session_id].discard(host_id)
                if not self._hosts_of[session_id]:
                    del self._hosts_of[session_id]
        self._unindexed.clear()


def supersede(host: Host, report: HostReport, limits: Limits) -> None:
    """The daemon was started anew: its workers are gone, its old incarnation is remembered as old."""
    host.past_incarnations.append(host.incarnation)
    while len(host.past_incarnations) > limits.incarnations_max:
        host.past_incarnations.popleft()
    host.incarnation = report.incarnation
    # The count of heartbeats goes on, since others remember numbers of it.
    host.alive = False
    host.unresponsive_until = 0
    host.workers.clear()


@dataclass(slots=True)
class Merge:
    """What a snapshot changed: workers that completed a cell or are gone; whether a run that waits may fit now."""

    completed: list[Worker] = field(default_factory=list)
    gone: list[Worker] = field(default_factory=list)
    # Found with data on GPUs that the daemon holds no lease for.
    parked: list[Worker] = field(default_factory=list)
    changed: bool = False
    # Something else that an index of the host's room knows changed.
    touched: bool = False


def merge_report(
    host: Host, report: HostReport, now_s: float, event_number: int, limits: Limits,
    released: Callable[[ExecutionId], bool],
) -> Merge:
    """Takes a snapshot in.

    `released(execution_id)` is True if that execution ended and gave its GPU back: a worker that the snapshot
    shows running it has completed since.
    """
    host.address, host.gpu_count, host.device_kind = report.address, report.gpu_count, report.device_kind
    host.gpu_memory_bytes, host.draining, host.gpu = report.gpu_memory_bytes, report.draining, report.gpu
    host.last_seen_s, host.alive, host.awaited, host.staged_sessions = now_s, True, False, report.staged_sessions
    host.heartbeats += 1
    host.clean_heartbeats = 0 if report.leases or report.staged_sessions else host.clean_heartbeats + 1
    merge = Merge()
    leased = {index for lease in report.leases for index in lease.gpu_indices}
    seen = set()
    for told in report.workers:
        if told.stage is WorkerStage.GONE:
            continue
        seen.add(told.worker_id)
        worker = host.workers.get(told.worker_id)
        if worker is None:
            # What it was prepared for may be under way: to be expired it must be seen for that long.
            worker = host.workers[told.worker_id] = Worker(
                told.worker_id, told.session_id, WorkerStage.UNSPECIFIED, prepared_at_s=now_s)
            merge.changed = True
        worker.missing = 0
        if not worker.settled:
            worker.settled = True
            continue
        if worker.merged == told and told.hold is None and not told.stage.busy:
            continue
        _update(worker, told, leased, now_s, event_number, released, merge)
    if len(seen) < len(host.workers):
        for worker in list(host.workers.values()):
            if worker.worker_id not in seen:
                worker.missing += 1
                if worker.missing >= limits.missed_heartbeats_max:
                    merge.gone.append(host.workers.pop(worker.worker_id))
                    merge.changed = True
    return merge


def _update(
    worker: Worker, told: WorkerReport, leased: set[int], now_s: float, event_number: int,
    released: Callable[[ExecutionId], bool], merge: Merge,
) -> None:
    worker.merged = told
    stage = told.stage
    if worker.parked or stage is WorkerStage.DEVICE_READY:
        was_parked, worker.parked = worker.parked, stage is WorkerStage.DEVICE_READY and leased.isdisjoint(
            told.gpu_indices)
        if worker.parked:
            stage = WorkerStage.CONTEXT_READY
            if not was_parked:
                merge.parked.append(worker)
    if stage.busy and told.execution_id and released(told.execution_id):
        stage = WorkerStage.COMPLETED
    if stage is WorkerStage.COMPLETED and worker.stage is not WorkerStage.COMPLETED:
        merge.completed.append(worker)
    before = (worker.session_id, worker.stage, worker.gpu_indices, now_s < worker.held_until_s)
    worker.session_id, worker.stage, worker.version = told.session_id, stage, told.version
    worker.gpu_indices, worker.execution_id = told.gpu_indices, told.execution_id
    # One that was told once is there as long as the process.
    worker.context_gpus = () if told.gpu_indices else told.context_gpus or worker.context_gpus
    worker.resident_bytes, worker.pid = told.resident_bytes, told.pid
    worker.take_hold(told.hold, now_s)
    if before != (worker.session_id, worker.stage, worker.gpu_indices, now_s < worker.held_until_s):
        merge.changed = True
    speculative = (worker.has_run, worker.prepared_at_s)
    # The execution id outlives the cell: a completed worker that is prepared again is host_ready.
    worker.has_run = worker.has_run or stage.busy or stage is WorkerStage.COMPLETED or bool(told.execution_id)
    if not told.prepared_source_hash:
        worker.prepared = None
    elif stage.ready and (worker.prepared is None or worker.prepared.source_hash != told.prepared_source_hash):
        worker.prepared = RecipeFacts(told.prepared_source_hash, told.version, exact=False)
        worker.prepared_at, worker.prepared_at_s = event_number, now_s
    merge.touched = merge.touched or speculative != (worker.has_run, worker.prepared_at_s)
