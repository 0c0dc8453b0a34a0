"""From the queue to a lease in the caller's hands: reserve, make room, journal, tell the daemon, tell the caller."""

from __future__ import annotations

from collections.abc import Iterator

from looseleaf.ids import HostId, SessionId
from looseleaf.services.scheduler.core.actions import GrantLease, NotifyLease, UndrainHost
from looseleaf.services.scheduler.core.contexts import in_the_way
from looseleaf.services.scheduler.core.endings import end_lease, refuse_run, revoke, send_revoke
from looseleaf.services.scheduler.core.events import EvictionEnded, GrantFailed, LeaseGranted
from looseleaf.services.scheduler.core.facts import Lease, StartPath
from looseleaf.services.scheduler.core.fairness import in_turn
from looseleaf.services.scheduler.core.fitting import Capacity
from looseleaf.services.scheduler.core.holds import lost_need
from looseleaf.services.scheduler.core.hosts import Liveness
from looseleaf.services.scheduler.core.leases import LeaseEntry, LeaseStatus
from looseleaf.services.scheduler.core.placement import Placement, could_place, place
from looseleaf.services.scheduler.core.preparing_again import prepare_again
from looseleaf.services.scheduler.core.queue import Run
from looseleaf.services.scheduler.core.refusals import grants_refused, stale_epoch
from looseleaf.services.scheduler.core.speculation import forget_forks
from looseleaf.services.scheduler.core.state import State
from looseleaf.services.scheduler.core.stuck_contexts import end_stuck_by_lease
from looseleaf.services.scheduler.core.waiting import over_quota


def place_runs(state: State, now_s: float) -> None:
    """Places what fits, in queue order; a session's later run never overtakes its earlier one."""
    if state.capacity_changed:
        state.capacity_changed = False
        _refuse_misfits(state, now_s)
    if state.queue.needy:
        for run in _first_of_each_session(state, now_s):
            _refuse_for_need(state, run, now_s)
    if not len(state.queue):
        return
    closed: set[HostId] = set()
    state.rooms.refresh(now_s)
    # Whose turn it is takes a look at all who wait.
    if not state.rooms.any_open(closed):
        return
    for run in _first_of_each_session(state, now_s):
        state.rooms.refresh(now_s)
        if not state.rooms.any_open(closed):
            break
        if over_quota(state, run):
            continue
        preparation = state.preparations.get(run.session_id)
        preparing_on = preparation.host_id if preparation else None
        target = place(run, state.rooms, preparing_on, closed, now_s)
        if target is None and state.hosts.retiring - state.hosts.yielding and _take_back(state, run, now_s):
            target = place(run, state.rooms, preparing_on, closed, now_s)
        if target is None:
            _reserve_for_gang(state, run, closed, now_s)
        else:
            _reserve(state, run, target, now_s)


def _take_back(state: State, run: Run, now_s: float) -> bool:
    """A host that is to go stays, since a run would wait otherwise; the one with most leases that has the room."""
    able = [
        room for host_id in sorted(state.hosts.retiring - state.hosts.yielding) if host_id in state.rooms
        and not (room := state.rooms.room(host_id)).host.draining
        and room.host.liveness(now_s, state.limits) is Liveness.DRAINING
        and could_place(run, room, now_s, state.limits)]
    if not able:
        return False
    host = max(able, key=lambda room: state.leases.gpus_on(room.host.host_id)).host
    state.hosts.retire(host, False)
    state.rooms.refresh(now_s)
    state.surplus_since_s = None
    state.act(UndrainHost(host.host_id))
    return True


def waiting_runs(state: State, now_s: float) -> list[Run]:
    """Runs that wait for nothing but GPUs, in turn."""
    return [run for run in _first_of_each_session(state, now_s) if not over_quota(state, run)]


def _first_of_each_session(state: State, now_s: float) -> Iterator[Run]:
    """Runs that may be placed: a session's cell that runs, or an earlier one that waits, holds its later ones back."""
    held_back: set[SessionId] = set()
    for run in in_turn(state.queue, state.shares, state.limits, now_s, state.leases.session_runs):
        if run.session_id not in held_back and not state.leases.session_runs(run.session_id):
            held_back.add(run.session_id)
            yield run


def _refuse_for_need(state: State, run: Run, now_s: float) -> None:
    error = lost_need(state, run, now_s)
    if error is not None:
        refuse_run(state, run, error)


def _refuse_misfits(state: State, now_s: float) -> None:
    capacity = Capacity(state, now_s)
    for run in state.queue:
        misfit = capacity.never_fits(run.recipe)
        if misfit is not None:
            refuse_run(state, run, misfit)
        elif not run.need.worker_id:
            run.patient_gpu_bytes = capacity.wanted_gpu_bytes(run.recipe)


def _reserve_for_gang(state: State, run: Run, closed: set[HostId], now_s: float) -> None:
    """Keeps one host for a run of several GPUs that waited long, since one-GPU runs would starve it for ever."""
    if run.recipe.gpu_count < 2 or now_s - run.arrived_at_s < state.limits.gang_patience_s:
        return
    wanted_bytes = run.wanted_gpu_bytes(now_s, state.limits)
    able = {
        host.host_id for host in state.hosts.open_for_work(now_s)
        if host.host_id not in closed and host.fits(run.recipe.gpu_count, wanted_bytes)}
    if not able:
        return
    if run.reserved_host not in able:
        run.reserved_host = max(able, key=lambda host_id: (_room_size(state, host_id), host_id))
    if run.reserved_host is not None:
        closed.add(run.reserved_host)


def _room_size(state: State, host_id: HostId) -> int:
    room = state.rooms.room(host_id)
    return len(room.free) + len(room.warm)


def _reserve(state: State, run: Run, target: Placement, now_s: float) -> None:
    """Occupies the GPUs; asks for the room first if somebody stands there."""
    host = state.hosts.get(target.host_id)
    assert host is not None
    state.queue.remove(run.execution_id)
    lease = Lease(
        state.new_lease_id(), run.session_id, run.epoch, run.execution_id, host.host_id, host.address,
        target.gpu_indices, target.worker_id, target.path, int(state.limits.lease_ttl_s * 1000),
        bool(run.need.worker_id),
    )
    entry = LeaseEntry(lease, LeaseStatus.EVICTING, now_s, now_s)
    state.occupy(entry, run.tenant)
    for worker_id in target.victims:
        worker = host.workers[worker_id]
        state.greedy.evicted(worker)
        entry.evictions.add(worker_id)
        state.evict(host, worker, lease.lease_id)
    gpu_bytes = run.wanted_gpu_bytes(now_s, state.limits)
    for worker_id in in_the_way(state, host, target.gpu_indices, gpu_bytes, target.worker_id, now_s):
        if worker_id not in entry.evictions:
            entry.evictions.add(worker_id)
            state.evict(host, host.workers[worker_id], lease.lease_id)
    end_stuck_by_lease(state, host, target.gpu_indices, now_s)
    if not entry.evictions:
        _dispatch(state, entry, now_s)


def _dispatch(state: State, entry: LeaseEntry, now_s: float) -> None:
    """The record goes before the order: a restarted scheduler must know whom to ask about this execution."""
    entry.status, entry.grant_open, entry.granted_at_s = LeaseStatus.GRANTING, True, now_s
    state.write(state.journal.dispatch(entry.lease.execution_id, entry.lease))
    state.act(GrantLease(entry.lease))


def eviction_ended(state: State, event: EvictionEnded, now_s: float) -> None:
    """The room is free, or its holder stays and the run looks elsewhere."""
    host = state.hosts.get(event.host_id)
    worker = state.hosts.worker(event.host_id, event.worker_id)
    if host is not None and worker is not None:
        worker.evicting = False
        state.hosts.touch(event.host_id, worker)
        if event.evicted:
            state.lose_worker(worker, now_s)
            del host.workers[event.worker_id]
            if worker.hold is not None:
                why = "made way for another cell that needed its GPU, after the time for which it was kept"
                state.remember_end(worker.worker_id, why, now_s)
            prepare_again(state, worker, now_s)
        else:
            worker.pinned_until = state.retry(host)
    state.dirty = True
    entry = state.leases.get(event.lease_id)
    if entry is None or entry.status is not LeaseStatus.EVICTING:
        return
    entry.evictions.discard(event.worker_id)
    run = state.runs.get(entry.lease.execution_id)
    if run is None or not event.evicted:
        end_lease(state, entry, now_s)
        if run is not None:
            state.queue.put(run)
    elif not entry.evictions:
        chosen = state.hosts.worker(entry.lease.host_id, entry.lease.worker_id)
        if entry.lease.worker_required and chosen is None:
            end_lease(state, entry, now_s)
            state.queue.put(run)
            return
        if entry.lease.worker_id and chosen is None:
            # The chosen worker went meanwhile: the daemon forks a new one.
            state.leases.use_new_worker(entry)
        _dispatch(state, entry, now_s)


def lease_granted(state: State, event: LeaseGranted, now_s: float) -> None:
    """The daemon has the lease: hand it to the callers, or take it back if they left."""
    entry = state.leases.get(event.lease_id)
    if entry is None:
        return
    entry.grant_open = False
    if entry.status is LeaseStatus.GRANTING:
        entry.status = LeaseStatus.HELD
        deliver(state, entry, now_s)
    elif entry.status is LeaseStatus.REVOKING:
        send_revoke(state, entry, now_s)


def deliver(state: State, entry: LeaseEntry, now_s: float) -> None:
    """Hands the lease to everybody who waits for it; from here on the cell may start."""
    lease = entry.lease
    entry.renewed_at_s = now_s
    entry.delivered, entry.delivered_at_s = True, now_s
    session = state.sessions.touch(lease.session_id)
    forget_forks(session)
    frequency = session.count_run(now_s, state.limits.frequency_half_life_s)
    worker = state.hosts.worker(lease.host_id, lease.worker_id)
    if worker is not None:
        used = lease.path is StartPath.PREPARED
        if used:
            state.speculation.take(worker, lease.gpu_indices)
        state.speculation.unpark(worker, session, now_s, used=used)
        state.speculation.close_context(worker.worker_id, now_s, used=worker.context_gpus == lease.gpu_indices)
        worker.parked = False
        worker.prepared, worker.merged = None, None
        state.hosts.touch(lease.host_id, worker)
        state.greedy.touch(worker, frequency)
    run = state.runs.pop(lease.execution_id)
    for waiter in run.waiters if run is not None else ():
        entry.recipients.add(waiter)
        state.act(NotifyLease(waiter, lease))


def grant_failed(state: State, event: GrantFailed, now_s: float) -> None:
    """Another host, or back to its old place in the queue; the lease that failed is never handed out.

    Without an answer the daemon may have it: it keeps its GPUs until the daemon says that it is gone.
    """
    entry = state.leases.get(event.lease_id)
    if entry is None:
        return
    entry.grant_open = False
    cancelled = entry.status is LeaseStatus.REVOKING
    host = state.hosts.get(entry.lease.host_id)
    if event.answered:
        end_lease(state, entry, now_s)
    elif not cancelled:
        revoke(state, entry, now_s)
        if host is not None:
            host.unresponsive_until = state.retry(host)
    else:
        send_revoke(state, entry, now_s)
    run = state.runs.get(entry.lease.execution_id)
    if cancelled or run is None:
        return
    state.write(state.journal.withdraw(run.execution_id))
    state.dirty = True
    run.refusals += 1
    if host is not None:
        run.avoided[host.host_id] = state.retry(host)
    if event.reason == "STALE_EPOCH":
        newest = max(state.sessions.epoch(run.session_id), run.epoch)
        refuse_run(state, run, stale_epoch(run.epoch, newest))
    elif run.refusals >= state.limits.grant_refusals_max:
        refuse_run(state, run, grants_refused(run.refusals, event.message or event.reason))
    else:
        state.queue.put(run)
