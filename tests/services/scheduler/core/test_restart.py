"""A new life: what the journal says, what the daemons say, and when placing begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import (
    ExecutionRecord,
    ExecutionState,
    Figures,
    HostRecord,
    Lease,
    SessionRecord,
    StartPath,
    Totals,
    WorkerStage,
)

LEASE = Lease(
    LeaseId("old"), SessionId("s1"), Epoch(4), ExecutionId("x1"), HostId("h0"), "unix:/h0", (0,), WorkerId(""),
    StartPath.COLD, 10_000)
HOST = HostRecord(HostId("h0"), "unix:/h0", "i1", True)


def journal(state: ExecutionState, lease: Lease | None = LEASE, hosts: tuple[HostRecord, ...] = (HOST,)) -> Any:
    record = ExecutionRecord(7, ExecutionId("x1"), SessionId("s1"), Epoch(4), state, "", lease)
    owner = SessionRecord(SessionId("s1"), Epoch(4))
    return ev.JournalRestored((record,), hosts, (owner,), Totals(100.0))


def test_nothing_is_placed_before_the_known_hosts_reported(new_rig: Any) -> None:
    rig = new_rig(journal(ExecutionState.SAVED))
    assert not rig.scheduler.pool(rig.now_s).ready
    rig.heartbeat("h1")
    rig.run("x2", "s2")
    assert rig.one(act.NotifyQueue).reason == "The scheduler has just started and waits for its GPU hosts."
    rig.heartbeat("h0")
    assert rig.one(act.MarkReady)
    assert rig.one(act.GrantLease).lease.execution_id == "x2"


def test_first_start_is_ready_at_once(new_rig: Any) -> None:
    rig = new_rig()
    assert rig.last == [act.MarkReady()]


def test_waiting_for_a_known_host_ends_after_the_limit(new_rig: Any) -> None:
    rig = new_rig(journal(ExecutionState.SAVED))
    assert rig.pass_time(2.9) == []
    assert rig.pass_time(0.2) == [act.MarkReady()]


def test_running_lease_is_adopted_by_its_heartbeat(new_rig: Any, worker: Any) -> None:
    rig = new_rig(journal(ExecutionState.STARTED))
    running = worker("w1", stage=WorkerStage.RUNNING, gpus=(0,), execution="x1")
    rig.heartbeat(leases=(LEASE,), workers=(running,))
    assert rig.one(act.AnswerHeartbeat).renewed == ("old",)
    rig.run("x2", "s2")
    assert rig.all(act.GrantLease) == []
    rig.report(LEASE, ExecutionState.SAVED, release=True)
    assert rig.state_of("x1") is ExecutionState.SAVED
    assert rig.one(act.EvictWorker).worker_id == "w1"


def test_lease_that_outlives_a_restart_counts_as_its_tenants(new_rig: Any) -> None:
    before = new_rig()
    before.heartbeat(gpus=2)
    told = [action.record for action in before.run("x1", epoch=4, tenant="a") if isinstance(action, act.JournalSession)]
    assert told == [SessionRecord(SessionId("s1"), Epoch(4), "a")]
    restored = replace(journal(ExecutionState.STARTED), sessions=tuple(told))
    rig = new_rig(restored, tenant_gpus_max=1)
    rig.heartbeat(gpus=2, leases=(LEASE,))
    rig.run("x2", "s2", tenant="a")
    assert rig.one(act.NotifyQueue).reason == "Your team already uses 1 of its 1 GPU."
    rig.run("y1", "t1", tenant="b")
    assert rig.one(act.GrantLease).lease.execution_id == "y1"


def test_dispatch_that_reached_the_daemon_is_handed_to_the_caller_who_asks_again(new_rig: Any) -> None:
    rig = new_rig(journal(ExecutionState.DISPATCHED))
    assert rig.run("x1", "s1", epoch=4) == []
    rig.heartbeat(leases=(LEASE,))
    assert rig.one(act.NotifyLease).lease == LEASE
    assert rig.all(act.GrantLease) == []


def test_dispatch_that_never_reached_the_daemon_is_dispatched_once_more(new_rig: Any) -> None:
    rig = new_rig(journal(ExecutionState.DISPATCHED))
    rig.run("x1", "s1", epoch=4)
    rig.heartbeat()
    rig.now_s += 1
    assert rig.all(act.GrantLease) == []
    rig.heartbeat()
    lease = rig.one(act.GrantLease).lease
    assert (lease.execution_id, lease.lease_id != "old") == ("x1", True)


def test_dispatch_to_a_daemon_that_was_restarted_is_indeterminate(new_rig: Any) -> None:
    rig = new_rig(journal(ExecutionState.DISPATCHED))
    rig.run("x1", "s1", epoch=4)
    rig.heartbeat(incarnation="i2")
    assert rig.one(act.Refuse).reason == "EXECUTION_INDETERMINATE"
    assert rig.state_of("x1") is ExecutionState.INDETERMINATE


def test_lease_on_a_host_that_was_dead_is_lost(new_rig: Any) -> None:
    rig = new_rig(journal(ExecutionState.STARTED, hosts=(HostRecord(HostId("h0"), "unix:/h0", "i1", False),)))
    assert rig.state_of("x1") is ExecutionState.INDETERMINATE
    assert rig.scheduler.pool(rig.now_s).ready


def test_host_that_never_reports_again_is_dead_after_the_limit(new_rig: Any) -> None:
    rig = new_rig(journal(ExecutionState.STARTED))
    rig.pass_time(3)
    assert rig.state_of("x1") is ExecutionState.STARTED
    rig.pass_time(7)
    assert rig.state_of("x1") is ExecutionState.INDETERMINATE


def test_pending_run_waits_for_its_caller_and_is_given_up_without_one(new_rig: Any) -> None:
    rig = new_rig(journal(ExecutionState.PENDING, lease=None), pending_orphan_s=60.0)
    rig.heartbeat()
    assert rig.all(act.GrantLease) == []
    rig.pass_time(59)
    assert rig.state_of("x1") is ExecutionState.PENDING
    rig.pass_time(1)
    record = rig.scheduler.execution(ExecutionId("x1"))
    assert (record.state, record.reason) == (ExecutionState.FAILED, "SCHEDULER_RESTARTED")
    rig.heartbeat()
    rig.run("x1", "s1", epoch=4)
    assert rig.one(act.GrantLease).lease.execution_id == "x1"


def test_pending_run_goes_on_when_its_caller_asks_again(new_rig: Any) -> None:
    rig = new_rig(journal(ExecutionState.PENDING, lease=None))
    rig.heartbeat()
    rig.run("x1", "s1", epoch=4)
    assert rig.one(act.GrantLease).lease.execution_id == "x1"


def test_epochs_and_sums_survive(new_rig: Any) -> None:
    rig = new_rig(journal(ExecutionState.SAVED))
    rig.run("x2", "s1", epoch=3)
    assert rig.one(act.Refuse).reason == "STALE_EPOCH"
    assert rig.scheduler.pool(0).held_gpu_s == 100.0


def test_held_time_of_an_adopted_lease_is_the_daemons_figure(new_rig: Any, worker: Any) -> None:
    rig = new_rig(journal(ExecutionState.STARTED))
    rig.heartbeat(leases=(LEASE,))
    rig.now_s += 1
    rig.report(LEASE, ExecutionState.SAVED, release=True, figures=Figures(gpu_held_s=42.0))
    assert rig.scheduler.pool(rig.now_s).held_gpu_s == 142.0


def test_completed_worker_prepared_again_before_the_restart_is_still_warm(new_rig: Any, worker: Any) -> None:
    rig = new_rig(journal(ExecutionState.SAVED))
    rig.heartbeat(workers=(worker("w1", stage=WorkerStage.HOST_READY, gpus=(0,), prepared="a", execution="x1"),))
    rig.run("x2", "s1", epoch=4, source="b")
    lease = rig.one(act.GrantLease).lease
    assert (lease.worker_id, lease.path) == ("w1", StartPath.WARM)
