"""Heartbeats and their absence: the daemon's word about its workers and leases is the truth."""

from __future__ import annotations

from dataclasses import replace

from looseleaf.errors import CapacityExceeded, PreconditionFailed
from looseleaf.ids import HostId, LeaseId
from looseleaf.services.scheduler.core.actions import AnswerHeartbeat
from looseleaf.services.scheduler.core.endings import lose_host, lose_lease, revoke
from looseleaf.services.scheduler.core.events import HeartbeatReceived
from looseleaf.services.scheduler.core.facts import ExecutionState, HostReport, Lease, WorkerStage
from looseleaf.services.scheduler.core.fencing import see_epoch
from looseleaf.services.scheduler.core.fitting import may_end
from looseleaf.services.scheduler.core.granting import deliver
from looseleaf.services.scheduler.core.holds import drop_stale_holds, take_ended_holders
from looseleaf.services.scheduler.core.hosts import Host
from looseleaf.services.scheduler.core.leases import LeaseEntry, LeaseStatus, renew
from looseleaf.services.scheduler.core.merging import merge_report, supersede
from looseleaf.services.scheduler.core.prepared import host_lost, park
from looseleaf.services.scheduler.core.provisioning import forget_host
from looseleaf.services.scheduler.core.shapes import HostShape
from looseleaf.services.scheduler.core.state import State

_RUNNING = {WorkerStage.RUNNING: ExecutionState.STARTED, WorkerStage.SAVING: ExecutionState.FINISHED}


def heartbeat_received(state: State, event: HeartbeatReceived, now_s: float) -> None:
    """Takes the snapshot in, renews leases, ends those that the daemon does not have."""
    report = event.report
    host = _known_host(state, event, now_s)
    if host is None:
        return
    took_work, capacity = host.takes_work(now_s, state.limits), (host.gpu_count, host.gpu_memory_bytes)
    was_alive = host.alive and host.heartbeats > 0
    merge = merge_report(
        host, report, now_s, state.number, state.limits, state.released, _taken_gpus(state, host.host_id))
    take_ended_holders(state, report, now_s)
    dropped = drop_stale_holds(state, host)
    for worker in merge.gone:
        state.lose_worker(worker, now_s)
    for worker in merge.parked:
        park(state, host, worker, now_s)
    for worker in merge.opened:
        if worker.worker_id not in state.leases.workers_in_use(host.host_id):
            # A heartbeat is no keystroke.
            state.speculation.open_context(
                worker, host.host_id, state.sessions.tenant(worker.session_id), now_s, worker.prepared_at_s)
    for worker in merge.completed:
        state.greedy.touch(worker, state.sessions.touch(worker.session_id).frequency)
    if merge.touched:
        state.hosts.touch(host.host_id)
    if merge.changed or dropped or took_work != host.takes_work(now_s, state.limits):
        state.hosts.touch(host.host_id)
        state.dirty = True
    if not was_alive:
        state.write_host(host)
    renewed, unknown = _settle_leases(state, host, report, now_s)
    _believe_workers(state, report)
    retry_at = state.retry_at.get(host.host_id)
    if retry_at is not None:
        state.dirty = True
        # Workers that refused to go may be asked again.
        state.hosts.touch(host.host_id)
        if host.heartbeats >= retry_at:
            del state.retry_at[host.host_id]
    if capacity != (host.gpu_count, host.gpu_memory_bytes):
        state.capacity_changed = state.dirty = True
        if may_end(state, host):
            state.shapes.learn(host.shape)
        state.hosts.touch(host.host_id)
    state.act(AnswerHeartbeat(event.request_id, tuple(renewed), tuple(unknown), host.retiring))


def _taken_gpus(state: State, host_id: HostId) -> set[int]:
    """GPUs of a host that a lease holds, or on which a preparation is to lie or to open a context.

    Also those where that ended since the last heartbeat: no list of workers need ever have told of it.
    """
    left = state.leases.take_left(host_id) | state.preparations.take_left(host_id)
    return left | state.leases.taken(host_id) | {
        index for prepare in state.preparations.on_host(host_id)
        for index in (*prepare.gpu_indices, *prepare.context_gpus)}


def _known_host(state: State, event: HeartbeatReceived, now_s: float) -> Host | None:
    report = event.report
    host = state.hosts.get(report.host_id)
    if host is None:
        if report.host_id in state.host_ends or state.stopped_hosts.get(report.host_id) == report.incarnation:
            state.refuse(event.request_id, PreconditionFailed(
                "HOST_STOPPED", f"Host {report.host_id} was ended because it was not needed: this daemon is out.",
            ))
            return None
        if len(state.hosts) >= state.limits.hosts_known_max:
            state.refuse(event.request_id, CapacityExceeded(
                "HOSTS_FULL",
                f"The scheduler knows {state.limits.hosts_known_max} hosts, its limit: this one is left out.",
            ))
            return None
        host = Host(report.host_id, report.address, report.incarnation, now_s)
        state.hosts.add(host)
        if report.gpu_count:
            state.boots.came(report.host_id, HostShape(report.gpu_count, report.gpu_memory_bytes))
    elif report.incarnation in host.past_incarnations:
        state.refuse(event.request_id, PreconditionFailed(
            "STALE_INCARNATION", f"Host {report.host_id} has been started anew since: this daemon is out, or two"
            " daemons share one host id. Give each daemon its own --host-id.", incarnation=report.incarnation,
        ))
        return None
    elif report.incarnation != host.incarnation:
        host_lost(state, host, now_s)
        lose_host(state, host, now_s, "DAEMON_RESTARTED", but=_adopted(report))
        supersede(host, report, state.limits)
    return host


def _adopted(report: HostReport) -> frozenset[LeaseId]:
    """Leases of cells that run on under a daemon that was started anew: it has adopted their workers."""
    running = {worker.execution_id for worker in report.workers if worker.stage in _RUNNING}
    return frozenset(lease.lease_id for lease in report.leases if lease.execution_id in running)


def _settle_leases(state: State, host: Host, report: HostReport, now_s: float) -> tuple[list[LeaseId], list[LeaseId]]:
    """Ids of renewed and of unknown leases; leases that the daemon no longer has come to their end."""
    renewed, unknown = [], []
    listed = set()
    for told in report.leases:
        listed.add(told.lease_id)
        entry = state.leases.get(told.lease_id)
        if entry is None:
            lease = replace(told, host_id=host.host_id, address=host.address)
            entry = _adopt(state, host, lease, report, now_s)
        if entry is None or entry.lease.host_id != host.host_id:
            unknown.append(told.lease_id)
            continue
        was_restored = entry.status is LeaseStatus.RESTORED
        if renew(entry, now_s):
            renewed.append(told.lease_id)
            if was_restored:
                deliver(state, entry, now_s)
        else:
            unknown.append(told.lease_id)
    for entry in state.leases.on_host(host.host_id):
        awaited = entry.status is LeaseStatus.EVICTING or entry.grant_open
        if entry.lease.lease_id in listed or awaited:
            continue
        entry.missing += 1
        old = now_s - entry.renewed_at_s >= state.limits.missed_after_s
        if entry.missing >= state.limits.missed_heartbeats_max and old:
            lose_lease(state, entry, now_s, "LEASE_VANISHED", daemon_gone=False)
    return renewed, unknown


def _adopt(state: State, host: Host, lease: Lease, report: HostReport, now_s: float) -> LeaseEntry | None:
    """A lease that the table lacks but the daemon has: it occupies its GPUs; None if it does not matter any more.

    It is valid only if its execution still stands under it; otherwise its cell may end, and nothing starts under it.
    """
    record = state.journal.get(lease.execution_id)
    own = record is not None and record.lease is not None and record.lease.lease_id == lease.lease_id
    if (own and state.released(lease.execution_id)) or state.leases.any_occupied(lease):
        return None
    see_epoch(state, lease.session_id, lease.epoch, now_s)
    entry = LeaseEntry(lease, LeaseStatus.FENCED, now_s, now_s, adopted=True)
    state.occupy(entry)
    running = next((w for w in report.workers if w.execution_id == lease.execution_id and w.stage in _RUNNING), None)
    current = lease.epoch >= state.sessions.epoch(lease.session_id)
    if own and record is not None and running is not None:
        state.write(state.journal.advance(lease.execution_id, _RUNNING[running.stage]))
        if current:
            entry.status, entry.delivered, entry.delivered_at_s = LeaseStatus.HELD, True, now_s
    elif running is None:
        revoke(state, entry, now_s)
    return entry


def _believe_workers(state: State, report: HostReport) -> None:
    """A report of the start may be lost or late; a worker that runs has started."""
    for told in report.workers:
        if not told.stage.busy:
            continue
        reached = _RUNNING.get(told.stage)
        record = state.journal.get(told.execution_id) if reached is not None and told.execution_id else None
        if record is None or reached is None or record.state.ended or record.lease is None:
            continue
        if record.lease.host_id == report.host_id and state.leases.get(record.lease.lease_id) is not None:
            state.write(state.journal.advance(told.execution_id, reached))


def forgive_silence(state: State, overslept_s: float, now_s: float) -> None:
    """Time in which the scheduler could hear nobody is held against nobody: not a host, not a caller with a lease."""
    for host in state.hosts:
        host.last_seen_s = min(now_s, host.last_seen_s + overslept_s)
    for entry in state.leases:
        entry.delivered_at_s = min(now_s, entry.delivered_at_s + overslept_s)
    if state.restored_at_s is not None:
        state.restored_at_s = min(now_s, state.restored_at_s + overslept_s)
    state.dirty = True


def check_hosts(state: State, now_s: float) -> None:
    """Ends the leases of hosts that fell silent, forgets those that are long dead."""
    for host in state.hosts:
        if host.alive and host.dead(now_s, state.limits):
            host.alive = host.awaited = False
            host_lost(state, host, now_s)
            lose_host(state, host, now_s, "HOST_LOST")
            state.write_host(host)
        elif host.alive and now_s - host.last_seen_s >= state.limits.heartbeat_suspect_s:
            # Nothing is placed there any more, and the people who wait are told why.
            state.dirty = state.dirty or len(state.queue) > 0
        elif not host.alive and now_s - host.last_seen_s >= state.limits.host_forget_s:
            forget_host(state, host, now_s)
