"""What the baselines share: GPUs given to one cell after the other in the order of their Runs, hosts by demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from looseleaf.sim.ledger import GpuState
from looseleaf.sim.pool import SimHost
from looseleaf.sim.world import Session, World


class Slot:
    """GPUs of one host in the hands of one session."""

    __slots__ = ("gpus", "host", "state")

    def __init__(self, host: SimHost, gpus: int, state: GpuState) -> None:
        self.host = host
        self.gpus = gpus
        self.state = state


class Slots:
    """Slots by session, and the runs that wait for one. `retry(session)` is called when one may fit."""

    def __init__(self, world: World, retry: Callable[[Session], None]) -> None:
        self.of_session: dict[int, Slot] = {}
        self.waiting: deque[Session] = deque()
        self._world = world
        self._retry = retry
        world.pool.on_up = lambda host: self.serve()

    def take(self, session: Session, host: SimHost) -> Slot:
        """Gives the session what its cell needs on `host`."""
        slot = Slot(host, session.cell.gpu_count, GpuState.PREPARING)
        self._world.pool.take(host, slot.gpus, slot.state)
        self.of_session[session.index] = slot
        return slot

    def set_state(self, slot: Slot, state: GpuState) -> None:
        """What the slot's GPUs do from now on."""
        self._world.ledger.move(slot.state, state, slot.gpus, self._world.engine.now_s)
        slot.state = state

    def free(self, session: Session) -> None:
        """Takes the session's GPUs back and serves who waits."""
        slot = self.of_session.pop(session.index)
        self._world.pool.give_back(slot.host, slot.gpus, slot.state)
        self.serve()

    def serve(self) -> None:
        """Tries those who wait, in their order, until one does not fit."""
        waiting = self.waiting
        while waiting:
            length = len(waiting)
            self._retry(waiting.popleft())
            if len(waiting) == length:
                # It waits again, now at the end: back to its place.
                waiting.rotate(1)
                return

    def unheld_bytes(self) -> int:
        """Memory a GPU for the first of those who wait that no host holds, empty or not; 0 if there is none."""
        hosts = self._world.pool.hosts.values()
        for session in self.waiting:
            if not any(host.holds(session.cell) for host in hosts):
                return -(-session.cell.closure_bytes // session.cell.gpu_count)
        return 0

    def demand(self) -> int:
        """GPUs that slots hold or runs wait for."""
        return self._world.pool.in_use() + sum(session.cell.gpu_count for session in self.waiting)


class HostsByDemand:
    """Keeps as many hosts as `target()` says: more at once, fewer after `off_delay_s`, the emptiest drained first.

    One of the right kind is started for a cell that none of them holds.
    """

    def __init__(self, world: World, slots: Slots, target: Callable[[], int]) -> None:
        self._world = world
        self._slots = slots
        self._target = target
        self._over_s = 0.0

    def begin(self) -> None:
        """Hosts for no demand at all, and ticks."""
        self._world.pool.have(self._target())
        self._world.engine.after(self._world.model.hosts.tick_s, self._tick)

    def _tick(self) -> None:
        pool, settings = self._world.pool, self._world.model.hosts
        self._world.engine.after(settings.tick_s, self._tick)
        unheld_bytes = self._slots.unheld_bytes()
        if unheld_bytes and not pool.booting:
            pool.boot(1, unheld_bytes)
        surplus = len(pool.hosts) + pool.booting - self._target()
        if surplus <= 0:
            self._over_s = 0.0
            for host in pool.hosts.values():
                host.draining = False
            pool.boot(-surplus)
            return
        self._over_s += settings.tick_s
        if self._over_s < settings.off_delay_s:
            return
        emptiest = sorted(pool.hosts.values(), key=lambda host: (-host.free, host.number))
        for host in emptiest[:surplus]:
            if host.free == host.gpus:
                pool.stop(host)
            else:
                host.draining = True
