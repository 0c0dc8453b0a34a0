"""What must hold of the policy's state, found by looking at all of it."""

from __future__ import annotations

from looseleaf.ids import HostId
from looseleaf.services.scheduler.core import placement
from looseleaf.services.scheduler.core.contexts import counts, held_by
from looseleaf.services.scheduler.core.facts import ExecutionState
from looseleaf.services.scheduler.core.granting import waiting_runs
from looseleaf.services.scheduler.core.hosts import Host
from looseleaf.services.scheduler.core.placement import Placement
from looseleaf.services.scheduler.core.queue import Run
from looseleaf.services.scheduler.core.rooms import host_room
from looseleaf.services.scheduler.core.state import State


def best_placement(state: State, run: Run, preparing_on: HostId | None, now_s: float) -> Placement | None:
    """The best of all placements on all hosts."""
    found: list[tuple[tuple[placement.Rank, str, int], Placement]] = []
    for host in state.hosts.open_for_work(now_s):
        if host.heartbeats < run.avoided.get(host.host_id, 0) or not host.fits(
                run.recipe.gpu_count, run.wanted_gpu_bytes(now_s, state.limits)):
            continue
        room = host_room(host, state.leases, now_s, state.limits)
        for option, grade in placement._options(run, room, preparing_on, now_s, state.limits):
            rank = placement._rank(room, option, grade, now_s, state.limits)
            found.append(((rank, host.host_id, len(found)), option))
    return min(found)[1] if found else None


def check_index(state: State, now_s: float) -> None:
    """The index holds every room as it is, finds every worker of a session, and leads to the best placement."""
    state.rooms.refresh(now_s)
    for host in state.hosts.with_gpus():
        check_room(state, host, now_s)
    assert state.rooms.for_new.first(lambda _host_id: True) == most_room_for_new(state)
    assert state.rooms.oldest_speculative.first(lambda _host_id: True) == oldest_speculative(state, now_s)
    assert set(state.hosts.shapes) == {host.shape for host in state.hosts.with_gpus()}
    everyone = [(host, worker) for host in state.hosts for worker in host.workers.values()]
    for session_id in {worker.session_id for _host, worker in everyone}:
        theirs = [(host, worker) for host, worker in everyone if worker.session_id == session_id]
        assert state.hosts.workers_of(session_id) == theirs, "a worker's change was not told of"
    for run in state.runs:
        check_placement(state, run, now_s)


def check_room(state: State, host: Host, now_s: float) -> None:
    """The refreshed index holds the host's room as it is."""
    workers = host.workers.values()
    bound = {worker.worker_id for worker in workers if worker.gpu_indices}
    assert {worker.worker_id for worker in host.workers.bound()} == bound, "a worker's change was not told of"
    speculative = sum(1 for worker in workers if worker.speculative)
    assert host.workers.speculative == speculative, "a worker's change was not told of"
    assert state.rooms.room(host.host_id) == host_room(host, state.leases, now_s, state.limits), (
        "a change was not told of")


def check_placement(state: State, run: Run, now_s: float) -> None:
    """The refreshed index leads to the best placement of the run."""
    preparation = state.preparations.get(run.session_id)
    preparing_on = preparation.host_id if preparation is not None else None
    expected = best_placement(state, run, preparing_on, now_s)
    found = placement.place(run, state.rooms, preparing_on, set(), now_s)
    assert found == expected, "the index leads elsewhere than a look at every host"


def most_room_for_new(state: State) -> HostId | None:
    """Where one more worker is prepared, found by looking at every host."""
    found = []
    for host in state.hosts.with_gpus():
        room = state.rooms.room(host.host_id)
        if host.workers.speculative + state.preparations.new_on_host(host.host_id) < state.limits.prepared_max_per_host:
            found.append((-len(room.free), -len(room.warm), len(host.workers), host.host_id))
    return min(found)[-1] if found else None


def oldest_speculative(state: State, now_s: float) -> HostId | None:
    """On which of the hosts that are full the oldest speculative worker may go, found by looking at every host."""
    found = []
    for host in state.hosts.with_gpus():
        oldest = state.rooms.room(host.host_id).oldest_speculative(now_s)
        full = host.workers.speculative + state.preparations.new_on_host(host.host_id) >= (
            state.limits.prepared_max_per_host)
        if full and oldest is not None:
            found.append((oldest.prepared_at_s, oldest.worker_id, host.host_id))
    return min(found)[-1] if found else None


def check_nobody_waits_for_nothing(state: State, now_s: float) -> None:
    """Nobody waits for GPUs that could be had, but those that are kept for cells of several.

    Whose turn comes before is not asked: what was granted since has changed it.
    """
    state.rooms.refresh(now_s)
    waiting = waiting_runs(state, now_s)
    for run in waiting:
        kept = {other.reserved_host for other in waiting if other is not run and other.reserved_host is not None}
        preparation = state.preparations.get(run.session_id)
        preparing_on = preparation.host_id if preparation is not None else None
        assert placement.place(run, state.rooms, preparing_on, kept, now_s) is None, "a run waits though there is room"


def check_contexts(state: State, now_s: float) -> None:
    """Each context that is counted to a tenant is one that a worker waits with, and what was wasted was opened."""
    workers = {worker.worker_id: (host.host_id, worker) for host in state.hosts for worker in host.workers.values()}
    held: dict[str, int] = {}
    for worker_id, context in state.speculation.contexts:
        assert worker_id in workers, "a context is counted whose worker is gone"
        host_id, worker = workers[worker_id]
        assert context.host_id == host_id
        assert worker.context_gpus, "a context is counted that was left"
        assert context.tenant == state.sessions.tenant(worker.session_id), "a context is counted to another tenant"
        typed = counts(state, worker, now_s)
        held[context.tenant] = held.get(context.tenant, 0) + typed * context.gpus
    for coming in state.preparations:
        tenant, opened = state.sessions.tenant(coming.session_id), coming.worker_id in state.speculation.contexts
        held[tenant] = held.get(tenant, 0) + (0 if opened else len(coming.context_gpus))
    for tenant, gpus in held.items():
        assert held_by(state, tenant, now_s) == gpus, "a tenant's contexts are miscounted"
    assert state.speculation.totals.contexts_wasted <= state.speculation.totals.contexts


def check_table(state: State) -> None:
    """What no event may break: one owner per GPU, one valid lease per execution, newest epochs, nobody lost."""
    valid: set[str] = set()
    taken: set[tuple[str, int]] = set()
    for entry in state.leases:
        for index in entry.lease.gpu_indices:
            assert (entry.lease.host_id, index) not in taken, "a GPU is leased twice"
            taken.add((entry.lease.host_id, index))
        if entry.valid:
            assert entry.lease.execution_id not in valid, "two valid leases for one execution"
            valid.add(entry.lease.execution_id)
            assert entry.lease.epoch >= state.sessions.epoch(entry.lease.session_id), "a valid lease is fenced"
        host = state.hosts.get(entry.lease.host_id)
        assert host is not None
        assert host.alive, "a dead host has leases"
    for record in state.journal.live():
        if record.state is not ExecutionState.PENDING:
            assert record.lease is not None
            assert state.leases.get(record.lease.lease_id) is not None, "an execution is out without a lease"
    for run in state.queue:
        assert run.execution_id in state.runs
    assert {record.execution_id for record in state.journal.live() if record.state is ExecutionState.PENDING} >= {
        run.execution_id for run in state.queue}
