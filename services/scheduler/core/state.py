"""Everything that the policy knows, and the list of what it wants done.

The modules that carry out one kind of event each take this state; none of them keeps anything of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from looseleaf.errors import LooseLeafError
from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, WorkerId
from looseleaf.services.scheduler.core.accounting import Accounts
from looseleaf.services.scheduler.core.actions import (
    Action,
    EvictWorker,
    ForgetExecution,
    ForgetHost,
    ForgetSession,
    Journal,
    JournalHost,
    JournalSession,
    JournalTotals,
    Refuse,
)
from looseleaf.services.scheduler.core.boots import Boots
from looseleaf.services.scheduler.core.eviction import GreedyDual
from looseleaf.services.scheduler.core.facts import ExecutionRecord, SessionRecord, Totals
from looseleaf.services.scheduler.core.fairness import TenantShares
from looseleaf.services.scheduler.core.host_ends import HostEnds
from looseleaf.services.scheduler.core.host_table import HostTable
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.journal import ExecutionJournal
from looseleaf.services.scheduler.core.leases import LeaseEntry, LeaseTable
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.meters import Peak, ProvisionedTime
from looseleaf.services.scheduler.core.preparations import PreparationTable
from looseleaf.services.scheduler.core.queue import RunQueue, RunTable
from looseleaf.services.scheduler.core.room_index import RoomIndex
from looseleaf.services.scheduler.core.sessions import SessionTable
from looseleaf.services.scheduler.core.shapes import ShapeTable
from looseleaf.services.scheduler.core.speculation import Speculation


class State:
    """The scheduler's memory. `number` counts events: it orders what became known within one instant."""

    def __init__(self, limits: Limits, new_lease_id: Callable[[], LeaseId]) -> None:
        self.limits = limits
        self.new_lease_id = new_lease_id
        self.journal = ExecutionJournal(limits.journal_records_max)
        self.hosts = HostTable(limits)
        self.leases = LeaseTable(self.hosts.changed)
        self.queue = RunQueue()
        # Queued, being granted, or waiting for a restored lease.
        self.runs = RunTable()
        self.sessions = SessionTable(limits.sessions_max, limits.waste_burst_gpu_s)
        self.preparations = PreparationTable(self.hosts.crowd_changed)
        self.rooms = RoomIndex(self.hosts, self.leases, self.preparations, limits)
        self.accounts = Accounts(Totals())
        self.greedy = GreedyDual()
        self.shares = TenantShares(limits)
        self.speculation = Speculation(limits.speculative_expiry_s)
        self.boots = Boots(limits)
        self.host_ends = HostEnds()
        self.demand = Peak(limits.demand_peak_s)
        self.provisioned = ProvisionedTime()
        self.surplus_since_s: float | None = None
        # Hosts that may be ended; None: all.
        self.provided_hosts: frozenset[HostId] | None = None
        # The provider has told which of its hosts run.
        self.provider_listed = False
        self.shapes = ShapeTable(limits)
        # Hosts that were ended, and the incarnation whose late heartbeats count for nothing.
        self.stopped_hosts: OrderedDict[HostId, str] = OrderedDict()
        self.number = 0
        self.restored_at_s: float | None = None
        self.ready = False
        # The queue must be looked at again.
        self.dirty = False
        # The hosts can hold more or less than when the runs that wait were admitted.
        self.capacity_changed = False
        self.looked_at_s = 0.0
        # People who wait must be told of their places.
        self.news_due = False
        # Host -> the heartbeat up to which each may be the one from which something there may be tried again.
        self.retry_at: dict[HostId, int] = {}
        # Workers that ended with variables that no version has: why and when.
        self.ended_holders: OrderedDict[WorkerId, tuple[str, float]] = OrderedDict()
        self._writes: dict[tuple[str, str], Action] = {}
        self._actions: list[Action] = []

    def act(self, action: Action) -> None:
        """Wants `action` done, after all records of this event are durable."""
        self._actions.append(action)

    def refuse(self, request_id: str, error: LooseLeafError) -> None:
        """Answers a request with an error."""
        fields = tuple(sorted(error.fields.items()))
        self.act(Refuse(request_id, error.code, error.reason, error.message, fields))

    def write(self, record: ExecutionRecord | None) -> None:
        """Wants a record journaled; None: nothing changed."""
        if record is None:
            return
        self._writes["execution", record.execution_id] = Journal(record)
        for execution_id in self.journal.prune():
            self._writes["execution", execution_id] = ForgetExecution(execution_id)

    def write_host(self, host: Host) -> None:
        """Wants a host's record journaled."""
        self._writes["host", host.host_id] = JournalHost(host.record())

    def drop_host(self, host_id: HostId) -> None:
        """Forgets a host on which nothing is leased, and wants its record dropped."""
        self.hosts.forget(host_id)
        self.retry_at.pop(host_id, None)
        self.leases.take_left(host_id)
        self.preparations.take_left(host_id)
        for run in self.runs:
            run.avoided.pop(host_id, None)
        self._writes["host", host_id] = ForgetHost(host_id)
        self.capacity_changed = self.dirty = True

    def write_session(self, session_id: SessionId, epoch: Epoch) -> None:
        """Wants a session's newest epoch, and whose it is, journaled."""
        record = SessionRecord(session_id, epoch, self.sessions.tenant(session_id))
        self._writes["session", session_id] = JournalSession(record)

    def see_tenant(self, session_id: SessionId, tenant: str) -> None:
        """A request of the session says whose it is."""
        session = self.sessions.touch(session_id)
        if session.tenant != tenant:
            session.tenant = tenant
            for _host, worker in self.hosts.workers_of(session_id):
                self.speculation.contexts.give(worker.worker_id, tenant)
            self.write_session(session_id, session.epoch)

    def forget_session(self, session_id: SessionId) -> None:
        """Wants a session's record dropped."""
        self._writes["session", session_id] = ForgetSession(session_id)

    def write_totals(self) -> None:
        """Wants the sums journaled."""
        self._writes["totals", ""] = JournalTotals(self.accounts.totals)

    def retry(self, host: Host) -> int:
        """Looks at the queue again with this host's second next heartbeat: the next may have been under way.

        What was to be tried sooner is not forgotten: each heartbeat until then is a reason to look.
        """
        until = host.heartbeats + self.limits.missed_heartbeats_max
        self.retry_at[host.host_id] = until
        return until

    def take_actions(self) -> list[Action]:
        """What has piled up, records first; empties the list."""
        actions = self._actions
        if self._writes:
            actions = [*self._writes.values(), *actions]
            self._writes = {}
        self._actions = []
        return actions

    def evict(self, host: Host, worker: Worker, lease_id: LeaseId) -> None:
        """Orders the end of a worker for `lease_id`, or for a preparation if it is empty."""
        worker.evicting = True
        self.hosts.touch(host.host_id, worker)
        epoch = self.sessions.epoch(worker.session_id)
        self.act(EvictWorker(host.host_id, host.address, worker.worker_id, lease_id, epoch))

    def lose_worker(self, worker: Worker, now_s: float) -> None:
        """A worker is gone: what was prepared on it came to nothing."""
        self.speculation.drop(worker)
        self.speculation.close_context(worker.worker_id, now_s, used=False)
        self.speculation.unpark(worker, self.sessions.touch(worker.session_id), now_s, used=False)

    def remember_end(self, worker_id: WorkerId, why: str, ended_at_s: float) -> None:
        """A worker ended with variables that no version has; what was known of its end stands."""
        self.ended_holders.setdefault(worker_id, (why, ended_at_s))
        while len(self.ended_holders) > self.limits.ended_holders_max:
            self.ended_holders.popitem(last=False)

    def speculative_gpus_max(self, tenant: str) -> int:
        """GPUs on which speculative workers of the tenant may lie: a part of the pool by its weight, at least one."""
        part = self.shares.weight(tenant) / self.shares.weights_of_active(tenant)
        return max(1, int(self.limits.tenant_speculation_share * self.hosts.gpus * part))

    def occupy(self, entry: LeaseEntry, tenant: str | None = None) -> None:
        """A lease takes its GPUs from now on, and counts as the tenant's use; None: its session's."""
        self.leases.add(entry)
        lease = entry.lease
        if tenant is None:
            tenant = self.sessions.tenant(lease.session_id)
        self.shares.begin(lease.lease_id, tenant, len(lease.gpu_indices), entry.granted_at_s)

    def released(self, execution_id: ExecutionId) -> bool:
        """True if the execution ended and its lease is gone."""
        record = self.journal.get(execution_id)
        if record is None or not record.state.ended or record.inferred:
            return False
        return record.lease is None or self.leases.get(record.lease.lease_id) is None
