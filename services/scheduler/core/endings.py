"""How leases end: released, revoked, vanished, or lost with their host; and how their executions end with it."""

from __future__ import annotations

from looseleaf.errors import LooseLeafError
from looseleaf.ids import LeaseId
from looseleaf.services.scheduler.core.actions import MarkHostDead, RevokeLease
from looseleaf.services.scheduler.core.events import LeaseRevoked, RevokeUnanswered
from looseleaf.services.scheduler.core.facts import ExecutionRecord, ExecutionState
from looseleaf.services.scheduler.core.hosts import Host, Liveness
from looseleaf.services.scheduler.core.leases import LeaseEntry, LeaseStatus
from looseleaf.services.scheduler.core.queue import Run
from looseleaf.services.scheduler.core.refusals import ended_error
from looseleaf.services.scheduler.core.speculation import earn
from looseleaf.services.scheduler.core.state import State


def end_lease(state: State, entry: LeaseEntry, now_s: float) -> None:
    """Frees the lease's GPUs and accounts for the time."""
    state.leases.remove(entry.lease.lease_id)
    state.shares.end(entry.lease.lease_id, now_s)
    held_gpu_s = state.accounts.close(entry, now_s)
    if held_gpu_s:
        earn(state.sessions.touch(entry.lease.session_id), held_gpu_s, state.limits)
        state.write(state.journal.add_held(entry.lease.execution_id, held_gpu_s))
        state.write_totals()
    state.dirty = True


def revoke(state: State, entry: LeaseEntry, now_s: float, end: ExecutionState | None = None, reason: str = "") -> None:
    """Takes a lease back that nobody uses or may use.

    `end`, `reason`: how its execution ends once the daemon says that nothing runs under it. While the daemon has
    not answered the grant the order waits, since two calls may overtake each other.
    """
    entry.status = LeaseStatus.REVOKING
    # It holds the session's next cell back no more.
    state.dirty = True
    entry.end_state, entry.end_reason = end, reason
    if not entry.grant_open:
        send_revoke(state, entry, now_s)


def send_revoke(state: State, entry: LeaseEntry, now_s: float) -> None:
    """Orders the daemon to drop the lease."""
    entry.revoke_sent_at_s = now_s
    state.act(RevokeLease(entry.lease.host_id, entry.lease.address, entry.lease.lease_id))


def lease_revoked(state: State, event: LeaseRevoked, now_s: float) -> None:
    """The daemon answered: either the lease is gone, or a cell runs under it and ends with it."""
    entry = state.leases.get(event.lease_id)
    if entry is None or (not event.in_use and entry.status is not LeaseStatus.REVOKING):
        # The late answer of an order that was given twice, since a cell was seen under it: its report or the daemon's
        # heartbeats tell the end.
        return
    record = _own_record(state, entry)
    if not event.in_use:
        if entry.end_state is not None and (entry.delivered or entry.adopted) and not _heard(state, entry, now_s):
            # Perhaps a new daemon answered for one that died with the cell. Its heartbeat will tell; else we ask again.
            return
        end_lease(state, entry, now_s)
        if record is not None and entry.end_state is not None:
            # Inferred, since a report of a cell that ended under it may still be on its way.
            finish(state, record, entry.end_state, entry.end_reason, inferred=True)
        return
    current = entry.lease.epoch >= state.sessions.epoch(entry.lease.session_id)
    entry.status = LeaseStatus.HELD if current and record is not None else LeaseStatus.FENCED
    entry.end_state, entry.revoke_sent_at_s = None, None
    if record is not None:
        # Also if its host had been given up: that end was only inferred.
        state.write(state.journal.advance(record.execution_id, ExecutionState.STARTED))


def _heard(state: State, entry: LeaseEntry, now_s: float) -> bool:
    host = state.hosts.get(entry.lease.host_id)
    return host is not None and host.liveness(now_s, state.limits) in (Liveness.ALIVE, Liveness.DRAINING)


def revoke_unanswered(state: State, event: RevokeUnanswered, _now_s: float) -> None:
    """Nobody knows; the next tick asks again until the host answers or is dead."""
    entry = state.leases.get(event.lease_id)
    if entry is not None:
        entry.revoke_sent_at_s = None


def retry_revocations(state: State, now_s: float) -> None:
    """Takes back what was never used, and asks again where nobody answered."""
    for entry in state.leases:
        if entry.status is LeaseStatus.REVOKING and not entry.grant_open:
            sent = entry.revoke_sent_at_s
            if sent is None or now_s - sent >= state.limits.revoke_retry_s:
                send_revoke(state, entry, now_s)
        elif (
            entry.status is LeaseStatus.HELD and entry.delivered
            and now_s - entry.delivered_at_s >= state.limits.start_timeout_s
        ):
            record = _own_record(state, entry)
            if record is not None and record.state is ExecutionState.DISPATCHED:
                revoke(state, entry, now_s, ExecutionState.FAILED, "START_TIMEOUT")


def lose_lease(state: State, entry: LeaseEntry, now_s: float, reason: str, *, daemon_gone: bool) -> None:
    """The lease is gone without a report.

    `daemon_gone` False: the daemon lives and does not have it (it lists a lease until the report that releases it
    was answered), so nothing runs or ran unreported under it. True: nobody can tell what happened since the last
    report.
    """
    record = _own_record(state, entry)
    run = state.runs.get(entry.lease.execution_id)
    end_lease(state, entry, now_s)
    if entry.status is LeaseStatus.EVICTING:
        if run is not None:
            state.queue.put(run)
        return
    if record is None:
        return
    if record.state is ExecutionState.DISPATCHED:
        # Whether a lease of an earlier life reached its caller is not known.
        handed_out = entry.delivered or entry.adopted
        unused = not handed_out or (entry.status is LeaseStatus.RESTORED and not daemon_gone)
        if unused and entry.end_state is None:
            state.write(state.journal.withdraw(record.execution_id))
            if run is not None:
                state.queue.put(run)
        elif daemon_gone and handed_out:
            finish(state, record, ExecutionState.INDETERMINATE, reason, inferred=True)
        else:
            finish(state, record, ExecutionState.FAILED, entry.end_reason or "LEASE_EXPIRED", inferred=True)
    elif record.state is ExecutionState.STARTED:
        finish(state, record, ExecutionState.INDETERMINATE, reason, inferred=True)
    elif record.state is ExecutionState.FINISHED:
        finish(state, record, ExecutionState.FAILED, "SAVE_LOST", inferred=True)


def finish(state: State, record: ExecutionRecord, end: ExecutionState, reason: str, *, inferred: bool = False) -> None:
    """Ends an execution and tells whoever still waits for its lease."""
    state.write(state.journal.advance(record.execution_id, end, reason, inferred=inferred))
    run = state.runs.pop(record.execution_id)
    if run is None:
        return
    state.queue.remove(record.execution_id)
    state.dirty = True
    ended = state.journal.get(record.execution_id)
    if ended is not None:
        for waiter in run.waiters:
            state.refuse(waiter, ended_error(ended))


def give_up(state: State, run: Run, entry: LeaseEntry | None, now_s: float, reason: str) -> None:
    """Ends a run whose lease nobody got; what was reserved or asked for is taken back."""
    if entry is not None and entry.status is LeaseStatus.EVICTING:
        end_lease(state, entry, now_s)
    elif entry is not None and entry.status is LeaseStatus.GRANTING:
        state.journal.drop_lease(run.execution_id)
        revoke(state, entry, now_s)
    finish(state, _record_of(state, run), ExecutionState.FAILED, reason)


def refuse_run(state: State, run: Run, error: LooseLeafError) -> None:
    """Ends a run that has no lease; its callers get `error`, and the record its reason."""
    for waiter in run.waiters:
        state.refuse(waiter, error)
    run.waiters.clear()
    finish(state, _record_of(state, run), ExecutionState.FAILED, error.reason)


def lose_host(
    state: State, host: Host, now_s: float, reason: str, *, but: frozenset[LeaseId] = frozenset()
) -> None:
    """The host's daemon is gone or unheard: its leases end, its workers are not counted on any more.

    `but`: leases that its next daemon has taken over.
    """
    for entry in state.leases.on_host(host.host_id):
        if entry.lease.lease_id not in but:
            lose_lease(state, entry, now_s, reason, daemon_gone=True)
    why = "was lost with its host" if reason == "HOST_LOST" else "ended when its host's daemon was started anew"
    for worker in host.workers.values():
        state.lose_worker(worker, now_s)
        if worker.hold is not None:
            state.remember_end(worker.worker_id, why, now_s)
    host.workers.clear()
    state.hosts.touch(host.host_id)
    state.dirty = True
    state.act(MarkHostDead(host.host_id, reason))


def _own_record(state: State, entry: LeaseEntry) -> ExecutionRecord | None:
    """The execution's record if this lease is its last one, else None."""
    record = state.journal.get(entry.lease.execution_id)
    if record is None or record.lease is None or record.lease.lease_id != entry.lease.lease_id:
        return None
    return record


def _record_of(state: State, run: Run) -> ExecutionRecord:
    record = state.journal.get(run.execution_id)
    # A live record is never forgotten, and a run leaves the table when its record ends.
    assert record is not None
    return record
