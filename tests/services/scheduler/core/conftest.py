"""A rig that drives the policy by hand: every test says what happens and compares what is wanted."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, Version, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import (
    ExecutionState,
    Figures,
    HostReport,
    Lease,
    RecipeFacts,
    WorkerReport,
    WorkerStage,
)
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.policy import Scheduler

A = TypeVar("A")


class Rig:
    """The policy with a hand-moved clock, numbered lease ids and short ways to say things."""

    def __init__(self, restored: ev.JournalRestored | None = None, **limits: Any) -> None:
        numbers = itertools.count(1)
        self.scheduler = Scheduler(Limits(**limits), lambda: LeaseId(f"l{next(numbers)}"))
        self.now_s = 0.0
        self.requests = itertools.count(1)
        self.last: list[act.Action] = []
        self.send(restored or ev.JournalRestored())

    def send(self, event: ev.Event) -> list[act.Action]:
        self.last = self.scheduler.handle(event, self.now_s)
        return self.last

    def pass_time(self, seconds: float) -> list[act.Action]:
        self.now_s += seconds
        return self.send(ev.Tick())

    def new_request(self) -> str:
        return f"r{next(self.requests)}"

    def heartbeat(
        self, host: str = "h0", gpus: int = 1, workers: tuple[WorkerReport, ...] = (), leases: tuple[Lease, ...] = (),
        incarnation: str = "i1", draining: bool = False, gpu_memory_bytes: int = 0, staged_sessions: int = 0,
        gpu_used_bytes: tuple[int, ...] = (),
    ) -> list[act.Action]:
        report = HostReport(
            HostId(host), f"unix:/{host}", incarnation, gpus, "emulated", workers, leases, draining, gpu_memory_bytes,
            staged_sessions=staged_sessions, gpu_used_bytes=gpu_used_bytes)
        return self.send(ev.HeartbeatReceived(self.new_request(), report))

    def run(
        self, execution: str, session: str = "s1", *, epoch: int = 1, gpus: int = 1, version: int = 1, source: str = "",
        priority: str = "interactive", device_bytes: int = 0, names: tuple[str, ...] = (), tenant: str = "",
        peak_bytes: int = 0,
    ) -> list[act.Action]:
        facts = RecipeFacts(
            source or f"hash-{execution}", Version(version), frozenset(names), frozenset(), gpus, device_bytes,
            peak_bytes=peak_bytes)
        return self.send(ev.RunRequested(
            self.new_request(), ExecutionId(execution), SessionId(session), Epoch(epoch), facts, priority,
            tenant=tenant))

    def prepare(
        self, session: str = "s1", *, source: str = "p", version: int = 1, epoch: int = 1, gpus: int = 1,
        names: tuple[str, ...] = (), device_bytes: int = 0, environment_id: str = "", peak_bytes: int = 0, **more: Any,
    ) -> list[act.Action]:
        facts = RecipeFacts(
            source, Version(version), frozenset(names), frozenset(), gpus, device_bytes, environment_id=environment_id,
            peak_bytes=peak_bytes)
        return self.send(ev.PreparationRequested(self.new_request(), SessionId(session), Epoch(epoch), facts, **more))

    def report(
        self, lease: Lease, state: ExecutionState, *, release: bool = False, reason: str = "",
        figures: Figures | None = None, worker: WorkerReport | None = None,
    ) -> list[act.Action]:
        return self.send(ev.ExecutionReported(
            self.new_request(), lease.execution_id, lease.lease_id, state, reason, release, figures, worker))

    def granted(self, lease: Lease) -> list[act.Action]:
        return self.send(ev.LeaseGranted(lease.lease_id))

    def lease(self, execution: str, session: str = "s1", **run: Any) -> Lease:
        """Asks, is granted, and returns the lease that the caller got."""
        self.run(execution, session, **run)
        self.granted(self.one(act.GrantLease).lease)
        return self.one(act.NotifyLease).lease

    def finish(self, lease: Lease, worker: str = "") -> list[act.Action]:
        """The cell starts, ends and is saved; `worker` stays warm on the lease's GPUs."""
        self.report(lease, ExecutionState.STARTED)
        self.report(lease, ExecutionState.FINISHED)
        told = worker_report(worker, lease.session_id, gpus=lease.gpu_indices) if worker else None
        return self.report(lease, ExecutionState.SAVED, release=True, worker=told)

    def all(self, kind: type[A]) -> list[A]:
        return [action for action in self.last if isinstance(action, kind)]

    def one(self, kind: type[A]) -> A:
        found = self.all(kind)
        assert len(found) == 1, f"{len(found)} {kind.__name__} in {self.last}"
        return found[0]

    def state_of(self, execution: str) -> ExecutionState:
        record = self.scheduler.execution(ExecutionId(execution))
        return record.state if record is not None else ExecutionState.UNSPECIFIED


def worker_report(
    worker: str, session: str = "s1", stage: WorkerStage = WorkerStage.COMPLETED, *, gpus: tuple[int, ...] = (),
    version: int = 1, prepared: str = "", execution: str = "", resident_bytes: int = 0,
) -> WorkerReport:
    return WorkerReport(
        WorkerId(worker), SessionId(session), stage, Version(version), prepared, gpus, ExecutionId(execution),
        resident_bytes)


@pytest.fixture(name="worker")
def _worker() -> Callable[..., WorkerReport]:
    return worker_report


@pytest.fixture
def new_rig() -> type[Rig]:
    return Rig


@pytest.fixture
def rig() -> Rig:
    """One host with one GPU."""
    made = Rig()
    made.heartbeat()
    return made
