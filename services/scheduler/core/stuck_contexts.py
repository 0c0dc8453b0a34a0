"""Workers that wait with a context on a GPU which somebody else's cell has meanwhile: a context cannot be moved."""

from __future__ import annotations

from collections.abc import Iterable

from looseleaf.ids import LeaseId
from looseleaf.services.scheduler.core.eviction import evictable
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.state import State


def end_stuck(state: State, workers: Iterable[tuple[Host, Worker]], now_s: float) -> None:
    """Ends those of a session's workers, so that its edit gets another one ready: a Run would find none that serves it.

    Not those that hold data on a GPU, run, or are being prepared.
    """
    for host, worker in workers:
        waits = worker.context_gpus and not worker.gpu_indices and worker.worker_id not in (
            state.leases.workers_in_use(host.host_id))
        taken = waits and any(state.leases.occupied(host.host_id, index) for index in worker.context_gpus)
        if taken and evictable(worker, host.heartbeats, now_s):
            state.evict(host, worker, LeaseId(""))
