"""Every known host, and on which of them a session has workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from functools import partial

from looseleaf.ids import HostId, SessionId, WorkerId
from looseleaf.services.scheduler.core.facts import HostRecord
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.shapes import HostShape


class HostTable:
    """Every known host, dead ones included until they are forgotten.

    Who changes a worker or what a host offers calls `touch`: indexes are brought up to date from `changed`.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._hosts: dict[HostId, Host] = {}
        self._ordered: list[Host] | None = None
        self._gpus: int | None = None
        self._shape_of: dict[HostId, HostShape] = {}
        self._shapes: Counter[HostShape] = Counter()
        # Hosts whose room must be looked at again.
        self.changed: set[HostId] = set()
        # Hosts of which only workers without GPUs, or prepares, changed: their room is as it was, not how many more
        # workers may be prepared there.
        self.crowd_changed: set[HostId] = set()
        # Those of which any worker may have changed.
        self._unfiled: set[HostId] = set()
        # Those that provisioning wants to go, and those among them that no later run takes back.
        self.retiring: set[HostId] = set()
        self.yielding: set[HostId] = set()
        self._hosts_of: dict[SessionId, set[HostId]] = {}

    def __iter__(self) -> Iterator[Host]:
        """Hosts ordered by id."""
        if self._ordered is None:
            self._ordered = sorted(self._hosts.values(), key=lambda host: host.host_id)
        return iter(self._ordered)

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def gpus(self) -> int:
        """GPUs of all hosts."""
        if self._gpus is None:
            self._gpus = sum(host.gpu_count for host in self._hosts.values())
        return self._gpus

    @property
    def shapes(self) -> Collection[HostShape]:
        """Kinds of all hosts with GPUs, whatever their liveness."""
        return self._shapes.keys()

    def get(self, host_id: HostId) -> Host | None:
        """The host, or None if it is not known."""
        return self._hosts.get(host_id)

    def add(self, host: Host) -> None:
        """Makes a host known; its id must be new."""
        if host.host_id in self._hosts:
            raise AssertionError(f"{host.host_id} is known already")
        self._hosts[host.host_id] = host
        host.workers.follow(partial(self._session_moved, host.host_id))
        self._ordered = None
        self.touch(host.host_id)

    def forget(self, host_id: HostId) -> None:
        """Drops a host and its workers."""
        self._hosts.pop(host_id).workers.clear()
        self.retiring.discard(host_id)
        self.yielding.discard(host_id)
        self._ordered = None
        self.touch(host_id)

    def retire(self, host: Host, retiring: bool) -> None:
        """The host is to go, or stays after all."""
        host.retiring, host.clean_heartbeats = retiring, 0
        (self.retiring.add if retiring else self.retiring.discard)(host.host_id)
        if not retiring:
            self.yielding.discard(host.host_id)
        self.touch(host.host_id)

    def touch(self, host_id: HostId, worker: Worker | None = None) -> None:
        """What the host offers, or this worker on it, changed; None: any of its workers may have, which costs more."""
        host = self._hosts.get(host_id)
        if worker is None:
            self.changed.add(host_id)
            self._unfiled.add(host_id)
            self._gpus = None
            self._count_shape(host_id, host)
        else:
            bound_or_freed = host is not None and host.workers.refile(worker)
            (self.changed if worker.gpu_indices or bound_or_freed else self.crowd_changed).add(host_id)

    def _count_shape(self, host_id: HostId, host: Host | None) -> None:
        before = self._shape_of.pop(host_id, None)
        if before is not None:
            self._shapes[before] -= 1
            if not self._shapes[before]:
                del self._shapes[before]
        if host is not None and host.gpu_count:
            shape = self._shape_of[host_id] = host.shape
            self._shapes[shape] += 1

    def file(self) -> None:
        """Brings the lists of hosts' workers up to date."""
        if not self._unfiled:
            return
        for host_id in self._unfiled:
            host = self._hosts.get(host_id)
            if host is not None:
                for worker in host.workers.values():
                    host.workers.refile(worker)
        self._unfiled.clear()

    def restore(self, record: HostRecord, now_s: float) -> None:
        """Makes a journaled host known; it counts as last seen now and gets no work before it reports."""
        alive = record.alive
        self.add(Host(record.host_id, record.address, record.incarnation, now_s, alive=alive, awaited=alive))

    def awaited(self) -> bool:
        """True while a host that the journal knew alive has not reported."""
        return any(host.awaited for host in self._hosts.values())

    def with_gpus(self) -> Iterator[Host]:
        """Every known host with GPUs, whatever its liveness, ordered by id."""
        return (host for host in self if host.gpu_count > 0)

    def open_for_work(self, now_s: float) -> list[Host]:
        """Hosts with GPUs that may get new work, ordered by id."""
        return [host for host in self.with_gpus() if host.takes_work(now_s, self._limits)]

    def worker(self, host_id: HostId, worker_id: WorkerId) -> Worker | None:
        """The worker, or None if it is not known."""
        host = self._hosts.get(host_id)
        return host.workers.get(worker_id) if host else None

    def hosts_of(self, session_id: SessionId) -> set[HostId]:
        """Hosts with workers of a session."""
        self.file()
        return set(self._hosts_of.get(session_id, ()))

    def workers_of(self, session_id: SessionId) -> list[tuple[Host, Worker]]:
        """Every worker of a session with its host, ordered by host id."""
        self.file()
        host_ids = self._hosts_of.get(session_id)
        if host_ids is None:
            return []
        hosts = [self._hosts[host_id] for host_id in sorted(host_ids)]
        return [(host, worker) for host in hosts for worker in host.workers.of_session(session_id)]

    def _session_moved(self, host_id: HostId, session_id: SessionId, present: bool) -> None:
        hosts = self._hosts_of.get(session_id)
        if hosts is None:
            hosts = self._hosts_of[session_id] = set()
        (hosts.add if present else hosts.discard)(host_id)
        if not hosts:
            del self._hosts_of[session_id]
