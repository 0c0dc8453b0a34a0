"""Naive serverless: a GPU for each cell, and all that the cell needs is made ready after Run.

Assumed: a preparation takes `naive_factor` times LooseLeaf's (paper §4.4: 44), the whole state is saved afterwards
(`save_factor` times), and hosts follow the demand without headroom.
"""

from __future__ import annotations

import math

from looseleaf.sim.ledger import GpuState
from looseleaf.sim.policies.slots import HostsByDemand, Slots
from looseleaf.sim.workload import lognormal
from looseleaf.sim.world import Session, World


class NaivePolicy:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.decisions = 0
        self._world = world
        self._slots = Slots(world, self.run_pressed)
        gpus = world.model.hosts.gpus
        self._hosts = HostsByDemand(world, self._slots, lambda: max(1, math.ceil(self._slots.demand() / gpus)))

    def begin(self) -> None:
        """One host."""
        self._hosts.begin()

    def gap_began(self, session: Session) -> None:
        """Nothing is prepared."""

    def run_pressed(self, session: Session) -> None:
        """Takes GPUs and prepares, or waits."""
        self.decisions += 1
        world = self._world
        host = world.pool.fullest(session.cell)
        if host is None:
            self._slots.waiting.append(session)
            return
        self._slots.take(session, host)
        delay_s = session.cell.prepare_s * world.model.mechanism.naive_factor
        world.engine.after(delay_s, self._ready, session)

    def _ready(self, session: Session) -> None:
        self._slots.set_state(self._slots.of_session[session.index], GpuState.RUNNING)
        self._world.started(session)

    def cell_ended(self, session: Session) -> None:
        """Saves everything."""
        self.decisions += 1
        model = self._world.model
        self._slots.set_state(self._slots.of_session[session.index], GpuState.SAVING)
        median_s = model.mechanism.save_median_s * model.naive.save_factor
        save_s = lognormal(session.random, median_s, model.mechanism.save_sigma, model.naive.save_max_s)
        self._world.engine.after(save_s, self._slots.free, session)

    def preparations(self) -> dict[str, int]:
        """None are made."""
        return {}

    def late(self) -> dict[str, int]:
        """Not counted."""
        return {}
