"""A host and its workers as the scheduler sees them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from looseleaf.devices.description import GpuDescription
from looseleaf.ids import ExecutionId, HostId, SessionId, Version, WorkerId
from looseleaf.services.scheduler.core.facts import Hold, HostRecord, RecipeFacts, WorkerReport, WorkerStage
from looseleaf.services.scheduler.core.foreign_memory import ForeignMemory
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.shapes import HostShape, fits
from looseleaf.services.scheduler.core.workers import Workers


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
    # When somebody last edited the cell for which it was made ready again; long ago if that cell is only a guess.
    edited_at_s: float = -math.inf
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
    foreign: ForeignMemory = field(default_factory=ForeignMemory)
    workers: Workers[Worker] = field(default_factory=Workers)
    past_incarnations: deque[str] = field(default_factory=deque)

    def dead(self, now_s: float, limits: Limits) -> bool:
        """Whether its `liveness` is DEAD."""
        return not self.alive or now_s - self.last_seen_s >= limits.heartbeat_dead_s

    def liveness(self, now_s: float, limits: Limits) -> Liveness:
        """What is known about the host at `now_s`."""
        age_s = now_s - self.last_seen_s
        if self.dead(now_s, limits):
            return Liveness.DEAD
        if age_s >= limits.heartbeat_suspect_s or self.awaited:
            return Liveness.SUSPECT
        return Liveness.DRAINING if self.draining or self.retiring else Liveness.ALIVE

    def takes_work(self, now_s: float, limits: Limits) -> bool:
        """True if new leases and workers may go there."""
        # As `liveness` is ALIVE, without making it out: this is asked several times an event.
        age_s = now_s - self.last_seen_s
        return (
            self.alive and age_s < limits.heartbeat_suspect_s and age_s < limits.heartbeat_dead_s
            and not (self.awaited or self.draining or self.retiring) and self.heartbeats >= self.unresponsive_until)

    @property
    def shape(self) -> HostShape:
        """What kind of host it is."""
        return HostShape(self.gpu_count, self.gpu_memory_bytes)

    def holds(self, recipe: RecipeFacts) -> bool:
        """True if the cell's GPUs and the variables that it needs there fit on this host when nobody else is there."""
        return self.fits(recipe.gpu_count, recipe.gpu_bytes)

    def fits(self, gpu_count: int, gpu_bytes: int) -> bool:
        """The same of so many GPUs and bytes on each."""
        return fits(self.gpu_count, self.gpu_memory_bytes, gpu_count, gpu_bytes)

    @property
    def least_spare_bytes(self) -> float:
        """Memory that a cell may have on each of its GPUs, others than our workers left out; infinite if not known."""
        return self.gpu_memory_bytes - self.foreign.most_bytes if self.gpu_memory_bytes else math.inf

    def spare_bytes(self, index: int) -> float:
        """The same of one GPU."""
        return self.gpu_memory_bytes - self.foreign.on(index) if self.gpu_memory_bytes else math.inf

    def record(self) -> HostRecord:
        """What the journal keeps of it."""
        return HostRecord(self.host_id, self.address, self.incarnation, self.alive)
