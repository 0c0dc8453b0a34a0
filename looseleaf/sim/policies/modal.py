"""Modal-like: a container with a GPU that is kept for some idle time; after that a Run computes upstream cells anew.

Assumed: kept 430 s, which gives the paper's 78 % of warm starts; a start in a new container takes 2 s and a lognormal
recomputation (paper §4.3: 46 s at the 90th percentile, over an hour in the tail); only GPU cells keep it awake; hosts
follow the demand without headroom.
"""

from __future__ import annotations

import math

from looseleaf.sim.ledger import GpuState
from looseleaf.sim.policies.slots import HostsByDemand, Slots
from looseleaf.sim.workload import lognormal
from looseleaf.sim.world import Session, World


class ModalPolicy:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.decisions = 0
        self._world = world
        self._settings = world.model.modal
        self._slots = Slots(world, self.run_pressed)
        gpus = world.model.hosts.gpus
        self._hosts = HostsByDemand(world, self._slots, lambda: max(1, math.ceil(self._slots.demand() / gpus)))
        # Session -> the number of the cell after which its container idles.
        self._idle_after: dict[int, int] = {}

    def begin(self) -> None:
        """One host."""
        self._hosts.begin()

    def gap_began(self, session: Session) -> None:
        """Nothing is prepared."""

    def run_pressed(self, session: Session) -> None:
        """Starts at once in the container that is there, else makes one, else waits."""
        self.decisions += 1
        self._idle_after.pop(session.index, None)
        if session.index in self._slots.of_session:
            self._ready(session)
            return
        host = self._world.pool.fullest(session.cell)
        if host is None:
            self._slots.waiting.append(session)
            return
        self._slots.take(session, host)
        settings = self._settings
        recompute_s = lognormal(
            session.random, settings.recompute_median_s, settings.recompute_sigma, settings.recompute_max_s)
        self._world.engine.after(settings.boot_s + recompute_s, self._ready, session)

    def _ready(self, session: Session) -> None:
        self._slots.set_state(self._slots.of_session[session.index], GpuState.RUNNING)
        self._world.started(session)

    def cell_ended(self, session: Session) -> None:
        """Keeps the container."""
        self.decisions += 1
        self._slots.set_state(self._slots.of_session[session.index], GpuState.WARM)
        self._idle_after[session.index] = session.number
        self._world.engine.after(self._settings.idle_s, self._expire, session, session.number)

    def _expire(self, session: Session, number: int) -> None:
        if self._idle_after.get(session.index) == number:
            del self._idle_after[session.index]
            self._slots.free(session)

    def preparations(self) -> dict[str, int]:
        """None are made."""
        return {}

    def late(self) -> dict[str, int]:
        """Not counted."""
        return {}
