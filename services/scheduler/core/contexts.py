"""Contexts that wait on GPUs before Run: whose count, and whom they make way for.

A context stays as long as its process. Those of notebooks in which nobody types any more keep nobody out: they are left
for a newer one. Where several tenants want more than there may be, each has its part. All that wait leave where a Run
needs their memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from looseleaf.ids import SessionId, WorkerId
from looseleaf.services.scheduler.core.eviction import evictable
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.preparations import Preparation
from looseleaf.services.scheduler.core.state import State


def counts(state: State, worker: Worker, now_s: float) -> bool:
    """Whether the worker's context keeps others out: somebody types in its cell."""
    return worker.preparing or now_s - worker.prepared_at_s < state.limits.speculative_expiry_s


def most_on(state: State, host: Host, index: int) -> int:
    """Contexts that may wait on one GPU: a few, and no more than fit beside what others than our workers hold there.

    One always may: it makes way for whoever needs its memory.
    """
    most = state.limits.contexts_per_gpu_max
    if not host.gpu_memory_bytes or host.least_spare_bytes >= most * state.limits.context_bytes:
        return most
    return min(most, max(1, int(host.spare_bytes(index)) // state.limits.context_bytes))


def opening_on(state: State, host: Host) -> list[Preparation]:
    """Prepares under way that open a context in a new worker of the host."""
    under_way = state.preparations.on_host(host.host_id)
    return [coming for coming in under_way if coming.context_gpus and not coming.worker_id]


def to_leave(
    state: State, host: Host, gpus: tuple[int, ...], session_id: SessionId, now_s: float,
) -> list[Worker]:
    """Whose contexts are left, not what they were prepared for, before one more is opened on `gpus` for the session.

    Beyond the bound the longest unused ones; where somebody types in all of them, those of tenants that hold more than
    their part (`displaced`).
    """
    found: dict[WorkerId, Worker] = {}
    # In the order in which they were chosen.
    for index in sorted(gpus, reverse=True):
        waiting = [
            worker for worker in _waiting_on(state, host, index)
            if worker.session_id != session_id and not worker.evicting and worker.worker_id not in found]
        unused = [
            worker for worker in waiting if not counts(state, worker, now_s) and _may_leave(state, worker)]
        unused.sort(key=lambda worker: (worker.prepared_at_s, worker.worker_id))
        going = unused[: max(0, len(waiting) + 1 - most_on(state, host, index))]
        going += displaced(state, host, index, session_id, len(gpus), now_s, {**found, **_by_id(going)}) or []
        found |= _by_id(going)
    return list(found.values())


def _by_id(workers: Iterable[Worker]) -> dict[WorkerId, Worker]:
    return {worker.worker_id: worker for worker in workers}


def displaced(
    state: State, host: Host, index: int, session_id: SessionId, gpu_count: int, now_s: float,
    left: Mapping[WorkerId, Worker] | None = None,
) -> list[Worker] | None:
    """Whose contexts, though somebody types there, are left so that the session gets one on that GPU.

    Empty: there is room; None: nobody has to make way. Memory for `most_on` of them is what a GPU can spare, and among
    tenants who want more each has a part of the pool's by its weight: one is taken from who, measured by that, holds
    more than the session's tenant will hold with it; so nothing goes to and fro. A tenant alone may have all. `left`:
    those that leave for others of the session's `gpu_count` GPUs.
    """
    own, left = state.sessions.tenant(session_id), left or {}
    if not state.speculation.contexts.others_than(own):
        return None
    leaving = {coming.session_id for coming in state.preparations.on_host(host.host_id) if coming.leaves_gpus}
    typed_in = [
        worker for worker in _waiting_on(state, host, index)
        if worker.session_id not in leaving | {session_id} and not worker.evicting and counts(state, worker, now_s)
        and worker.worker_id not in left]
    opening = sum(
        index in coming.context_gpus and coming.session_id != session_id for coming in opening_on(state, host))
    missing = len(typed_in) + opening + 1 - most_on(state, host, index)
    if missing <= 0:
        return []
    theirs: dict[str, list[Worker]] = {}
    for worker in typed_in:
        tenant = state.sessions.tenant(worker.session_id)
        if tenant != own and _may_leave(state, worker):
            theirs.setdefault(tenant, []).append(worker)
    if sum(map(len, theirs.values())) < missing:
        return None
    own_part = (held_by(state, own, now_s, but=session_id) + gpu_count) / state.shares.weight(own)
    held = {tenant: held_by(state, tenant, now_s) for tenant in theirs}
    for worker in left.values():
        tenant = state.sessions.tenant(worker.session_id)
        if tenant in held:
            held[tenant] -= state.speculation.contexts.typed_in(worker.worker_id, now_s)
    going: list[Worker] = []
    for workers in theirs.values():
        workers.sort(key=lambda worker: (-worker.prepared_at_s, worker.worker_id))
    while len(going) < missing:
        parts = [(held[tenant] / state.shares.weight(tenant), tenant) for tenant, workers in theirs.items() if workers]
        part, tenant = max(parts, default=(0.0, ""))
        if part <= own_part:
            return None
        worker = theirs[tenant].pop()
        held[tenant] -= len(worker.context_gpus)
        going.append(worker)
    return going


def held_by(state: State, tenant: str, now_s: float, but: SessionId | None = None) -> int:
    """Contexts of the tenant's cells in which somebody types, those that are being opened included, GPU by GPU."""
    contexts = state.speculation.contexts
    held = contexts.gpus_typed_in(tenant, now_s)
    if but is not None and state.sessions.tenant(but) == tenant:
        held -= sum(contexts.typed_in(worker.worker_id, now_s) for _host, worker in state.hosts.workers_of(but))
    # An edit that is being prepared counts for so long, however long that takes.
    return held + sum(
        contexts.gpus(coming.worker_id) or len(coming.context_gpus) for coming in state.preparations
        if coming.session_id != but and not contexts.typed_in(coming.worker_id, now_s)
        and state.sessions.tenant(coming.session_id) == tenant)


def _may_leave(state: State, worker: Worker) -> bool:
    """True if the worker can be told to go on without its context, and nothing else is under way for its session."""
    ready = worker.speculative and worker.prepared is not None and worker.stage.ready
    return ready and state.preparations.get(worker.session_id) is None


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
