"""How far a preparation goes before Run, and what speculation may cost (design §6, provisioning.md §3).

Host memory costs nobody a GPU, so every cell is prepared up to host_ready; a predicted one never further. A cell that
is certain, and whose attach would take longer than an immediate start allows, gets its data onto a GPU that nobody
needs, else a context on the one that it will likely run on. Such a GPU is taken back whenever a Run needs it, and after
`speculative_expiry_s` without a keystroke. GPU-seconds that nobody used are charged to the session.
"""

from __future__ import annotations

from dataclasses import dataclass

from looseleaf.ids import HostId, SessionId, WorkerId
from looseleaf.services.scheduler.core.events import PreparationRequested
from looseleaf.services.scheduler.core.facts import WorkerStage
from looseleaf.services.scheduler.core.hosts import Worker
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.open_contexts import OpenContext, OpenContexts
from looseleaf.services.scheduler.core.sessions import Session


@dataclass(slots=True)
class SpeculationTotals:
    """Work since this process began. A preparation is used if its worker gets a cell that it covers."""

    ordered: int = 0
    used: int = 0
    wasted: int = 0
    wasted_prepare_s: float = 0.0
    # GPU time of data that lay on a device and were not used.
    wasted_gpu_s: float = 0.0
    # Contexts opened before Run, those found in heartbeats after a restart included, and those whose cell, as it was
    # prepared, ran there; the same of data on a device.
    contexts: int = 0
    contexts_used: int = 0
    on_device: int = 0
    on_device_used: int = 0
    # Contexts that were left, or whose worker ended, before a cell came there; and how long they had waited. Neither
    # used nor wasted: data were laid there, or a cell came that was not prepared.
    contexts_wasted: int = 0
    wasted_context_s: float = 0.0


@dataclass(slots=True)
class Parked:
    """A speculative worker whose data lie on GPUs that no lease holds."""

    host_id: HostId
    session_id: SessionId
    tenant: str
    gpus: int
    since_s: float


class Speculation:
    """What speculation holds on GPUs, and its totals."""

    def __init__(self, expiry_s: float) -> None:
        self.totals = SpeculationTotals()
        self.parked: dict[WorkerId, Parked] = {}
        self.contexts = OpenContexts(expiry_s)

    def open_context(
        self, worker: Worker, host_id: HostId, tenant: str, now_s: float, typed_s: float | None = None,
    ) -> None:
        """The worker waits with a context from now on; `typed_s`: when somebody last typed in its cell, None: now."""
        typed_s = now_s if typed_s is None else typed_s
        if worker.worker_id in self.contexts:
            self.contexts.type_in(worker.worker_id, typed_s)
            return
        self.totals.contexts += not worker.has_run
        self.contexts.add(worker.worker_id, OpenContext(
            host_id, tenant, len(worker.context_gpus), now_s, typed_s, not worker.has_run))

    def close_context(self, worker_id: WorkerId, now_s: float, *, used: bool) -> None:
        """The worker's context is left, or a cell uses it; nothing happens if it has none."""
        context = self.contexts.take(worker_id)
        if context is not None and context.counted and not used:
            self.totals.contexts_wasted += 1
            self.totals.wasted_context_s += context.gpus * max(0.0, now_s - context.since_s)

    def gpus_of(self, tenant: str) -> int:
        """GPUs on which speculative workers of the tenant lie."""
        return sum(parked.gpus for parked in self.parked.values() if parked.tenant == tenant)

    def unpark(self, worker: Worker, session: Session, now_s: float, *, used: bool) -> None:
        """The worker's data leave the GPUs, or a cell uses them there; unused time is charged to the session."""
        parked = self.parked.pop(worker.worker_id, None)
        if parked is None or used:
            return
        wasted_gpu_s = parked.gpus * max(0.0, now_s - parked.since_s)
        self.totals.wasted_gpu_s += wasted_gpu_s
        session.spare_gpu_s -= wasted_gpu_s

    def park(self, worker: Worker, parked: Parked) -> None:
        """A preparation laid the worker's data on GPUs: its answer and a heartbeat say so, which counts once."""
        if not worker.has_run and worker.worker_id not in self.parked:
            self.parked[worker.worker_id] = parked
            self.totals.on_device += 1

    def take(self, worker: Worker, gpus: tuple[int, ...]) -> None:
        """A cell that the worker's preparation covers got it on `gpus`."""
        self.totals.used += 1
        if worker.worker_id in self.parked:
            self.totals.on_device_used += 1
        elif worker.worker_id in self.contexts and not worker.has_run and worker.context_gpus == gpus:
            self.totals.contexts_used += 1

    def drop(self, worker: Worker) -> None:
        """The worker's preparation came to nothing."""
        if worker.prepared is not None:
            self.totals.wasted += 1
            self.totals.wasted_prepare_s += worker.prepare_ms / 1000


def attach_s(event: PreparationRequested, limits: Limits) -> float:
    """What is left to do at Run for a host_ready worker: as the request says, or a context and a copy."""
    return event.attach_s or limits.context_s + event.recipe.device_bytes / limits.copy_bytes_per_s


def how_far(event: PreparationRequested, limits: Limits, *, gpu_idle: bool, may_spend: bool) -> WorkerStage:
    """The stage to prepare up to. `gpu_idle`: a GPU is free and nobody waits; `may_spend`: budgets allow one."""
    wait_s = attach_s(event, limits)
    if event.predicted or not event.certain or wait_s <= limits.immediate_s:
        wanted = WorkerStage.HOST_READY
    elif gpu_idle and may_spend:
        wanted = WorkerStage.DEVICE_READY
    else:
        wanted = WorkerStage.CONTEXT_READY
    return min(wanted, limits.prepare_stage_max)


def earn(session: Session, used_gpu_s: float, limits: Limits) -> None:
    """Cells that ran allow for a part of their time to be wasted."""
    session.spare_gpu_s = min(limits.waste_burst_gpu_s, session.spare_gpu_s + limits.waste_refill * used_gpu_s)


def fork_wait_s(session: Session, now_s: float) -> float:
    """How long the session's next new speculative worker must wait: cells that change too fast are left alone."""
    return max(0.0, session.fork_not_before_s - now_s)


def count_fork(session: Session, now_s: float, limits: Limits) -> None:
    """A new speculative worker is forked: the pause before the next one doubles unless there was a longer rest."""
    rested = now_s - session.fork_not_before_s >= limits.fork_pause_s_max
    doubled = min(2 * session.fork_pause_s, limits.fork_pause_s_max)
    session.fork_pause_s = limits.fork_pause_s_min if rested or not session.fork_pause_s else doubled
    session.fork_not_before_s = now_s + session.fork_pause_s


def forget_forks(session: Session) -> None:
    """Its cell ran: the next one begins anew."""
    session.fork_pause_s, session.fork_not_before_s, session.device_not_before_s = 0.0, 0.0, 0.0
