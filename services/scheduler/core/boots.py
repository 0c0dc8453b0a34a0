"""Hosts that were asked for and have not come yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from looseleaf.ids import HostId
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.shapes import HostShape


@dataclass(frozen=True, slots=True)
class Boot:
    """One of them: the kind that was asked for, and until when it may come."""

    shape: HostShape
    deadline_s: float


class Boots:
    """Each has a deadline; one that passes it is given up, so that another can be asked for.

    A boot has a name from the provider's answer on; until then, and with a provider that names none, only a number.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._unnamed: list[Boot] = []
        self._named: dict[HostId, Boot] = {}
        # After a boot that failed nothing is asked for before.
        self.not_before_s = 0.0
        self.ordered = 0
        self.failed = 0

    @property
    def count(self) -> int:
        """How many are awaited."""
        return len(self._unnamed) + len(self._named)

    @property
    def gpus(self) -> int:
        """GPUs that they bring."""
        return sum(shape.gpu_count for shape in self.shapes())

    def shapes(self) -> Iterator[HostShape]:
        """The kind of each."""
        yield from (boot.shape for boot in self._unnamed)
        yield from (boot.shape for boot in self._named.values())

    def __contains__(self, host_id: HostId) -> bool:
        return host_id in self._named

    def order(self, shape: HostShape, count: int, now_s: float) -> None:
        """So many of a kind were asked for."""
        self._unnamed.extend([self._new(shape, now_s)] * count)
        self.ordered += count

    def started(self, host_id: HostId, shape: HostShape | None, now_s: float) -> None:
        """The provider says that this host, which is not there yet, is on its way; also one that nobody here awaits."""
        if host_id not in self._named:
            self._named[host_id] = self._take(shape) or self._new(shape or self._usual, now_s)

    def found(self, host_id: HostId, now_s: float) -> None:
        """The provider pays for a host that is not there, as one of the order of an earlier life of the scheduler."""
        self._named.setdefault(host_id, self._new(self._usual, now_s))

    def came(self, host_id: HostId, shape: HostShape) -> None:
        """A host that was not known has come; one without a name may be one whose name we still wait for."""
        if self._named.pop(host_id, None) is None:
            self._take(shape)

    def drop(self, living: Iterable[HostId]) -> None:
        """These are there, also if they were known before they were started."""
        for host_id in self._named.keys() & set(living):
            del self._named[host_id]

    def fail(self, shape: HostShape | None, count: int, now_s: float) -> None:
        """The provider could not start so many of a kind; it is asked again after a while."""
        for _ in range(count):
            if self._take(shape, newest=True) is not None:
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

    def expire(self, now_s: float) -> list[tuple[HostId, HostShape]]:
        """Gives up those that did not come in time; returns those that have a name, to be ended."""
        waiting = [boot for boot in self._unnamed if boot.deadline_s > now_s]
        self.failed += len(self._unnamed) - len(waiting)
        self._unnamed = waiting
        late = [(host_id, boot.shape) for host_id, boot in self._named.items() if boot.deadline_s <= now_s]
        for host_id, _shape in late:
            del self._named[host_id]
        self.failed += len(late)
        return late

    @property
    def _usual(self) -> HostShape:
        return HostShape(self._limits.gpus_per_host)

    def _new(self, shape: HostShape, now_s: float) -> Boot:
        return Boot(shape, now_s + self._limits.boot_timeout_s)

    def _take(self, shape: HostShape | None, *, newest: bool = False) -> Boot | None:
        """Takes the boot without a name that was asked for first, or last, of this kind if there is one."""
        if not self._unnamed:
            return None
        order = range(len(self._unnamed) - 1, -1, -1) if newest else range(len(self._unnamed))
        alike = next((index for index in order if self._unnamed[index].shape == shape), order[0])
        return self._unnamed.pop(alike)
