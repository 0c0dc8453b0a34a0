"""Hosts that were asked for and have not come yet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from looseleaf.ids import HostId
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.shapes import HostShape

# No pause is doubled more often: it must stay a number.
DOUBLINGS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Boot:
    """One of them: the kind that was asked for, and until when it may come."""

    shape: HostShape
    deadline_s: float


class Boots:
    """Each has a deadline; one that passes it is given up, so that another can be asked for.

    A kind of which one failed rests, ever longer, until one of it came: meanwhile it takes nobody's place.

    A boot has a name from the provider's answer on; until then, and with a provider that names none, only a number.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._unnamed: list[Boot] = []
        self._named: dict[HostId, Boot] = {}
        # Kind -> failures in a row, and when the last was.
        self._failures: dict[HostShape, tuple[int, float]] = {}
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
        boot = self._named.pop(host_id, None) or self._take(shape)
        if boot is not None:
            self._failures.pop(boot.shape, None)

    def drop(self, living: Iterable[HostId]) -> None:
        """These are there, also if they were known before they were started."""
        for host_id in self._named.keys() & set(living):
            self._failures.pop(self._named.pop(host_id).shape, None)

    def fail(self, shape: HostShape | None, count: int, now_s: float) -> None:
        """The provider could not start so many of a kind, None: of that which was asked for last."""
        taken = [boot for _ in range(count) if (boot := self._take(shape, newest=True)) is not None]
        self.failed += len(taken)
        self._failed({shape} if shape is not None else {boot.shape for boot in taken}, now_s)

    def keep(self, running: Iterable[HostId], now_s: float) -> None:
        """Gives up those that the provider does not start any more."""
        gone = [self._named.pop(host_id) for host_id in self._named.keys() - set(running)]
        self.failed += len(gone)
        self._failed({boot.shape for boot in gone}, now_s)

    def expire(self, now_s: float) -> list[tuple[HostId, HostShape]]:
        """Gives up those that did not come in time; returns those that have a name, to be ended."""
        lost = [boot for boot in self._unnamed if boot.deadline_s <= now_s]
        self._unnamed = [boot for boot in self._unnamed if boot.deadline_s > now_s]
        late = [(host_id, boot.shape) for host_id, boot in self._named.items() if boot.deadline_s <= now_s]
        for host_id, _shape in late:
            del self._named[host_id]
        self.failed += len(lost) + len(late)
        self._failed({boot.shape for boot in lost} | {shape for _host_id, shape in late}, now_s)
        return late

    def resting(self, now_s: float) -> frozenset[HostShape]:
        """Kinds that are not asked for now, since the last of them failed."""
        longest_s = self._limits.boot_retry_s_max
        return frozenset(shape for shape in self._failures if now_s < self._rested_s(shape, longest_s))

    def fails(self, shape: HostShape) -> bool:
        """True if the last of this kind failed: others go first."""
        return shape in self._failures

    def may_displace(self, shape: HostShape, now_s: float) -> bool:
        """True if a host of another kind may be ended for one of this kind, since it is likely to come."""
        return now_s >= self._rested_s(shape, self._limits.displace_retry_s_max)

    def _rested_s(self, shape: HostShape, longest_s: float) -> float:
        failures, failed_s = self._failures.get(shape, (0, -math.inf))
        return failed_s + min(self._limits.boot_retry_s * 2.0 ** min(failures - 1, DOUBLINGS_MAX), longest_s)

    def _failed(self, shapes: set[HostShape], now_s: float) -> None:
        """Failures of one moment count as one. Bounded by the kinds that are remembered."""
        for shape in shapes:
            failures, _failed_s = self._failures.pop(shape, (0, 0.0))
            self._failures[shape] = (failures + 1, now_s)
        while len(self._failures) > self._limits.host_shapes_max:
            del self._failures[next(iter(self._failures))]

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
