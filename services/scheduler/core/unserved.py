"""Runs that wait for a kind of host: what no host that stays, or is on its way, could give them with its leases."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from looseleaf.services.scheduler.core.hosts import Host
from looseleaf.services.scheduler.core.queue import Run
from looseleaf.services.scheduler.core.shapes import HostShape
from looseleaf.services.scheduler.core.state import State


@dataclass(frozen=True, slots=True)
class Unserved:
    """A run that waits, and the kind of host to start for it."""

    run: Run
    shape: HostShape


def unserved(state: State, staying: Sequence[Host], runs: Iterable[Run], now_s: float) -> list[Unserved]:
    """Of `runs`, in turn, those for which a host must be started, one for each such host; at most `hosts_max`.

    Each run takes the room that will do with least to spare. A run that some host could hold has patience, since cells
    end; one that none could has none. A run that needs a certain worker waits for that one. Memory that it only may
    need, as such cells were seen to hold it, is no reason to start a host. A kind that could not be started
    lately rests.
    """
    limits = state.limits
    state.hosts.file()
    rooms = sorted((_room_of(state, host, now_s) for host in staying), key=lambda room: room.order)
    rooms += [_empty(state.shapes.real(shape)) for shape in state.boots.shapes()]
    found: list[Unserved] = []
    resting = state.boots.resting(now_s)
    for run in runs:
        gpus, gpu_bytes = run.recipe.gpu_count, run.recipe.gpu_bytes
        if run.need.worker_id or any(room.take(gpus, gpu_bytes) for room in rooms):
            continue
        patient = now_s - run.arrived_at_s < limits.gang_patience_s
        if patient and any(host.fits(gpus, gpu_bytes) for host in staying):
            continue
        shape = state.shapes.for_cell(gpus, gpu_bytes, resting)
        if shape is None:
            continue
        found.append(Unserved(run, shape))
        if len(found) == limits.hosts_max:
            break
        rooms.append(_empty(state.shapes.real(shape)))
        rooms[-1].take(gpus, gpu_bytes)
    return found


@dataclass(slots=True)
class _Room:
    """GPUs of one host that runs may take, by the memory that nobody else uses there, ascending."""

    shape: HostShape
    spare_bytes: list[float]

    @property
    def order(self) -> tuple[float, int]:
        """Small memory first, then the fullest: what is left over should be of use to a large cell."""
        return (self.spare_bytes[-1] if self.spare_bytes else 0.0, len(self.spare_bytes))

    def take(self, gpu_count: int, gpu_bytes: int) -> bool:
        """Takes so many of the smallest GPUs with as much memory to spare; False if there are too few."""
        first = bisect_left(self.spare_bytes, gpu_bytes)
        end = first + gpu_count
        if end > len(self.spare_bytes) or not self.shape.fits(gpu_count, gpu_bytes):
            return False
        del self.spare_bytes[first:end]
        return True


def _empty(shape: HostShape) -> _Room:
    return _Room(shape, [float(shape.gpu_memory_bytes or math.inf)] * shape.gpu_count)


def _room_of(state: State, host: Host, now_s: float) -> _Room:
    kept = {
        index for worker in host.workers.bound() if now_s < worker.held_until_s for index in worker.gpu_indices}
    open_gpus = (
        index for index in range(host.gpu_count)
        if index not in kept and not state.leases.occupied(host.host_id, index))
    return _Room(host.shape, sorted(host.spare_bytes(index) for index in open_gpus))
