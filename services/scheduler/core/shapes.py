"""Kinds of hosts: what one has, which ones can be started, and which of them hold a cell."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from looseleaf.services.scheduler.core.facts import RecipeFacts
from looseleaf.services.scheduler.core.limits import Limits


@dataclass(frozen=True, slots=True, order=True)
class HostShape:
    """A kind of hosts: how many GPUs, and the memory of each in bytes, 0 if that is not known."""

    gpu_count: int
    gpu_memory_bytes: int = 0

    def holds(self, recipe: RecipeFacts) -> bool:
        """True if the cell fits there when nobody else is. Memory that is not known is taken to do."""
        return self.fits(recipe.gpu_count, recipe.gpu_bytes)

    def fits(self, gpu_count: int, gpu_bytes: int) -> bool:
        """The same of so many GPUs and bytes on each."""
        return fits(self.gpu_count, self.gpu_memory_bytes, gpu_count, gpu_bytes)


def fits(host_gpus: int, host_gpu_bytes: int, gpu_count: int, gpu_bytes: int) -> bool:
    """True if a host with GPUs of that memory has so many for a cell with so many bytes on each.

    0 bytes are not known: then the cell itself will tell.
    """
    return gpu_count <= host_gpus and (not host_gpu_bytes or gpu_bytes <= host_gpu_bytes)


class ShapeTable:
    """The kinds of hosts that can be started: those that the provider offers, else those of its hosts that there were.

    A kind that is offered without its memory is taken to have the least that a host with as many GPUs came with.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._offered: tuple[HostShape, ...] = ()
        self._seen: set[HostShape] = set()

    @property
    def usual(self) -> HostShape:
        """The kind that is started for cells that fit anywhere: the first that is offered."""
        return self._offered[0] if self._offered else HostShape(self._limits.gpus_per_host)

    def offer(self, shapes: tuple[HostShape, ...]) -> bool:
        """The provider can start these. True if that is news."""
        kept = tuple(shape for shape in shapes if shape.gpu_count)[: self._limits.host_shapes_max]
        changed, self._offered = kept != self._offered, kept
        return changed

    def learn(self, shape: HostShape) -> None:
        """There is a host like this that the provider can start again."""
        if shape.gpu_count and len(self._seen) < self._limits.host_shapes_max:
            self._seen.add(shape)

    def kinds(self) -> tuple[HostShape, ...]:
        """What can be asked for."""
        return self._offered or tuple(sorted(self._seen)) or (self.usual,)

    def startable(self) -> list[HostShape]:
        """What can come of it, as far as it is known."""
        return [self.real(kind) for kind in self.kinds()]

    def real(self, kind: HostShape) -> HostShape:
        """What a host of that kind has, as far as it is known."""
        if kind.gpu_memory_bytes:
            return kind
        return min((seen for seen in self._seen if seen.gpu_count == kind.gpu_count), default=kind)

    def for_cell(
        self, gpu_count: int, gpu_bytes: int, resting: Collection[HostShape] = (),
    ) -> HostShape | None:
        """The kind to ask for so that the cell fits: the usual one if it will do, or the least; None: there is none.

        Kinds that rest are left out.
        """
        able = [
            kind for kind in self.kinds() if kind not in resting and self.real(kind).fits(gpu_count, gpu_bytes)]
        return self.usual if self.usual in able else min(able, default=None)
