"""Hosts that are started, stand there and are stopped, for every policy alike.

A host that boots is paid for. What stands on its GPUs is the policy's business: it tells the ledger.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from looseleaf.sim.engine import Engine
from looseleaf.sim.ledger import GpuState, Ledger
from looseleaf.sim.model import Hosts
from looseleaf.sim.workload import Cell


class SimHost:
    """One host; `free` GPUs are those that no slot of a baseline holds."""

    __slots__ = ("draining", "free", "gpus", "memory_bytes", "number")

    def __init__(self, number: int, gpus: int, memory_bytes: int) -> None:
        self.number = number
        self.gpus = self.free = gpus
        self.memory_bytes = memory_bytes
        self.draining = False

    def holds(self, cell: Cell) -> bool:
        """Whether the cell fits here when nobody else does."""
        return cell.gpu_count <= self.gpus and cell.closure_bytes <= cell.gpu_count * self.memory_bytes


class Pool:
    """`on_up(host)` is called when a host can be used."""

    def __init__(self, engine: Engine, ledger: Ledger, settings: Hosts, seed: int) -> None:
        self.hosts: dict[int, SimHost] = {}
        self.booting = 0
        self.boots = 0
        self.on_up: Callable[[SimHost], None] = lambda host: None
        self._engine = engine
        self._ledger = ledger
        self._settings = settings
        self._random = random.Random(f"hosts/{seed}")
        self._number = 0
        # By the count of free GPUs, so that none need be searched for.
        self._by_free: list[dict[int, SimHost]] = [{} for _ in range(settings.gpus + 1)]

    def have(self, count: int) -> None:
        """Hosts that stand there from the beginning, not counted as boots."""
        for _ in range(count):
            self.booting += 1
            self._ledger.add(GpuState.BOOT, self._settings.gpus, self._engine.now_s)
            self._up(0)

    def boot(self, count: int, memory_bytes: int = 0) -> None:
        """Starts hosts with at least `memory_bytes` a GPU, if there are such; each comes up after its own time."""
        settings = self._settings
        for _ in range(count):
            self.booting += 1
            self.boots += 1
            self._ledger.add(GpuState.BOOT, settings.gpus, self._engine.now_s)
            delay_s = settings.boot_s * (1 + settings.boot_spread * (2 * self._random.random() - 1))
            self._engine.after(delay_s, self._up, memory_bytes)

    def _up(self, memory_bytes: int) -> None:
        self.booting -= 1
        host = SimHost(self._number, self._settings.gpus, self._settings.memory_bytes(self._number, memory_bytes))
        self._number += 1
        self.hosts[host.number] = self._by_free[host.free][host.number] = host
        self._ledger.move(GpuState.BOOT, GpuState.IDLE, host.gpus, self._engine.now_s)
        self.on_up(host)

    def stop(self, host: SimHost) -> None:
        """Ends a host; all its GPUs must be idle."""
        del self.hosts[host.number], self._by_free[host.free][host.number]
        self._ledger.add(GpuState.IDLE, -host.gpus, self._engine.now_s)

    def take(self, host: SimHost, gpus: int, state: GpuState) -> None:
        """Gives GPUs of a host to a slot, which is in `state`."""
        self._set_free(host, host.free - gpus)
        self._ledger.move(GpuState.IDLE, state, gpus, self._engine.now_s)

    def give_back(self, host: SimHost, gpus: int, state: GpuState) -> None:
        """Ends a slot that was in `state`."""
        self._set_free(host, host.free + gpus)
        self._ledger.move(state, GpuState.IDLE, gpus, self._engine.now_s)

    def _set_free(self, host: SimHost, free: int) -> None:
        del self._by_free[host.free][host.number]
        host.free = free
        self._by_free[free][host.number] = host

    def fullest(self, cell: Cell) -> SimHost | None:
        """The fullest host with room for the cell, one that is being drained only if there is no other."""
        draining = None
        for hosts in self._by_free[cell.gpu_count:]:
            for host in hosts.values():
                if not host.holds(cell):
                    continue
                if not host.draining:
                    return host
                draining = draining or host
        return draining

    def in_use(self) -> int:
        """GPUs that slots hold."""
        return sum(host.gpus - host.free for host in self.hosts.values())
