"""The scheduler's policy: one `handle(event, now_s) -> [Action]`, no I/O, no clock, no randomness but the lease ids.

What always holds: no GPU is in two leases; an execution starts at most once; an older epoch never gets a lease; every
record is written before any action that rests on it. Reading order: `facts`, `events`, `actions`, `state`, then
`admission` (who may ask), `granting` (queue to lease), `reports`, `heartbeats`, `endings` (how leases end),
`preparing` and `prepared`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from looseleaf.ids import ExecutionId, LeaseId, SessionId
from looseleaf.services.scheduler.core import (
    admission,
    demoting,
    endings,
    granting,
    heartbeats,
    prepared,
    preparing,
    reports,
)
from looseleaf.services.scheduler.core.accounting import Accounts
from looseleaf.services.scheduler.core.actions import Action, MarkReady
from looseleaf.services.scheduler.core.events import (
    Event,
    EvictionEnded,
    ExecutionReported,
    GrantFailed,
    HeartbeatReceived,
    HostEnded,
    HostsProvided,
    HostsStarting,
    JournalRestored,
    LeaseGranted,
    LeaseRevoked,
    PowerOnFailed,
    PreparationFailed,
    PreparationRequested,
    RevokeUnanswered,
    RunCancelled,
    RunRequested,
    StopHostFailed,
    Tick,
    WorkerPrepared,
)
from looseleaf.services.scheduler.core.facts import ExecutionRecord, ExecutionState, Lease
from looseleaf.services.scheduler.core.fairness import turns_matter
from looseleaf.services.scheduler.core.fitting import memory_patience_ended_since
from looseleaf.services.scheduler.core.holds import hold_ended_since
from looseleaf.services.scheduler.core.leases import LeaseEntry, LeaseStatus
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.news import tell_positions
from looseleaf.services.scheduler.core.provisioned import gpus_by_state
from looseleaf.services.scheduler.core.provisioning import hosts_provided, hosts_starting, provision
from looseleaf.services.scheduler.core.state import State
from looseleaf.services.scheduler.core.views import PoolView, pool_view


class Scheduler:
    """Drives the state by events. Its first event is JournalRestored; `now_s` never goes back."""

    def __init__(self, limits: Limits, new_lease_id: Callable[[], LeaseId]) -> None:
        self.state = State(limits, new_lease_id)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Everything that follows from `event` at `now_s`: records to write first, then what rests on them."""
        state = self.state
        state.number += 1
        BY_EVENT[type(event)](state, event, now_s)
        if not state.ready:
            _check_ready(state, now_s)
        if state.dirty:
            state.dirty, state.looked_at_s = False, now_s
            if state.ready:
                granting.place_runs(state, now_s)
            state.news_due = True
        if state.news_due:
            waiting = len(state.queue)
            if waiting <= state.limits.news_at_once_max or isinstance(event, Tick):
                state.news_due = False
                if waiting:
                    tell_positions(state, now_s)
        return state.take_actions()

    def execution(self, execution_id: ExecutionId) -> ExecutionRecord | None:
        """What is known about one execution."""
        return self.state.journal.get(execution_id)

    def pool(self, now_s: float, queue_max: int = 0, ended_max: int = 0) -> PoolView:
        """The pool as it stands, for people; see `pool_view`."""
        return pool_view(self.state, now_s, queue_max, ended_max)


def _power_on_failed(state: State, event: PowerOnFailed, now_s: float) -> None:
    state.boots.fail(event.shape, event.count, now_s)
    # Those who wait are told of it.
    state.news_due = True


def _host_ended(state: State, event: HostEnded, _now_s: float) -> None:
    state.host_ends.ended(event.host_id)


def _stop_host_failed(state: State, event: StopHostFailed, now_s: float) -> None:
    state.host_ends.failed(event.host_id, now_s)


def _restore(state: State, event: JournalRestored, now_s: float) -> None:
    """Rebuilds what an earlier life knew: its leases occupy their GPUs until their daemons were heard."""
    state.restored_at_s = now_s
    state.accounts = Accounts(event.totals)
    state.journal.restore(event.executions)
    for known in event.hosts:
        state.hosts.restore(known, now_s)
    for owner in event.sessions:
        session = state.sessions.touch(owner.session_id)
        session.epoch, session.tenant = owner.epoch, owner.tenant
    for record in event.executions:
        if record.lease is not None and not record.state.ended:
            _restore_lease(state, record, record.lease, now_s)


def _restore_lease(state: State, record: ExecutionRecord, lease: Lease, now_s: float) -> None:
    host = state.hosts.get(lease.host_id)
    entry = LeaseEntry(lease, LeaseStatus.RESTORED, now_s, now_s, adopted=True)
    state.occupy(entry)
    if host is None or not host.alive:
        endings.lose_lease(state, entry, now_s, "HOST_LOST", daemon_gone=True)
    elif lease.epoch < state.sessions.epoch(lease.session_id):
        if record.state is ExecutionState.DISPATCHED:
            endings.revoke(state, entry, now_s, ExecutionState.FAILED, "STALE_EPOCH")
        else:
            entry.status = LeaseStatus.FENCED


def _check_ready(state: State, now_s: float) -> None:
    if state.restored_at_s is None:
        return
    if not state.hosts.awaited() or now_s - state.restored_at_s >= state.limits.ready_wait_s:
        state.ready = state.dirty = state.capacity_changed = True
        state.act(MarkReady())


def _tick(state: State, event: Tick, now_s: float) -> None:
    if event.overslept_s:
        heartbeats.forgive_silence(state, event.overslept_s, now_s)
    if len(state.queue) and now_s - state.looked_at_s >= state.limits.look_again_s:
        state.dirty = state.capacity_changed = True
    if len(state.queue) and _waiting_matters(state, state.looked_at_s, now_s):
        state.dirty = True
    heartbeats.check_hosts(state, now_s)
    endings.retry_revocations(state, now_s)
    if state.restored_at_s is not None and now_s - state.restored_at_s >= state.limits.pending_orphan_s:
        for record in state.journal.live():
            if record.state is ExecutionState.PENDING and record.execution_id not in state.runs:
                endings.finish(state, record, ExecutionState.FAILED, "SCHEDULER_RESTARTED")
    demoting.demote_expired(state, now_s)
    gpus = gpus_by_state(state, now_s)
    state.provisioned.sample(gpus, now_s)
    provision(state, gpus["speculative"], now_s)
    state.shares.forget_idle(now_s)
    for session_id in state.sessions.prune(lambda: _needed_sessions(state)):
        state.forget_session(session_id)


def _waiting_matters(state: State, since_s: float, now_s: float) -> bool:
    """True if time alone may have made room for a run that waits, or changed whose turn it is."""
    return (
        hold_ended_since(state, since_s, now_s) or memory_patience_ended_since(state, since_s, now_s)
        or turns_matter(state.queue))


def _needed_sessions(state: State) -> set[SessionId]:
    return {*state.leases.sessions(), *state.preparations.sessions(), *(run.session_id for run in state.runs)}


# Every event has its function here; a test looks for those that have none.
BY_EVENT: Final[dict[type, Callable[[State, Any, float], None]]] = {
    JournalRestored: _restore,
    HeartbeatReceived: heartbeats.heartbeat_received,
    RunRequested: admission.run_requested,
    RunCancelled: admission.run_cancelled,
    PreparationRequested: preparing.preparation_requested,
    ExecutionReported: reports.execution_reported,
    LeaseGranted: granting.lease_granted,
    GrantFailed: granting.grant_failed,
    LeaseRevoked: endings.lease_revoked,
    RevokeUnanswered: endings.revoke_unanswered,
    EvictionEnded: granting.eviction_ended,
    WorkerPrepared: prepared.worker_prepared,
    PreparationFailed: prepared.preparation_failed,
    PowerOnFailed: _power_on_failed,
    HostsStarting: hosts_starting,
    HostEnded: _host_ended,
    StopHostFailed: _stop_host_failed,
    HostsProvided: hosts_provided,
    Tick: _tick,
}
