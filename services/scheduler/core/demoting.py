"""Speculative workers leave the GPUs for which they waited; what they hold in host memory stays ready."""

from __future__ import annotations

from looseleaf.services.scheduler.core.actions import PrepareWorker
from looseleaf.services.scheduler.core.facts import WorkerStage
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.preparations import Preparation
from looseleaf.services.scheduler.core.state import State


def demote(state: State, host: Host, worker: Worker, now_s: float) -> None:
    """A speculative worker leaves its GPUs, with its context; what it holds in host memory stays ready."""
    assert worker.prepared is not None
    worker.preparing = True
    state.speculation.close_context(worker.worker_id, now_s, used=False)
    state.hosts.touch(host.host_id, worker)
    request_id = f"demote-{state.number}-{worker.worker_id}"
    epoch = state.sessions.epoch(worker.session_id)
    state.preparations.add(Preparation(
        request_id, worker.session_id, epoch, worker.prepared, host.host_id, host.incarnation, worker.worker_id,
        leaves_gpus=True))
    state.act(PrepareWorker(
        request_id, host.host_id, host.address, worker.session_id, epoch, worker.prepared, worker.worker_id,
        leave_device=True))


def demote_expired(state: State, now_s: float) -> None:
    """Data of cells that nobody types in any more leave the GPUs; marks those of tenants that hold too many."""
    tenants = {parked.tenant for parked in state.speculation.parked.values()}
    over = {name for name in tenants if state.speculation.gpus_of(name) > state.speculative_gpus_max(name)}
    for worker_id, parked in list(state.speculation.parked.items()):
        worker = state.hosts.worker(parked.host_id, worker_id)
        host = state.hosts.get(parked.host_id)
        if worker is None or host is None:
            # Its host no longer lists it.
            gone = Worker(worker_id, parked.session_id, WorkerStage.GONE)
            state.speculation.unpark(gone, state.sessions.touch(parked.session_id), now_s, used=False)
            continue
        if worker.over_share != (parked.tenant in over):
            worker.over_share = parked.tenant in over
            state.hosts.touch(host.host_id, worker)
        idle = not worker.evicting and worker.worker_id not in state.leases.workers_in_use(host.host_id)
        old = now_s - worker.prepared_at_s >= state.limits.speculative_expiry_s
        if idle and old and worker.prepared is not None and state.preparations.get(worker.session_id) is None:
            demote(state, host, worker, now_s)
