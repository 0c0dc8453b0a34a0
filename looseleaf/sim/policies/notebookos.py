"""NotebookOS-like: three kernel replicas a session on different hosts, a GPU bound only while a cell runs.

Assumed, from its published settings: at least 4 hosts and no more than 7 replicas a GPU, 1.1 times the demand plus
2 hosts in reserve; binding a GPU on a replica's host takes 0.15 s, and where none of its hosts has one a replica
migrates, which takes 20 s. Not modelled: Raft elections and state synchronisation, so that its latency here is better
than the paper's (99th percentile 63 s).
"""

from __future__ import annotations

import math

from looseleaf.sim.ledger import GpuState
from looseleaf.sim.policies.slots import HostsByDemand, Slots
from looseleaf.sim.pool import SimHost
from looseleaf.sim.workload import lognormal
from looseleaf.sim.world import Session, World


class NotebookOsPolicy:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.decisions = 0
        self._world = world
        self._settings = world.model.notebookos
        self._slots = Slots(world, self.run_pressed)
        self._hosts = HostsByDemand(world, self._slots, self._target)
        self._replicas: dict[int, list[SimHost]] = {}

    def _target(self) -> int:
        settings, gpus = self._settings, self._world.model.hosts.gpus
        subscribed = settings.replicas * len(self._world.sessions) / (settings.subscription_max * gpus)
        demanded = math.ceil(settings.demand_factor * self._slots.demand() / gpus) + settings.spare_hosts
        return max(settings.hosts_min, math.ceil(subscribed), demanded)

    def begin(self) -> None:
        """The least number of hosts."""
        self._hosts.begin()

    def gap_began(self, session: Session) -> None:
        """Replicas are there all the time."""

    def run_pressed(self, session: Session) -> None:
        """Binds GPUs on a replica's host, else moves a replica to where there are some, else waits."""
        self.decisions += 1
        settings, drawn = self._settings, session.random
        replicas = self._replicas_of(session)
        own = self._freest(replicas, session)
        chosen = own or self._freest(list(self._world.pool.hosts.values()), session)
        if chosen is None:
            self._slots.waiting.append(session)
            return
        if own is not None:
            delay_s = lognormal(drawn, settings.bind_median_s, settings.bind_sigma, math.inf)
        else:
            replicas[0] = chosen
            delay_s = lognormal(drawn, settings.migrate_median_s, settings.migrate_sigma, math.inf)
        self._slots.take(session, chosen)
        self._world.engine.after(delay_s, self._ready, session)

    def _replicas_of(self, session: Session) -> list[SimHost]:
        hosts = self._world.pool.hosts
        found = self._replicas.get(session.index, [])
        if not found or any(host.number not in hosts for host in found):
            found = session.random.sample(list(hosts.values()), min(self._settings.replicas, len(hosts)))
            self._replicas[session.index] = found
        return found

    def _freest(self, hosts: list[SimHost], session: Session) -> SimHost | None:
        cell = session.cell
        able = [host for host in hosts if host.free >= cell.gpu_count and host.holds(cell)]
        return max(able, key=lambda host: host.free, default=None)

    def _ready(self, session: Session) -> None:
        self._slots.set_state(self._slots.of_session[session.index], GpuState.RUNNING)
        self._world.started(session)

    def cell_ended(self, session: Session) -> None:
        """The GPU is unbound at once; replicas synchronise meanwhile."""
        self.decisions += 1
        self._slots.free(session)

    def preparations(self) -> dict[str, int]:
        """None are made."""
        return {}

    def late(self) -> dict[str, int]:
        """Not counted."""
        return {}
