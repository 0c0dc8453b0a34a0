"""Where a cell is prepared: on an idle worker of its session, or in a new one on the host with most room."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from looseleaf.ids import HostId, LeaseId
from looseleaf.services.scheduler.core.events import PreparationRequested
from looseleaf.services.scheduler.core.eviction import evictable, eviction_rank
from looseleaf.services.scheduler.core.fitting import wanted_gpu_bytes
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.state import State


def usable_workers(
    state: State, event: PreparationRequested, workers: Iterable[tuple[Host, Worker]], now_s: float,
) -> list[tuple[Host, Worker]]:
    """Of a session's workers the idle ones on hosts that take work, the fittest first."""
    found = []
    gpu_bytes = wanted_gpu_bytes(state, event.recipe, now_s)
    for host, worker in workers:
        if not host.takes_work(now_s, state.limits) or not host.fits(event.recipe.gpu_count, gpu_bytes):
            continue
        if not worker.stage.ready or worker.evicting or worker.worker_id in state.leases.workers_in_use(host.host_id):
            continue
        if worker.gpu_indices and len(worker.gpu_indices) != event.recipe.gpu_count:
            continue
        found.append((host, worker))
    if len(found) > 1:
        found.sort(key=lambda pair: (not pair[1].has_run, -pair[1].version, pair[1].worker_id))
    return found


def place_for_new(state: State, event: PreparationRequested, now_s: float) -> tuple[Host | None, str]:
    """The host with most room, or None and a sentence for people."""

    def able(host_id: HostId) -> bool:
        host = state.rooms.host(host_id)
        return host.takes_work(now_s, state.limits) and host.fits(event.recipe.gpu_count, gpu_bytes)

    gpu_bytes = wanted_gpu_bytes(state, event.recipe, now_s)

    unfinished = [
        worker for host, worker in state.hosts.workers_of(event.session_id)
        if worker.speculative and not worker.evicting and host.takes_work(now_s, state.limits)]
    if unfinished:
        return None, "This notebook's other worker is not ready yet."
    state.rooms.refresh(now_s)
    best = state.rooms.for_new.first(able)
    if best is not None:
        return state.rooms.host(best), ""
    hosts = state.hosts.open_for_work(now_s)
    if not any(host.holds(event.recipe) for host in hosts):
        return None, _nowhere(hosts, event.recipe.gpu_count)
    _end_longest_unused(state, able, event, now_s)
    limit = state.limits.prepared_max_per_host
    return None, f"Every GPU host holds its {limit} prepared workers already; the oldest unused one gives way."


def _nowhere(hosts: list[Host], gpu_count: int) -> str:
    if any(host.gpu_count >= gpu_count for host in hosts):
        return "No connected host has enough GPU memory for this cell's variables."
    return "No GPU host is connected." if gpu_count == 1 else f"No connected host has {gpu_count} GPUs."


def _end_longest_unused(
    state: State, able: Callable[[HostId], bool], event: PreparationRequested, now_s: float,
) -> None:
    """Ends the longest expired speculative worker of another session, so that the next request finds room."""
    host_id = state.rooms.oldest_speculative.first(able)
    if host_id is None:
        return
    host = state.rooms.host(host_id)
    in_use = state.leases.workers_in_use(host_id)
    expired = [
        worker for worker in host.workers.values()
        if worker.speculative and worker.session_id != event.session_id and worker.worker_id not in in_use
        and now_s - worker.prepared_at_s >= state.limits.speculative_expiry_s
        and evictable(worker, host.heartbeats, now_s)]
    if expired:
        state.evict(host, min(expired, key=lambda worker: eviction_rank(worker, now_s, state.limits)), LeaseId(""))
