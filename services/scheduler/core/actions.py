"""What the scheduler wants done, in order.

`Journal*` and `Forget*` must be written before any later action of the same list is carried out; the others may be
carried out at once.
"""

from __future__ import annotations

from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, WorkerId
from looseleaf.services.scheduler.core.facts import (
    ExecutionRecord,
    HostRecord,
    Lease,
    RecipeFacts,
    SessionRecord,
    Totals,
    WorkerStage,
)
from looseleaf.services.scheduler.core.shapes import HostShape
from looseleaf.services.scheduler.core.values import value


@value
class Journal:
    """Replaces the record of one execution."""

    record: ExecutionRecord


@value
class JournalHost:
    """Replaces the record of one host."""

    record: HostRecord


@value
class JournalSession:
    """Replaces the record of one session."""

    record: SessionRecord


@value
class JournalTotals:
    """Replaces the sums."""

    totals: Totals


@value
class ForgetExecution:
    """Drops the record of an execution that ended long ago."""

    execution_id: ExecutionId


@value
class ForgetHost:
    """Drops the record of a host that died long ago."""

    host_id: HostId


@value
class ForgetSession:
    """Drops the record of a session that was not used for long."""

    session_id: SessionId


@value
class GrantLease:
    """Tell the daemon of the lease; answered by LeaseGranted or GrantFailed."""

    lease: Lease


@value
class RevokeLease:
    """Take the lease back; answered by LeaseRevoked or RevokeUnanswered."""

    host_id: HostId
    address: str
    lease_id: LeaseId


@value
class EvictWorker:
    """End a worker that holds wanted room; answered by EvictionEnded with the same ids."""

    host_id: HostId
    address: str
    worker_id: WorkerId
    # The lease that waits for the room, empty for a preparation's room.
    lease_id: LeaseId
    # The newest epoch of the worker's session: what it is kept for in an older one counts for nothing.
    epoch: Epoch


@value
class PrepareWorker:
    """Make a worker ready up to `stage`; answered by WorkerPrepared or PreparationFailed with `request_id`.

    `gpu_indices`: where, from context_ready on. A worker that was ready further goes back: host_ready frees its GPUs.
    """

    request_id: str
    host_id: HostId
    address: str
    session_id: SessionId
    epoch: Epoch
    recipe: RecipeFacts
    # A worker of the session to reuse, empty for a new one.
    worker_id: WorkerId
    stage: WorkerStage = WorkerStage.HOST_READY
    gpu_indices: tuple[int, ...] = ()
    # It must not keep a context either.
    leave_device: bool = False


@value
class NotifyQueue:
    """The run waits at `position`, from 1, for `reason`, one sentence for people, about `estimated_s` more.

    The estimate rests on the cells that ended before; None as long as there were few.
    """

    request_id: str
    position: int
    reason: str
    estimated_s: float | None = None


@value
class NotifyLease:
    """The run may start; the last answer to its request."""

    request_id: str
    lease: Lease


@value
class Refuse:
    """An error of `looseleaf.errors` as values: the last answer to its request."""

    request_id: str
    code: str
    reason: str
    message: str
    fields: tuple[tuple[str, str | int], ...] = ()


@value
class AnswerHeartbeat:
    """Which of a host's leases live on, and which it must start nothing under."""

    request_id: str
    renewed: tuple[LeaseId, ...]
    unknown: tuple[LeaseId, ...]
    # The host is to be ended: what is only staged there must become durable.
    retiring: bool = False


@value
class AnswerReport:
    """The report is journaled."""

    request_id: str


@value
class AnswerPreparation:
    """A worker is ready, or `skipped_reason` says for people why not."""

    request_id: str
    worker_id: WorkerId = WorkerId("")
    host_id: HostId = HostId("")
    prepare_ms: float = 0.0
    skipped_reason: str = ""


@value
class MarkHostDead:
    """A host's leases ended: its heartbeats stopped, or its daemon was restarted."""

    host_id: HostId
    reason: str


@value
class PowerOn:
    """So many more hosts of a kind are wanted; one is there with its first heartbeat.

    Answered by HostsStarting if the provider names them, and by PowerOnFailed for those that it cannot start. Memory of
    0 bytes: whichever.
    """

    count: int
    shape: HostShape


@value
class DrainHost:
    """The host is to go: it gets no new work, and StopHost follows when nothing runs there."""

    host_id: HostId


@value
class UndrainHost:
    """The host that was to go stays."""

    host_id: HostId


@value
class StopHost:
    """Nothing runs on the host and nothing there is lost that no version has, or nothing is heard of it: end it.

    Answered by HostEnded or StopHostFailed.
    """

    host_id: HostId


@value
class MarkReady:
    """Every host that the journal knew has reported, or the wait for them is over; placing begins."""


Action = (
    Journal | JournalHost | JournalSession | JournalTotals | ForgetExecution | ForgetHost | ForgetSession | GrantLease
    | RevokeLease | EvictWorker | PrepareWorker | NotifyQueue | NotifyLease | Refuse | AnswerHeartbeat | AnswerReport
    | AnswerPreparation | MarkHostDead | MarkReady | PowerOn | DrainHost | UndrainHost | StopHost
)

JOURNAL_ACTIONS = (
    Journal, JournalHost, JournalSession, JournalTotals, ForgetExecution, ForgetHost, ForgetSession,
)
