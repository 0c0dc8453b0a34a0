"""Leases: who may use which GPU, fenced by epochs, kept alive by heartbeats.

A lease occupies its GPUs from reservation to its end, whatever its status; so no GPU is ever in two leases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace
from enum import Enum

from looseleaf.ids import ExecutionId, HostId, LeaseId, SessionId, WorkerId
from looseleaf.services.scheduler.core.facts import ExecutionState, Lease, StartPath


class LeaseStatus(Enum):
    """Where a lease stands."""

    # Reserved; the room is being made.
    EVICTING = "evicting"
    # The daemon was told and has not answered.
    GRANTING = "granting"
    # Valid.
    HELD = "held"
    # From the journal of an earlier life, not confirmed by its daemon yet.
    RESTORED = "restored"
    # Being taken back: never renewed, never handed out.
    REVOKING = "revoking"
    # Its cell may still run, but a newer epoch or a newer lease stands over it: never renewed, never handed out.
    FENCED = "fenced"


# Asked for several times an event: members of an enum are slow to look up.
_VALID = (LeaseStatus.HELD, LeaseStatus.EVICTING, LeaseStatus.GRANTING, LeaseStatus.RESTORED)


@dataclass(slots=True)
class LeaseEntry:
    """A lease and what is known about it. Times are the scheduler's."""

    lease: Lease
    status: LeaseStatus
    granted_at_s: float
    renewed_at_s: float
    # Granted before this process started, or taken over from a heartbeat: `granted_at_s` is too late.
    adopted: bool = False
    # Callers have it; from here the cell may start.
    delivered: bool = False
    delivered_at_s: float = 0.0
    # The requests that it was handed to and whose callers have not gone away since.
    recipients: set[str] = field(default_factory=set)
    missing: int = 0
    # The daemon has not answered GrantLease: a revocation waits for that answer.
    grant_open: bool = False
    revoke_sent_at_s: float | None = None
    evictions: set[WorkerId] = field(default_factory=set)
    # How the execution ends once the lease is known to be unused.
    end_state: ExecutionState | None = None
    end_reason: str = ""

    @property
    def valid(self) -> bool:
        """True if the execution may (still) happen under it."""
        return self.status in _VALID


class LeaseTable:
    """Every lease that occupies a GPU. `changed` gets the hosts whose leases changed."""

    def __init__(self, changed: set[HostId]) -> None:
        self._changed = changed
        self._entries: dict[LeaseId, LeaseEntry] = {}
        self._gpus = 0
        self._taken: dict[HostId, set[int]] = {}
        self._left: dict[HostId, set[int]] = {}
        self._workers: dict[HostId, Counter[WorkerId]] = {}
        self._by_host: dict[HostId, dict[LeaseId, LeaseEntry]] = {}
        self._by_session: dict[SessionId, dict[LeaseId, LeaseEntry]] = {}

    def __iter__(self) -> Iterator[LeaseEntry]:
        """Entries in the order in which they were made."""
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, lease_id: LeaseId) -> LeaseEntry | None:
        """The entry, or None if no such lease occupies anything."""
        return self._entries.get(lease_id)

    def add(self, entry: LeaseEntry) -> None:
        """Occupies the lease's GPUs. A GPU that is taken already is a fault of ours: AssertionError."""
        lease = entry.lease
        if lease.lease_id in self._entries:
            raise AssertionError(f"lease {lease.lease_id} exists")
        for index in lease.gpu_indices:
            if self.occupied(lease.host_id, index):
                raise AssertionError(f"GPU {index} of {lease.host_id} is leased already")
        if len(set(lease.gpu_indices)) != len(lease.gpu_indices):
            raise AssertionError(f"lease {lease.lease_id} names a GPU twice")
        self._entries[lease.lease_id] = entry
        self._gpus += len(lease.gpu_indices)
        self._changed.add(lease.host_id)
        self._taken.setdefault(lease.host_id, set()).update(lease.gpu_indices)
        if lease.host_id not in self._workers:
            self._workers[lease.host_id] = Counter()
        self._workers[lease.host_id][lease.worker_id] += 1
        self._by_host.setdefault(lease.host_id, {})[lease.lease_id] = entry
        self._by_session.setdefault(lease.session_id, {})[lease.lease_id] = entry

    def remove(self, lease_id: LeaseId) -> LeaseEntry:
        """Frees the lease's GPUs."""
        entry = self._entries.pop(lease_id)
        self._changed.add(entry.lease.host_id)
        self._taken[entry.lease.host_id].difference_update(entry.lease.gpu_indices)
        self._left.setdefault(entry.lease.host_id, set()).update(entry.lease.gpu_indices)
        self._name_no_more(entry.lease)
        self._gpus -= len(entry.lease.gpu_indices)
        del self._by_host[entry.lease.host_id][lease_id]
        if not self._by_host[entry.lease.host_id]:
            del self._by_host[entry.lease.host_id], self._taken[entry.lease.host_id]
            del self._workers[entry.lease.host_id]
        del self._by_session[entry.lease.session_id][lease_id]
        if not self._by_session[entry.lease.session_id]:
            del self._by_session[entry.lease.session_id]
        return entry

    def take_left(self, host_id: HostId) -> set[int]:
        """GPUs of a host on which one ended since this was asked last."""
        return self._left.pop(host_id, set())

    def use_new_worker(self, entry: LeaseEntry) -> None:
        """The worker that the lease named is gone: its daemon forks another one."""
        self._name_no_more(entry.lease)
        entry.lease = replace(entry.lease, worker_id=WorkerId(""), path=StartPath.COLD)
        self._workers[entry.lease.host_id][entry.lease.worker_id] += 1
        self._changed.add(entry.lease.host_id)

    def _name_no_more(self, lease: Lease) -> None:
        workers = self._workers[lease.host_id]
        workers[lease.worker_id] -= 1
        if not workers[lease.worker_id]:
            del workers[lease.worker_id]

    def occupied(self, host_id: HostId, index: int) -> bool:
        """True if a lease holds this GPU."""
        return index in self._taken.get(host_id, ())

    def any_occupied(self, lease: Lease) -> bool:
        """True if one of the lease's GPUs is held by some lease."""
        return any(self.occupied(lease.host_id, index) for index in lease.gpu_indices)

    def on_host(self, host_id: HostId) -> list[LeaseEntry]:
        """Leases on one host."""
        return list(self._by_host.get(host_id, {}).values())

    def of_session(self, session_id: SessionId) -> list[LeaseEntry]:
        """Leases of one session, fenced ones included."""
        return list(self._by_session.get(session_id, {}).values())

    @property
    def gpus(self) -> int:
        """GPUs that leases occupy."""
        return self._gpus

    def gpus_on(self, host_id: HostId) -> int:
        """GPUs of one host that leases occupy."""
        return len(self._taken.get(host_id, ()))

    def taken(self, host_id: HostId) -> set[int] | frozenset[int]:
        """The GPUs of one host that leases occupy; as it stands, so not to be kept."""
        return self._taken.get(host_id, frozenset())

    def sessions(self) -> Set[SessionId]:
        """Sessions with a lease."""
        return self._by_session.keys()

    def of_execution(self, session_id: SessionId, execution_id: ExecutionId) -> LeaseEntry | None:
        """The valid lease of one execution of a session; there is at most one."""
        for entry in self.of_session(session_id):
            if entry.lease.execution_id == execution_id and entry.valid:
                return entry
        return None

    def session_runs(self, session_id: SessionId) -> bool:
        """True if a valid lease of the session exists: its next GPU cell waits."""
        return any(entry.valid for entry in self._by_session.get(session_id, {}).values())

    def workers_in_use(self, host_id: HostId) -> Set[WorkerId]:
        """Workers of a host that some lease names; as it stands, so not to be kept. Empty ids are none."""
        workers = self._workers.get(host_id)
        return workers.keys() if workers is not None else frozenset()


def renew(entry: LeaseEntry, now_s: float) -> bool:
    """A heartbeat listed the lease: True if it lives on for another term, False if it is being taken back or fenced."""
    entry.missing = 0
    if not entry.valid:
        return False
    if entry.status is LeaseStatus.RESTORED:
        entry.status = LeaseStatus.HELD
    entry.renewed_at_s = now_s
    return True
