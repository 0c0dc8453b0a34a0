"""Hosts that were asked for and have not come yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from looseleaf.ids import HostId
from looseleaf.services.scheduler.core.limits import Limits


class Boots:
    """Each has a deadline; one that passes it is given up, so that another can be asked for.

    A boot has a name from the provider's answer on; until then, and with a provider that names none, only a number.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._unnamed: deque[float] = deque()
        self._named: dict[HostId, float] = {}
        # After a boot that failed nothing is asked for before.
        self.not_before_s = 0.0
        self.ordered = 0
        self.failed = 0

    @property
    def count(self) -> int:
        """How many are awaited."""
        return len(self._unnamed) + len(self._named)

    def __contains__(self, host_id: HostId) -> bool:
        return host_id in self._named

    def order(self, count: int, now_s: float) -> None:
        """So many were asked for."""
        self._unnamed.extend([now_s + self._limits.boot_timeout_s] * count)
        self.ordered += count

    def started(self, host_id: HostId, now_s: float) -> None:
        """The provider says that this host, which is not there yet, is on its way; also one that nobody here awaits."""
        if host_id not in self._named:
            self._named[host_id] = self._unnamed.popleft() if self._unnamed else now_s + self._limits.boot_timeout_s

    def found(self, host_id: HostId, now_s: float) -> None:
        """The provider pays for a host that is not there, as one of the order of an earlier life of the scheduler."""
        self._named.setdefault(host_id, now_s + self._limits.boot_timeout_s)

    def came(self, host_id: HostId) -> None:
        """A host that was not known has come; one without a name may be one whose name we still wait for."""
        if self._named.pop(host_id, None) is None and self._unnamed:
            self._unnamed.popleft()

    def drop(self, living: Iterable[HostId]) -> None:
        """These are there, also if they were known before they were started."""
        for host_id in self._named.keys() & set(living):
            del self._named[host_id]

    def fail(self, count: int, now_s: float) -> None:
        """The provider could not start so many; it is asked again after a while."""
        for _ in range(min(count, len(self._unnamed))):
            self._unnamed.pop()
            self.failed += 1
        self.not_before_s = now_s + self._limits.boot_retry_s

    def keep(self, running: Iterable[HostId], now_s: float) -> None:
        """Gives up those that the provider does not start any more."""
        gone = self._named.keys() - set(running)
        for host_id in gone:
            del self._named[host_id]
        self.failed += len(gone)
        if gone:
            self.not_before_s = now_s + self._limits.boot_retry_s

    def expire(self, now_s: float) -> list[HostId]:
        """Gives up those that did not come in time; returns the names of those that have one, to be ended."""
        while self._unnamed and self._unnamed[0] <= now_s:
            self._unnamed.popleft()
            self.failed += 1
        late = [host_id for host_id, deadline_s in self._named.items() if deadline_s <= now_s]
        for host_id in late:
            del self._named[host_id]
        self.failed += len(late)
        return late
