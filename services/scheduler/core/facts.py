"""Values that events, actions and the journal share; all frozen, so that action lists can be compared.

The enums carry the numbers of `looseleaf.v1`; a test holds the two together.
"""

from __future__ import annotations

from enum import IntEnum

from looseleaf.devices.description import GpuDescription
from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, Version, WorkerId
from looseleaf.services.scheduler.core.values import value


class StartPath(IntEnum):
    """What a cell found ready, decided by what was known before Run arrived."""

    UNSPECIFIED = 0
    PREPARED = 1
    WARM = 2
    COLD = 3


class ExecutionState(IntEnum):
    """Where an execution stands (design §6); the order is the order of its life."""

    UNSPECIFIED = 0
    PENDING = 1
    DISPATCHED = 2
    STARTED = 3
    FINISHED = 4
    SAVED = 5
    FAILED = 6
    INDETERMINATE = 7

    @property
    def began(self) -> bool:
        """True if the cell is known to have started, whether or not it goes on."""
        return self in (ExecutionState.STARTED, ExecutionState.FINISHED, ExecutionState.SAVED)

    @property
    def ended(self) -> bool:
        """True if nothing more can happen under this execution id."""
        # A number, as in WorkerStage: SAVED.
        return self >= 5


class WorkerStage(IntEnum):
    """What a worker is doing (design §5)."""

    UNSPECIFIED = 0
    FORKED = 1
    IMPORTED = 2
    HOST_READY = 3
    CONTEXT_READY = 4
    DEVICE_READY = 5
    RUNNING = 6
    SAVING = 7
    COMPLETED = 8
    GONE = 9

    @property
    def busy(self) -> bool:
        """True while the worker may not be ended or given to another cell."""
        # Numbers, since this is asked most often of all: DEVICE_READY, RUNNING, SAVING.
        return 5 <= self <= 7

    @property
    def ready(self) -> bool:
        """True if the worker can take a cell of its session at once."""
        # HOST_READY, CONTEXT_READY, COMPLETED.
        return self == 8 or 3 <= self <= 4


@value
class RecipeFacts:
    """What placement needs of an execution recipe (§3.1).

    `device_bytes`: what its variables take on all of its GPUs. `peak_bytes`: the most that earlier runs of such a cell
    held there, 0 if that is not known. `exact` is False when only the text hash and the version are known, as from a
    heartbeat. `environment_id`: what was installed in the kernel's environment; empty: unknown.
    """

    source_hash: str
    version: Version
    names: frozenset[str] = frozenset()
    imports: frozenset[str] = frozenset()
    gpu_count: int = 1
    device_bytes: int = 0
    exact: bool = True
    environment_id: str = ""
    peak_bytes: int = 0

    @property
    def gpu_bytes(self) -> int:
        """What its variables take on each of its GPUs."""
        return -(-self.device_bytes // self.gpu_count)

    @property
    def gpu_peak_bytes(self) -> int:
        """What such a cell held on each of its GPUs at most, or its variables take now."""
        return -(-max(self.device_bytes, self.peak_bytes) // self.gpu_count)

    def covers(self, needed: RecipeFacts) -> bool:
        """True if a worker made ready for this recipe holds all that `needed` names, at the same version."""
        if self.version != needed.version:
            return False
        if self.environment_id and needed.environment_id and self.environment_id != needed.environment_id:
            return False
        if self.source_hash == needed.source_hash:
            return True
        return self.exact and self.names >= needed.names and self.imports >= needed.imports


@value
class Lease:
    """A time-bound right of one session to GPUs of one host, for one execution."""

    lease_id: LeaseId
    session_id: SessionId
    epoch: Epoch
    execution_id: ExecutionId
    host_id: HostId
    address: str
    gpu_indices: tuple[int, ...]
    # The prepared or warm worker to use, empty for a new one.
    worker_id: WorkerId
    path: StartPath
    ttl_ms: int
    # No other worker will do: a variable that the cell needs lives only there.
    worker_required: bool = False


@value
class Need:
    """Variables that no version has and a cell needs, and the worker in which they live; empty: none."""

    worker_id: WorkerId = WorkerId("")
    names: tuple[str, ...] = ()


@value
class Hold:
    """Variables that no version has and that live in one worker, in one epoch of its session (design §3).

    For `left_s` more the worker makes way for nobody; 0: it may go, and they with it.
    """

    names: tuple[str, ...]
    left_s: float
    epoch: Epoch


@value
class EndedHolder:
    """A worker that ended with such variables. `why` completes the sentence "That process ..."."""

    worker_id: WorkerId
    why: str
    ended_s_ago: float


@value
class WorkerReport:
    """One worker as its daemon sees it."""

    worker_id: WorkerId
    session_id: SessionId
    stage: WorkerStage
    version: Version = Version(0)
    prepared_source_hash: str = ""
    gpu_indices: tuple[int, ...] = ()
    execution_id: ExecutionId = ExecutionId("")
    resident_bytes: int = 0
    pid: int = 0
    hold: Hold | None = None
    # Where a context of its is open without its data; empty also where the daemon does not tell.
    context_gpus: tuple[int, ...] = ()


@value
class HostReport:
    """A full snapshot of a host: whatever it does not list is gone."""

    host_id: HostId
    address: str
    incarnation: str
    gpu_count: int
    device_kind: str
    workers: tuple[WorkerReport, ...] = ()
    leases: tuple[Lease, ...] = ()
    draining: bool = False
    gpu_memory_bytes: int = 0
    # Those of the last minutes only.
    ended_holders: tuple[EndedHolder, ...] = ()
    # Of each of its GPUs; None if it did not tell.
    gpu: GpuDescription | None = None
    # Sessions with versions that are nowhere but in this host's arena.
    staged_sessions: int = 0
    # Memory in use on each GPU, by whomever; empty: not known.
    gpu_used_bytes: tuple[int, ...] = ()


@value
class Figures:
    """Honest figures of one run (design §6), as the daemon measured them."""

    prepare_ms: float = 0.0
    start_ms: float = 0.0
    run_s: float = 0.0
    save_ms: float = 0.0
    dirty_regions: int = 0
    total_regions: int = 0
    bytes_moved: int = 0
    gpu_held_s: float = 0.0
    gpu_pinned_s: float = 0.0
    gpu_resident_s: float = 0.0


@value
class ExecutionRecord:
    """What the journal holds of one execution.

    `number` orders records by first request. `lease` is the last one under which it was dispatched, None if it
    never was or if that lease provably reached nobody: such an execution may be dispatched (again).
    `inferred` marks an end that the scheduler concluded and nobody reported; the daemon's word overrides it.
    `held_gpu_s` counts lease grant to release times the number of GPUs.
    """

    number: int
    execution_id: ExecutionId
    session_id: SessionId
    epoch: Epoch
    state: ExecutionState
    reason: str = ""
    lease: Lease | None = None
    figures: Figures | None = None
    inferred: bool = False
    held_gpu_s: float = 0.0


@value
class HostRecord:
    """What the journal holds of one host: enough to know whom a restarted scheduler must hear."""

    host_id: HostId
    address: str
    incarnation: str
    alive: bool


@value
class SessionRecord:
    """What the journal holds of one session: a restarted scheduler must not listen to its older owners.

    `tenant`: whose it is, so that leases that outlive a restart go on counting as that tenant's use.
    """

    session_id: SessionId
    epoch: Epoch
    tenant: str = ""


@value
class Totals:
    """Sums since the scheduler's first start."""

    held_gpu_s: float = 0.0
