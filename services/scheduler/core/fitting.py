"""What can never run anywhere: known before anybody waits for it."""

from __future__ import annotations

from functools import cached_property

from looseleaf.errors import LooseLeafError
from looseleaf.services.scheduler.core.facts import RecipeFacts
from looseleaf.services.scheduler.core.hosts import Host, Liveness
from looseleaf.services.scheduler.core.refusals import never_fits_bytes, never_fits_count
from looseleaf.services.scheduler.core.shapes import HostShape
from looseleaf.services.scheduler.core.state import State


def may_end(state: State, host: Host) -> bool:
    """True if the host is the provider's, which can end it and start one like it."""
    if state.provided_hosts is None:
        return host.gpu_count > 0
    return host.host_id in state.provided_hosts


def startable(state: State, now_s: float) -> list[HostShape]:
    """Kinds of hosts that can be started, if not now then once others have ended; none beside hosts that never do."""
    limits = state.limits
    if not limits.hosts_max:
        return []
    lasting = sum(
        1 for host in state.hosts.with_gpus()
        if not may_end(state, host) and host.liveness(now_s, limits) is not Liveness.DEAD)
    return state.shapes.startable() if lasting < limits.hosts_max else []


class Capacity:
    """What the hosts of one moment could hold.

    Knows kinds of hosts: once each host was looked at, however many runs are asked for, none is again.
    """

    def __init__(self, state: State, now_s: float) -> None:
        self._state, self._now_s = state, now_s

    @cached_property
    def _startable(self) -> list[HostShape]:
        return startable(self._state, self._now_s)

    @cached_property
    def _open(self) -> frozenset[HostShape]:
        return frozenset(host.shape for host in self._state.hosts.open_for_work(self._now_s))

    def wanted_gpu_bytes(self, recipe: RecipeFacts) -> int:
        """Memory that a run should find on each of its GPUs, see the function."""
        wanted = recipe.gpu_peak_bytes
        if wanted > recipe.gpu_bytes and not any(shape.fits(recipe.gpu_count, wanted) for shape in self._open):
            return recipe.gpu_bytes
        return wanted

    def never_fits(self, recipe: RecipeFacts) -> LooseLeafError | None:
        """Why neither a host that there is, alive or not, nor one that can be started can ever run it.

        None if one can, or while nobody knows what hosts there are.
        """
        there = self._state.hosts.shapes
        told = self._state.provided_hosts is None or self._state.provider_listed
        if not there or not told or any(shape.holds(recipe) for shape in there):
            return None
        if any(shape.holds(recipe) for shape in self._startable):
            return None
        shapes = [*there, *self._startable]
        largest = max(shape.gpu_count for shape in shapes)
        if recipe.gpu_count > largest:
            return never_fits_count(recipe.gpu_count, largest)
        able = [shape for shape in shapes if shape.gpu_count >= recipe.gpu_count]
        return never_fits_bytes(recipe.device_bytes, max(recipe.gpu_count * shape.gpu_memory_bytes for shape in able))


def wanted_gpu_bytes(state: State, recipe: RecipeFacts, now_s: float) -> int:
    """Memory that a run should find on each of its GPUs: what such a cell held, if a host that takes work has as much.

    Where none has, its variables decide: neither a host that may never come back nor one that may never start is
    waited for because of what was learned.
    """
    if recipe.peak_bytes <= recipe.device_bytes:
        return recipe.gpu_bytes
    wanted = recipe.gpu_peak_bytes
    if wanted > recipe.gpu_bytes and not any(
            host.fits(recipe.gpu_count, wanted) and host.takes_work(now_s, state.limits)
            for host in state.hosts.with_gpus()):
        return recipe.gpu_bytes
    return wanted


def memory_patience_ended_since(state: State, since_s: float, now_s: float) -> bool:
    """True if a run that waits needs less free memory than it did then."""
    ends_s = (
        run.arrived_at_s + state.limits.memory_patience_s for run in state.queue
        if run.patient_gpu_bytes > run.recipe.gpu_bytes or run.need.worker_id)
    return any(since_s < end_s <= now_s for end_s in ends_s)
