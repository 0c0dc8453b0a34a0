"""What happens to the scheduler. `request_id` names a caller who awaits an answer; the driver makes it up, unique."""

from __future__ import annotations

from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, WorkerId
from looseleaf.services.scheduler.core.facts import (
    ExecutionRecord,
    ExecutionState,
    Figures,
    HostRecord,
    HostReport,
    Need,
    RecipeFacts,
    SessionRecord,
    Totals,
    WorkerReport,
    WorkerStage,
)
from looseleaf.services.scheduler.core.shapes import HostShape
from looseleaf.services.scheduler.core.values import value


@value
class JournalRestored:
    """First event of a life: what the journal holds. Nothing is placed until the known hosts reported."""

    executions: tuple[ExecutionRecord, ...] = ()
    hosts: tuple[HostRecord, ...] = ()
    sessions: tuple[SessionRecord, ...] = ()
    totals: Totals = Totals()


@value
class HeartbeatReceived:
    """A host says what it has; answered by AnswerHeartbeat."""

    request_id: str
    report: HostReport


@value
class RunRequested:
    """Run was pressed; answered by NotifyQueue any number of times, then NotifyLease or Refuse."""

    request_id: str
    execution_id: ExecutionId
    session_id: SessionId
    epoch: Epoch
    recipe: RecipeFacts
    priority: str = "interactive"
    need: Need = Need()
    tenant: str = ""


@value
class RunCancelled:
    """The caller of a RunRequested went away before its answer."""

    request_id: str
    execution_id: ExecutionId


@value
class PreparationRequested:
    """A worker is wanted before Run; answered by AnswerPreparation or Refuse.

    `predicted`: nobody has touched that cell yet. `certain`: its names are stable and its label is sure. `attach_s`:
    what Run would wait for with a host_ready worker, 0 if it is not known.
    """

    request_id: str
    session_id: SessionId
    epoch: Epoch
    recipe: RecipeFacts
    predicted: bool = False
    certain: bool = True
    attach_s: float = 0.0
    tenant: str = ""


@value
class ExecutionReported:
    """A daemon tells a run's progress; answered by AnswerReport or Refuse. `worker`: as it stands now, if told."""

    request_id: str
    execution_id: ExecutionId
    lease_id: LeaseId
    state: ExecutionState
    reason: str = ""
    release: bool = False
    figures: Figures | None = None
    worker: WorkerReport | None = None


@value
class LeaseGranted:
    """The daemon knows the lease."""

    lease_id: LeaseId


@value
class GrantFailed:
    """The daemon refused the lease (`answered`), or nobody knows whether it has it."""

    lease_id: LeaseId
    answered: bool
    reason: str
    message: str = ""


@value
class LeaseRevoked:
    """The daemon's answer to RevokeLease; `in_use`: a cell runs under it and ends with it."""

    lease_id: LeaseId
    in_use: bool


@value
class RevokeUnanswered:
    """The daemon did not answer RevokeLease."""

    lease_id: LeaseId


@value
class EvictionEnded:
    """The daemon's answer to EvictWorker; `evicted` False: the worker stays, or nobody answered."""

    host_id: HostId
    worker_id: WorkerId
    lease_id: LeaseId
    evicted: bool


@value
class WorkerPrepared:
    """The worker is ready up to `stage`; `gpu_indices`: where its context is, or its data from device_ready on."""

    request_id: str
    worker_id: WorkerId
    prepare_ms: float
    pid: int = 0
    resident_bytes: int = 0
    stage: WorkerStage = WorkerStage.HOST_READY
    gpu_indices: tuple[int, ...] = ()


@value
class PreparationFailed:
    """The daemon could not prepare the worker."""

    request_id: str
    reason: str
    message: str = ""


@value
class PowerOnFailed:
    """The provider could not start so many of the hosts that PowerOn asked for; `shape`: of that kind."""

    count: int
    reason: str
    shape: HostShape | None = None


@value
class HostsStarting:
    """The provider has begun to start these hosts, of this kind if it is known."""

    host_ids: tuple[HostId, ...]
    shape: HostShape | None = None


@value
class HostEnded:
    """The provider has begun to end the host."""

    host_id: HostId


@value
class StopHostFailed:
    """The provider could not end the host, which is still paid for."""

    host_id: HostId
    reason: str


@value
class HostsProvided:
    """The hosts that the provider can end; before the first of these events: all.

    `running`: those that are paid for, booting ones included; None if it did not tell. `shapes`: the kinds of hosts
    that it can start, the usual one first; empty: like those that there were.
    """

    host_ids: frozenset[HostId]
    running: frozenset[HostId] | None = None
    shapes: tuple[HostShape, ...] = ()


@value
class Tick:
    """Time passed; `overslept_s` of it the scheduler's process stood still and could hear nobody."""

    overslept_s: float = 0.0


Event = (
    JournalRestored | HeartbeatReceived | RunRequested | RunCancelled | PreparationRequested | ExecutionReported
    | LeaseGranted | GrantFailed | LeaseRevoked | RevokeUnanswered | EvictionEnded | WorkerPrepared
    | PreparationFailed | PowerOnFailed | HostsStarting | HostEnded | StopHostFailed | HostsProvided | Tick
)
