"""What must hold of the policy's state, found by looking at all of it."""

from __future__ import annotations

from looseleaf.ids import HostId
from looseleaf.services.scheduler.core import placement
from looseleaf.services.scheduler.core.facts import ExecutionState
from looseleaf.services.scheduler.core.granting import waiting_runs
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
        workers = host.workers.values()
        assert {w.worker_id for w in host.workers.bound()} == {w.worker_id for w in workers if w.gpu_indices}
        assert host.workers.speculative == sum(1 for worker in workers if worker.speculative)
        assert state.rooms.room(host.host_id) == host_room(host, state.leases, now_s, state.limits), (
            "a change was not told of")
    assert set(state.hosts.shapes) == {host.shape for host in state.hosts.with_gpus()}
    everyone = [(host, worker) for host in state.hosts for worker in host.workers.values()]
    for session_id in {worker.session_id for _host, worker in everyone}:
        theirs = [(host, worker) for host, worker in everyone if worker.session_id == session_id]
        assert state.hosts.workers_of(session_id) == theirs
    for run in state.runs:
        preparation = state.preparations.get(run.session_id)
        preparing_on = preparation.host_id if preparation is not None else None
        expected = best_placement(state, run, preparing_on, now_s)
        assert placement.place(run, state.rooms, preparing_on, set(), now_s) == expected


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


def check_table(state: State) -> None:
    """What no event may break: one owner per GPU, one valid lease per execution, newest epochs, nobody lost."""
    valid: dict[str, int] = {}
    taken: set[tuple[str, int]] = set()
    for entry in state.leases:
        for index in entry.lease.gpu_indices:
            assert (entry.lease.host_id, index) not in taken, "a GPU is leased twice"
            taken.add((entry.lease.host_id, index))
        if entry.valid:
            valid[entry.lease.execution_id] = valid.get(entry.lease.execution_id, 0) + 1
            assert entry.lease.epoch >= state.sessions.epoch(entry.lease.session_id), "a valid lease is fenced"
        host = state.hosts.get(entry.lease.host_id)
        assert host is not None
        assert host.alive, "a dead host has leases"
    assert all(count == 1 for count in valid.values()), "two valid leases for one execution"
    for record in state.journal.live():
        if record.state is not ExecutionState.PENDING:
            assert record.lease is not None
            assert state.leases.get(record.lease.lease_id) is not None, "an execution is out without a lease"
    for run in state.queue:
        assert run.execution_id in state.runs
    assert {record.execution_id for record in state.journal.live() if record.state is ExecutionState.PENDING} >= {
        run.execution_id for run in state.queue}
