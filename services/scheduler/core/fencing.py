"""A newer epoch of a session fences its older owners: what they asked for ends, what they run is not renewed."""

from __future__ import annotations

from looseleaf.ids import Epoch, SessionId
from looseleaf.services.scheduler.core.endings import give_up, revoke
from looseleaf.services.scheduler.core.facts import ExecutionState
from looseleaf.services.scheduler.core.holds import drop_stale_holds
from looseleaf.services.scheduler.core.leases import LeaseStatus
from looseleaf.services.scheduler.core.refusals import stale_epoch
from looseleaf.services.scheduler.core.state import State


def see_epoch(state: State, session_id: SessionId, epoch: Epoch, now_s: float) -> bool:
    """False if `epoch` is older than the newest one seen. A newer one fences all that older owners asked for."""
    session = state.sessions.touch(session_id)
    if epoch < session.epoch:
        return False
    if epoch == session.epoch:
        return True
    session.epoch = epoch
    state.write_session(session_id, epoch)
    for run in [run for run in state.runs.of_session(session_id) if run.epoch < epoch]:
        entry = state.leases.of_execution(session_id, run.execution_id)
        if entry is not None and entry.status is LeaseStatus.RESTORED:
            # What became of the execution its daemon will say; these callers get no lease in any case.
            state.runs.pop(run.execution_id)
            for waiter in run.waiters:
                state.refuse(waiter, stale_epoch(run.epoch, epoch))
        else:
            give_up(state, run, entry, now_s, "STALE_EPOCH")
    for entry in state.leases.of_session(session_id):
        if entry.lease.epoch >= epoch or not entry.valid:
            continue
        record = state.journal.get(entry.lease.execution_id)
        if record is not None and record.state is ExecutionState.DISPATCHED:
            revoke(state, entry, now_s, ExecutionState.FAILED, "STALE_EPOCH")
        else:
            entry.status = LeaseStatus.FENCED
    for host, _worker in state.hosts.workers_of(session_id):
        drop_stale_holds(state, host)
    state.dirty = True
    return True
