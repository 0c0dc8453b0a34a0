"""Where there is room, without looking at every host: brought up to date from the hosts that changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from looseleaf.ids import HostId, SessionId
from looseleaf.services.scheduler.core.best_hosts import BestHosts
from looseleaf.services.scheduler.core.hosts import Host, HostTable
from looseleaf.services.scheduler.core.leases import LeaseTable
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.preparations import PreparationTable
from looseleaf.services.scheduler.core.rooms import HostRoom, host_room, take_gpus, victims_cost


class RoomIndex:
    """Rooms of all hosts with GPUs, whatever their liveness. After `refresh` they are as `host_room` says.

    A host whose room depends on the time (a worker that is kept, or pinned, or will expire) is looked at each time.
    """

    def __init__(
        self, hosts: HostTable, leases: LeaseTable, preparations: PreparationTable, limits: Limits,
    ) -> None:
        self.limits = limits
        self._hosts, self._leases, self._preparations = hosts, leases, preparations
        self._rooms: dict[HostId, HostRoom] = {}
        self._gpus = 0
        self._timed: set[HostId] = set()
        self._open: set[HostId] = set()
        self._by_free: dict[int, BestHosts] = {}
        # For a cell of one GPU, by the cost of those that give way.
        self.cheapest = BestHosts()
        # For a new speculative worker.
        self.for_new = BestHosts()
        # Of those full of speculative workers, by the age of the oldest that may go.
        self.oldest_speculative = BestHosts()

    def refresh(self, now_s: float) -> None:
        """Takes in what changed since the last time."""
        changed = self._hosts.changed
        changed |= self._timed
        for host_id in changed:
            host = self._hosts.get(host_id)
            if host is None or not host.gpu_count:
                self._drop(host_id)
            else:
                self._take_in(host, now_s)
        changed.clear()

    def __contains__(self, host_id: object) -> bool:
        return host_id in self._rooms

    @property
    def gpus(self) -> int:
        """GPUs of all hosts."""
        return self._gpus

    def host(self, host_id: HostId) -> Host:
        """A host that has a room."""
        return self._rooms[host_id].host

    def room(self, host_id: HostId) -> HostRoom:
        """The room of a host."""
        return self._rooms[host_id]

    def hosts_of(self, session_id: SessionId) -> set[HostId]:
        """Hosts with GPUs and workers of the session."""
        found = {host.host_id for host, _worker in self._hosts.workers_of(session_id)}
        return found & self._rooms.keys()

    def open_hosts(self) -> Iterator[HostId]:
        """Hosts where some run may fit, in no order."""
        return iter(self._open)

    def any_open(self, closed: set[HostId]) -> bool:
        """True if some run may fit on a host that is not among the closed ones."""
        return bool(self._open - closed) if closed else bool(self._open)

    def with_free(self, count: int, accept: Callable[[HostId], bool]) -> HostId | None:
        """The fullest accepted host with `count` free GPUs, ties by id."""
        for free in sorted(free for free, hosts in self._by_free.items() if free >= count and len(hosts)):
            found = self._by_free[free].first(accept)
            if found is not None:
                return found
        return None

    def _drop(self, host_id: HostId) -> None:
        room = self._rooms.pop(host_id, None)
        if room is None:
            return
        self._gpus -= room.gpus
        self._timed.discard(host_id)
        self._open.discard(host_id)
        for hosts in (self.cheapest, self.for_new, self.oldest_speculative):
            hosts.put(host_id, None)
        if room.free:
            self._by_free[len(room.free)].put(host_id, None)

    def _take_in(self, host: Host, now_s: float) -> None:
        host_id = host.host_id
        before = self._rooms.get(host_id)
        room = self._rooms[host_id] = host_room(host, self._leases, now_s)
        self._gpus += room.gpus - (before.gpus if before is not None else 0)
        old_free, free = len(before.free) if before is not None else 0, len(room.free)
        if old_free != free:
            if old_free:
                self._by_free[old_free].put(host_id, None)
            if free:
                self._by_free.setdefault(free, BestHosts()).put(host_id, ())
        if room.open:
            self._open.add(host_id)
        else:
            self._open.discard(host_id)
        (self._timed.add if room.timed else self._timed.discard)(host_id)
        self.cheapest.put(host_id, _cost_of_one(room, now_s, self.limits) if room.warm else None)
        coming = self._preparations.new_on_host(host_id)
        full = room.speculative + coming >= self.limits.prepared_max_per_host
        # Only where there is no room for one more does somebody look for the oldest.
        oldest = room.oldest_speculative(now_s) if full else None
        self.oldest_speculative.put(
            host_id, (oldest.prepared_at_s, oldest.worker_id) if oldest is not None else None)
        self.for_new.put(host_id, None if full else (-free, -len(room.warm), len(host.workers)))


def _cost_of_one(room: HostRoom, now_s: float, limits: Limits) -> tuple[int, int, float, int] | None:
    """What one GPU for a new worker costs there, in the order in which placement compares; None if it cannot be had."""
    taken = take_gpus(room, 1, (), None, now_s, limits)
    if taken is None:
        return None
    _gpus, victims = taken
    return (len(victims), *victims_cost(room, victims, now_s, limits), len(room.free))
