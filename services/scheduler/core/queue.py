"""The queue of Runs of one tenant: first come, first served, with batch below interactive; `fairness` mixes tenants.

A batch run counts as arrived `batch_penalty_s` later than it did. So interactive runs of that time go first, and
no stream of interactive runs can starve a batch run for ever.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from looseleaf.ids import Epoch, ExecutionId, HostId, SessionId
from looseleaf.services.scheduler.core.facts import Need, RecipeFacts
from looseleaf.services.scheduler.core.limits import Limits

PRIORITIES = ("interactive", "batch")


@dataclass(slots=True)
class Run:
    """A run whose caller has no lease yet. `arrived_at` is the number of the event that brought it."""

    execution_id: ExecutionId
    session_id: SessionId
    epoch: Epoch
    recipe: RecipeFacts
    priority: str
    arrived_at: int
    arrived_at_s: float
    rank_s: float
    need: Need = Need()
    waiters: list[str] = field(default_factory=list)
    # Hosts that refused it, each until that many heartbeats of theirs.
    avoided: dict[HostId, int] = field(default_factory=dict)
    refusals: int = 0
    tenant: str = ""
    # Memory that it should find on each of its GPUs while it has patience, see `fitting.wanted_gpu_bytes`.
    patient_gpu_bytes: int = 0
    # A gang that could not be placed keeps this host's GPUs from later runs.
    reserved_host: HostId | None = None
    # What each waiter was told last.
    told: dict[str, tuple[int, str]] = field(default_factory=dict)

    def wanted_gpu_bytes(self, now_s: float, limits: Limits) -> int:
        """Memory that each of its GPUs must have beside what others use there.

        At first what such cells were seen to hold; once its patience has ended what its variables take.
        """
        return self.patient_gpu_bytes if self.patient(now_s, limits) else self.recipe.gpu_bytes

    def patient(self, now_s: float, limits: Limits) -> bool:
        """True while it rather waits than go where there may be too little memory."""
        return now_s < self.arrived_at_s + limits.memory_patience_s

    @property
    def key(self) -> tuple[float, int]:
        """Its place in the order; kept when the run comes back from a grant that failed."""
        return (self.rank_s, self.arrived_at)


def rank_s(arrived_at_s: float, priority: str, batch_penalty_s: float) -> float:
    """The time that a run counts as arrived."""
    return arrived_at_s + (batch_penalty_s if priority == "batch" else 0.0)


class RunTable:
    """Every run whose caller has no lease yet, by execution and by session."""

    def __init__(self) -> None:
        self._runs: dict[ExecutionId, Run] = {}
        self._by_session: dict[SessionId, dict[ExecutionId, Run]] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        """Runs in the order in which they came, safe against changes meanwhile."""
        return iter(list(self._runs.values()))

    def __contains__(self, execution_id: object) -> bool:
        return execution_id in self._runs

    def get(self, execution_id: ExecutionId) -> Run | None:
        """The run, or None if nobody waits for it."""
        return self._runs.get(execution_id)

    def add(self, run: Run) -> Run:
        """Makes a run known."""
        self._runs[run.execution_id] = run
        self._by_session.setdefault(run.session_id, {})[run.execution_id] = run
        return run

    def pop(self, execution_id: ExecutionId) -> Run | None:
        """Drops a run and returns it; None if it is not there."""
        run = self._runs.pop(execution_id, None)
        if run is not None:
            of_session = self._by_session[run.session_id]
            del of_session[execution_id]
            if not of_session:
                del self._by_session[run.session_id]
        return run

    def of_session(self, session_id: SessionId) -> list[Run]:
        """Runs of one session."""
        return list(self._by_session.get(session_id, {}).values())


class RunQueue:
    """Runs that wait for GPUs, in order. Its bound is on waiting and granting runs together, kept by the caller."""

    def __init__(self) -> None:
        self._ordered: list[Run] = []
        # How many runs each tenant has here.
        self._tenants: dict[str, int] = {}
        self._queued: dict[ExecutionId, Run] = {}
        # How many of them need a certain worker.
        self.needy = 0

    def __len__(self) -> int:
        return len(self._ordered)

    def __iter__(self) -> Iterator[Run]:
        """Runs in order, safe against changes of the queue meanwhile."""
        return iter(list(self._ordered))

    def __contains__(self, execution_id: object) -> bool:
        return execution_id in self._queued

    def put(self, run: Run) -> None:
        """Adds a run at the place of its key; it must not be in the queue."""
        if run.execution_id in self._queued:
            raise AssertionError(f"{run.execution_id} is queued already")
        insort(self._ordered, run, key=_key)
        self._queued[run.execution_id] = run
        self._tenants[run.tenant] = self._tenants.get(run.tenant, 0) + 1
        self.needy += bool(run.need.worker_id)

    def remove(self, execution_id: ExecutionId) -> None:
        """Takes a run out; nothing happens if it is not in the queue."""
        run = self._queued.pop(execution_id, None)
        if run is not None:
            del self._ordered[bisect_left(self._ordered, run.key, key=_key)]
            self.needy -= bool(run.need.worker_id)
            self._tenants[run.tenant] -= 1
            if not self._tenants[run.tenant]:
                del self._tenants[run.tenant]

    def by_tenant(self) -> dict[str, list[Run]]:
        """The runs of each tenant, in order."""
        if len(self._tenants) == 1:
            return {tenant: list(self._ordered) for tenant in self._tenants}
        runs: dict[str, list[Run]] = {tenant: [] for tenant in self._tenants}
        for run in self._ordered:
            runs[run.tenant].append(run)
        return runs


def _key(run: Run) -> tuple[float, int]:
    return run.key
