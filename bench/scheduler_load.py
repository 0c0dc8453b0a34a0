"""Closed-loop sessions against the scheduler's pure core, to time one event at scale.

Each session prepares a cell, runs it, thinks, and so on; hosts answer every order at once and send heartbeats.
`python bench/scheduler_load.py --sessions 1000 --hosts 40` prints microseconds of processor time by kind of event;
`--profile` says where they go.
"""

from __future__ import annotations

import argparse
import cProfile
import heapq
import itertools
import pstats
import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, Version, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import (
    ExecutionState,
    HostReport,
    Lease,
    RecipeFacts,
    WorkerReport,
    WorkerStage,
)
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.policy import Scheduler
from looseleaf.units import GIB

HEARTBEAT_S = 30.0
TICK_S = 5.0
LIMITS = Limits(heartbeat_suspect_s=90.0, heartbeat_dead_s=300.0, news_at_once_max=0, journal_records_max=5_000)


class Load:
    """The world outside: sessions and daemons that never fail. `duty`: the share of time in which a session runs."""

    def __init__(
        self, sessions: int, hosts: int, gpus: int, duty: float, seed: int = 1, limits: Limits = LIMITS,
    ) -> None:
        self.random = random.Random(seed)
        numbers = itertools.count(1)
        self.scheduler = Scheduler(limits, lambda: LeaseId(f"l{next(numbers)}"))
        self.names = itertools.count(1)
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.now_s = 0.0
        self.gpus, self.duty = gpus, duty
        self.spent_s: dict[str, float] = defaultdict(float)
        self.counts: dict[str, int] = defaultdict(int)
        self.leases: dict[str, dict[str, Lease]] = {f"h{n:04}": {} for n in range(hosts)}
        self.workers: dict[str, dict[str, WorkerReport]] = {host: {} for host in self.leases}
        self.pending: dict[str, tuple[str, int]] = {}
        self.served = 0
        self.send(ev.JournalRestored())
        for host in self.leases:
            self.beat(host)
        for number in range(sessions):
            self.at(self.random.uniform(0, 60), self.cell(f"s{number}", 1))
        self.at(TICK_S, self.tick)

    def at(self, delay_s: float, step: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.now_s + delay_s, next(self.names), step))

    def run(self, until_s: float) -> None:
        """Goes on until the simulated time."""
        while self.heap and self.heap[0][0] <= until_s:
            self.now_s, _number, step = heapq.heappop(self.heap)
            step()

    def send(self, event: ev.Event) -> None:
        began = time.thread_time()
        actions = self.scheduler.handle(event, self.now_s)
        kind = type(event).__name__
        self.spent_s[kind] += time.thread_time() - began
        self.counts[kind] += 1
        for action in actions:
            self.carry_out(action)

    def tick(self) -> None:
        self.send(ev.Tick())
        self.at(TICK_S, self.tick)

    def beat(self, host: str) -> None:
        report = HostReport(
            HostId(host), f"a:{host}", "i1", self.gpus, "emulated", tuple(self.workers[host].values()),
            tuple(self.leases[host].values()), gpu_memory_bytes=80 * GIB)
        self.send(ev.HeartbeatReceived(f"b{next(self.names)}", report))
        self.at(HEARTBEAT_S, lambda: self.beat(host))

    def cell(self, session: str, version: int) -> Callable[[], None]:
        def edit() -> None:
            recipe = RecipeFacts(f"{session}-{version}", Version(version), device_bytes=GIB // 2)
            self.send(ev.PreparationRequested(f"p{next(self.names)}", SessionId(session), Epoch(1), recipe))
            self.at(self.random.expovariate(1 / 10), lambda: press(recipe))

        def press(recipe: RecipeFacts) -> None:
            execution = f"x-{session}-{version}"
            self.pending[execution] = (session, version)
            self.send(ev.RunRequested(
                f"r{next(self.names)}", ExecutionId(execution), SessionId(session), Epoch(1), recipe))

        return edit

    def carry_out(self, action: act.Action) -> None:
        match action:
            case act.GrantLease(lease):
                self.leases[lease.host_id][lease.lease_id] = lease
                self.at(0.002, lambda: self.send(ev.LeaseGranted(lease.lease_id)))
            case act.NotifyLease(_request, lease):
                self.start(lease)
            case act.PrepareWorker():
                worker = action.worker_id or f"w{next(self.names)}"
                self.workers[action.host_id][worker] = WorkerReport(
                    WorkerId(worker), action.session_id, WorkerStage.HOST_READY, action.recipe.version,
                    action.recipe.source_hash, resident_bytes=GIB // 2)
                self.at(0.7, lambda: self.send(ev.WorkerPrepared(action.request_id, WorkerId(worker), 700.0)))
            case act.EvictWorker():
                self.workers[action.host_id].pop(action.worker_id, None)
                self.at(0.01, lambda: self.send(
                    ev.EvictionEnded(action.host_id, action.worker_id, action.lease_id, True)))
            case act.Refuse():
                raise AssertionError(action)
            case _:
                pass

    def start(self, lease: Lease) -> None:
        worker = lease.worker_id or f"w{next(self.names)}"
        think_s = 90.0
        run_s = self.random.expovariate((1 - self.duty) / (self.duty * think_s))
        session, version = self.pending.pop(lease.execution_id)
        self.served += 1

        def report(state: ExecutionState, stage: WorkerStage) -> None:
            told = WorkerReport(
                WorkerId(worker), lease.session_id, stage, Version(version), "", lease.gpu_indices,
                lease.execution_id, GIB // 2)
            if worker in self.workers[lease.host_id] or stage is WorkerStage.RUNNING:
                self.workers[lease.host_id][worker] = told
            if state.ended:
                del self.leases[lease.host_id][lease.lease_id]
            self.send(ev.ExecutionReported(
                f"e{next(self.names)}", lease.execution_id, lease.lease_id, state, "", state.ended, None, told))
            if state.ended:
                self.at(self.random.expovariate(1 / think_s), self.cell(session, version + 1))

        self.at(0.1, lambda: report(ExecutionState.STARTED, WorkerStage.RUNNING))
        self.at(0.1 + run_s, lambda: report(ExecutionState.FINISHED, WorkerStage.SAVING))
        self.at(0.2 + run_s, lambda: report(ExecutionState.SAVED, WorkerStage.COMPLETED))

    def figures(self) -> dict[str, Any]:
        """Microseconds of an event that is not a tick, and of each kind."""
        events = sum(count for kind, count in self.counts.items() if kind != "Tick")
        spent_s = sum(spent for kind, spent in self.spent_s.items() if kind != "Tick")
        return {
            "events": events, "event_us": round(1e6 * spent_s / events, 1), "served": self.served,
            "kinds_us": {kind: round(1e6 * self.spent_s[kind] / self.counts[kind], 1) for kind in self.counts},
            "counts": dict(self.counts),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--hosts", type=int, default=40)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--duty", type=float, default=0.19)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    load = Load(options.sessions, options.hosts, options.gpus, options.duty)
    if options.profile:
        with cProfile.Profile() as profile:
            load.run(options.seconds)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    else:
        load.run(options.seconds)
    print(load.figures())


if __name__ == "__main__":
    main()
