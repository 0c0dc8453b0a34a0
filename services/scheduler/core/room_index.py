"""Where there is room, without looking at every host: brought up to date from the hosts that changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from looseleaf.ids import HostId, SessionId
from looseleaf.services.scheduler.core.best_hosts import BestHosts
from looseleaf.services.scheduler.core.host_table import HostTable
from looseleaf.services.scheduler.core.hosts import Host
from looseleaf.services.scheduler.core.leases import LeaseTable
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.preparations import PreparationTable
from looseleaf.services.scheduler.core.rooms import HostRoom, host_room, loses_variables, take_gpus, victims_cost

# What is due so soon is looked at now: sums of times are not exact to the last bit.
EARLY_S: Final = 1e-6


class RoomIndex:
    """Rooms of all hosts with GPUs, whatever their liveness. After `refresh` they are as `host_room` says.

    A host whose room depends on the time (a worker that is kept, or pinned, or will expire) is looked at again then. In
    what order hosts come for a purpose is found when somebody asks, for those that changed since the last time.
    """

    def __init__(
        self, hosts: HostTable, leases: LeaseTable, preparations: PreparationTable, limits: Limits,
    ) -> None:
        self.limits = limits
        self._hosts, self._leases, self._preparations = hosts, leases, preparations
        self._now_s = 0.0
        self._rooms: dict[HostId, HostRoom] = {}
        self._open: set[HostId] = set()
        self._by_free: dict[int, BestHosts] = {}
        # Where others than our workers use memory of GPUs: what they leave on the fullest one.
        self._spare_bytes: dict[HostId, float] = {}
        # Hosts by the time at which they change by themselves.
        self._due = BestHosts()
        self._cheapest = BestHosts()
        self._for_new = BestHosts()
        self._oldest_speculative = BestHosts()
        # Hosts whose place in these is out of date.
        self._costs_changed: set[HostId] = set()
        self._new_changed: set[HostId] = set()
        self._oldest_changed: set[HostId] = set()

    def refresh(self, now_s: float) -> None:
        """Takes in what changed since the last time."""
        self._hosts.file()
        self._now_s = now_s
        changed = self._hosts.changed
        changed.update(self._due.take_up_to(now_s + EARLY_S))
        for host_id in changed:
            self._look_again(host_id)
        changed.clear()

    def look_at(self, host_id: HostId, now_s: float) -> HostRoom | None:
        """The room of one host as it is now, without taking in what changed of others; None: it has no GPUs."""
        self._hosts.file()
        self._now_s = now_s
        room = self._rooms.get(host_id)
        if host_id in self._hosts.changed or (room is not None and room.changes_at_s <= now_s + EARLY_S):
            self._hosts.changed.discard(host_id)
            self._look_again(host_id)
        return self._rooms.get(host_id)

    def _look_again(self, host_id: HostId) -> None:
        host = self._hosts.get(host_id)
        if host is None or not host.gpu_count:
            self._drop(host_id)
        else:
            self._take_in(host)

    def __contains__(self, host_id: object) -> bool:
        return host_id in self._rooms

    def host(self, host_id: HostId) -> Host:
        """A host that has a room."""
        return self._rooms[host_id].host

    def room(self, host_id: HostId) -> HostRoom:
        """The room of a host."""
        return self._rooms[host_id]

    def hosts_of(self, session_id: SessionId) -> set[HostId]:
        """Hosts with GPUs and workers of the session."""
        return self._hosts.hosts_of(session_id) & self._rooms.keys()

    def tight_hosts(self, gpu_bytes: int) -> set[HostId]:
        """Hosts where others than our workers leave less than that on some GPU."""
        return {host_id for host_id, spare_bytes in self._spare_bytes.items() if spare_bytes < gpu_bytes}

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

    @property
    def cheapest(self) -> BestHosts:
        """Hosts for a cell of one GPU, by the cost of those that give way."""
        for host_id in self._costs_changed:
            room = self._rooms.get(host_id)
            cost = _cost_of_one(room, self._now_s, self.limits) if room is not None and room.warm else None
            self._cheapest.put(host_id, cost)
        self._costs_changed.clear()
        return self._cheapest

    @property
    def for_new(self) -> BestHosts:
        """Hosts for a new speculative worker, those with most room first."""
        self._take_in_crowds()
        for host_id in self._new_changed:
            room = self._rooms.get(host_id)
            key = None
            if room is not None and not self._full(host_id, room):
                key = (-len(room.free), -len(room.warm), len(room.host.workers))
            self._for_new.put(host_id, key)
        self._new_changed.clear()
        return self._for_new

    @property
    def oldest_speculative(self) -> BestHosts:
        """Of the hosts full of speculative workers, by the age of the oldest that may go.

        Asked for only when every host is full: to find the oldest, all workers of a host are gone through.
        """
        self._take_in_crowds()
        for host_id in self._oldest_changed:
            room = self._rooms.get(host_id)
            full = room is not None and self._full(host_id, room)
            oldest = room.oldest_speculative(self._now_s) if room is not None and full else None
            self._oldest_speculative.put(
                host_id, (oldest.prepared_at_s, oldest.worker_id) if oldest is not None else None)
        self._oldest_changed.clear()
        return self._oldest_speculative

    def _take_in_crowds(self) -> None:
        crowded = self._hosts.crowd_changed & self._rooms.keys()
        self._new_changed |= crowded
        self._oldest_changed |= crowded
        self._hosts.crowd_changed.clear()

    def _full(self, host_id: HostId, room: HostRoom) -> bool:
        """Whether it has as many speculative workers as it may."""
        speculative = room.host.workers.speculative + self._preparations.new_on_host(host_id)
        return speculative >= self.limits.prepared_max_per_host

    def _drop(self, host_id: HostId) -> None:
        room = self._rooms.pop(host_id, None)
        if room is None:
            return
        self._open.discard(host_id)
        self._spare_bytes.pop(host_id, None)
        self._due.put(host_id, None)
        if room.free:
            self._by_free[len(room.free)].put(host_id, None)
        self._costs_changed.add(host_id)
        self._new_changed.add(host_id)
        # This list may not be asked for: hosts that are gone must not pile up.
        self._oldest_changed.discard(host_id)
        self._oldest_speculative.put(host_id, None)

    def _take_in(self, host: Host) -> None:
        host_id = host.host_id
        before = self._rooms.get(host_id)
        room = self._rooms[host_id] = host_room(host, self._leases, self._now_s, self.limits)
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
        if host.foreign.most_bytes and host.gpu_memory_bytes:
            self._spare_bytes[host_id] = host.least_spare_bytes
        else:
            self._spare_bytes.pop(host_id, None)
        self._due.put(host_id, room.changes_at_s if room.changes_at_s < math.inf else None)
        self._costs_changed.add(host_id)
        self._new_changed.add(host_id)
        self._oldest_changed.add(host_id)


def _cost_of_one(room: HostRoom, now_s: float, limits: Limits) -> tuple[bool, int, int, float, int] | None:
    """What one GPU for a new worker costs there, in the order in which placement compares; None if it cannot be had."""
    taken = take_gpus(room, 1, (), None, now_s, limits)
    if taken is None:
        return None
    _gpus, victims = taken
    return (loses_variables(room, victims), len(victims), *victims_cost(room, victims, now_s, limits), len(room.free))
