"""Session-pinned reservation: a session holds its GPUs from beginning to end.

Assumed: as many hosts as its sessions' GPUs fill, all there before the first session; a cell starts at once.
"""

from __future__ import annotations

import math

from looseleaf.sim.ledger import GpuState
from looseleaf.sim.world import Session, World


def pinned_hosts(world: World) -> int:
    """Hosts that pinning takes for all sessions; GPUs of one session lie on one host."""
    gpus = world.model.hosts.gpus
    whole = sum(session.stream.gpus for session in world.sessions)
    return max(1, math.ceil(whole / gpus))


class PinnedPolicy:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.decisions = 0
        self._world = world

    def begin(self) -> None:
        """All hosts."""
        self._world.pool.have(pinned_hosts(self._world))

    def gap_began(self, session: Session) -> None:
        """Nothing is prepared: everything is there."""

    def run_pressed(self, session: Session) -> None:
        """Starts it."""
        self.decisions += 1
        world = self._world
        world.ledger.move(GpuState.IDLE, GpuState.RUNNING, session.cell.gpu_count, world.engine.now_s)
        world.started(session)

    def cell_ended(self, session: Session) -> None:
        """The GPU idles."""
        self.decisions += 1
        world = self._world
        world.ledger.move(GpuState.RUNNING, GpuState.IDLE, session.cell.gpu_count, world.engine.now_s)

    def preparations(self) -> dict[str, int]:
        """None are made."""
        return {}

    def late(self) -> dict[str, int]:
        """Not counted."""
        return {}
