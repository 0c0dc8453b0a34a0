"""Contexts that wait on GPUs before Run: whose count, and whom they make way for.

A context stays as long as its process. Those of notebooks in which nobody types any more keep nobody out: they are left
for a newer one, and all that wait leave where a Run needs their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from looseleaf.ids import SessionId, WorkerId
from looseleaf.services.scheduler.core.eviction import evictable
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.state import State


def counts(state: State, worker: Worker, now_s: float) -> bool:
    """Whether the worker's context keeps others out: somebody types in its cell."""
    return worker.preparing or now_s - worker.prepared_at_s < state.limits.speculative_expiry_s


def make_room(
    state: State, host: Host, gpus: Iterable[int], session_id: SessionId, now_s: float,
    demote: Callable[[Worker], None],
) -> None:
    """Before one more context is opened on `gpus`: the longest unused ones beyond the bound are left, not the workers'
    preparations."""
    for index in gpus:
        waiting = [
            worker for worker in _waiting_on(state, host, index)
            if worker.session_id != session_id and not worker.evicting]
        old = [
            worker for worker in waiting
            if not counts(state, worker, now_s) and worker.speculative and worker.prepared is not None
            and worker.stage.ready and state.preparations.get(worker.session_id) is None]
        old.sort(key=lambda worker: (worker.prepared_at_s, worker.worker_id))
        for worker in old[: max(0, len(waiting) + 1 - state.limits.contexts_per_gpu_max)]:
            demote(worker)


def in_the_way(
    state: State, host: Host, gpus: Iterable[int], gpu_bytes: int, worker_id: WorkerId, now_s: float,
) -> list[WorkerId]:
    """Workers whose contexts leave a cell on `worker_id` less than `gpu_bytes` on one of `gpus`, and who may go."""
    found: dict[WorkerId, None] = {}
    for index in gpus if host.gpu_memory_bytes else ():
        others = [worker for worker in _waiting_on(state, host, index) if worker.worker_id != worker_id]
        if gpu_bytes + len(others) * state.limits.context_bytes > host.gpu_memory_bytes:
            found.update(
                (worker.worker_id, None) for worker in others if evictable(worker, host.heartbeats, now_s))
    return list(found)


def _waiting_on(state: State, host: Host, index: int) -> list[Worker]:
    """Workers that have a context on that GPU and nothing else, and no lease."""
    in_use = state.leases.workers_in_use(host.host_id)
    return [
        worker for worker in host.workers.values()
        if index in worker.context_gpus and not worker.gpu_indices and worker.worker_id not in in_use]
