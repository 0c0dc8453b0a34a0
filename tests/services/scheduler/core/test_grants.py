"""Leases from grant to end, what daemons report of them, and the time that they held."""

from __future__ import annotations

from typing import Any

import pytest

from looseleaf.ids import ExecutionId, LeaseId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionState, Figures, StartPath, WorkerStage


def kinds(actions: list[Any]) -> list[str]:
    return [type(action).__name__ for action in actions]


def test_refused_grant_goes_to_the_next_host(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0")
    rig.heartbeat("h1")
    rig.run("x1")
    first = rig.one(act.GrantLease).lease
    assert first.host_id == "h0"
    rig.send(ev.GrantFailed(first.lease_id, True, "GPU_BUSY"))
    second = rig.one(act.GrantLease).lease
    assert second.host_id == "h1"
    assert second.lease_id != first.lease_id


def test_refused_grant_on_the_only_host_is_tried_again_with_a_later_heartbeat(rig: Any) -> None:
    rig.run("x1")
    rig.send(ev.GrantFailed(rig.one(act.GrantLease).lease.lease_id, True, "GPU_BUSY"))
    assert rig.all(act.GrantLease) == []
    assert rig.one(act.NotifyQueue).position == 1
    rig.heartbeat()
    assert rig.all(act.GrantLease) == []
    rig.heartbeat()
    assert rig.one(act.GrantLease).lease.execution_id == "x1"


def test_unanswered_grant_goes_elsewhere_and_its_lease_is_never_handed_out(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0")
    rig.heartbeat("h1")
    rig.run("x1")
    lost = rig.one(act.GrantLease).lease
    rig.send(ev.GrantFailed(lost.lease_id, False, "DAEMON_TIMEOUT"))
    assert rig.one(act.RevokeLease).lease_id == lost.lease_id
    second = rig.one(act.GrantLease).lease
    assert second.host_id == "h1"
    rig.granted(second)
    assert rig.one(act.NotifyLease).lease == second
    # The daemon had it after all: it learns that nothing may start under it.
    rig.heartbeat("h0", leases=(lost,))
    assert rig.one(act.AnswerHeartbeat).unknown == (lost.lease_id,)
    rig.send(ev.LeaseRevoked(lost.lease_id, in_use=False))
    assert rig.state_of("x1") is ExecutionState.DISPATCHED


def test_daemons_that_refuse_for_ever_end_in_an_error(new_rig: Any) -> None:
    rig = new_rig(grant_refusals_max=3)
    rig.heartbeat()
    rig.run("x1")
    for _ in range(3):
        rig.send(ev.GrantFailed(rig.one(act.GrantLease).lease.lease_id, True, "BROKEN", "the disk is full"))
        if rig.all(act.Refuse):
            break
        rig.heartbeat()
        rig.heartbeat()
    assert rig.one(act.Refuse).reason == "GRANTS_REFUSED"
    assert "the disk is full" in rig.one(act.Refuse).message
    assert rig.state_of("x1") is ExecutionState.FAILED


def test_daemon_that_knows_a_newer_epoch_refuses_the_caller(rig: Any) -> None:
    rig.run("x1")
    rig.send(ev.GrantFailed(rig.one(act.GrantLease).lease.lease_id, True, "STALE_EPOCH"))
    assert rig.one(act.Refuse).reason == "STALE_EPOCH"


def test_lease_that_nobody_starts_is_revoked(rig: Any) -> None:
    lease = rig.lease("x1")
    for _ in range(14):
        rig.now_s += 2
        rig.heartbeat(leases=(lease,))
        assert rig.pass_time(0) == []
    rig.now_s += 2
    rig.heartbeat(leases=(lease,))
    rig.pass_time(0)
    assert rig.one(act.RevokeLease).lease_id == lease.lease_id
    rig.send(ev.LeaseRevoked(lease.lease_id, in_use=False))
    record = rig.scheduler.execution(ExecutionId("x1"))
    assert (record.state, record.reason) == (ExecutionState.FAILED, "START_TIMEOUT")
    rig.run("x1")
    assert rig.one(act.Refuse).reason == "EXECUTION_FAILED"


def test_unanswered_revocation_is_asked_again(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.send(ev.RunCancelled("r2", ExecutionId("x1")))
    rig.send(ev.RevokeUnanswered(lease.lease_id))
    rig.pass_time(0.5)
    assert rig.one(act.RevokeLease).lease_id == lease.lease_id
    assert rig.pass_time(0.5) == []
    rig.pass_time(0.5)
    assert rig.one(act.RevokeLease).lease_id == lease.lease_id


def test_report_moves_the_journal_forward_and_never_back(rig: Any) -> None:
    lease = rig.lease("x1")
    assert kinds(rig.report(lease, ExecutionState.FINISHED)) == ["Journal", "AnswerReport"]
    assert kinds(rig.report(lease, ExecutionState.STARTED)) == ["AnswerReport"]
    assert rig.state_of("x1") is ExecutionState.FINISHED
    figures = Figures(run_s=1.5, gpu_held_s=2.0)
    rig.report(lease, ExecutionState.SAVED, release=True, figures=figures)
    rig.report(lease, ExecutionState.FAILED, release=True)
    record = rig.scheduler.execution(ExecutionId("x1"))
    assert (record.state, record.figures) == (ExecutionState.SAVED, figures)


def test_report_of_an_unknown_execution_or_state_is_refused(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.send(ev.ExecutionReported("r", ExecutionId("x9"), LeaseId("l9"), ExecutionState.STARTED))
    assert rig.one(act.Refuse).reason == "EXECUTION_UNKNOWN"
    rig.report(lease, ExecutionState.PENDING)
    assert rig.one(act.Refuse).reason == "STATE_NOT_REPORTABLE"


def test_report_under_a_superseded_lease_frees_it_and_nothing_else(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0")
    rig.heartbeat("h1")
    rig.run("x1")
    lost = rig.one(act.GrantLease).lease
    rig.send(ev.GrantFailed(lost.lease_id, False, "DAEMON_TIMEOUT"))
    second = rig.one(act.GrantLease).lease
    rig.granted(second)
    rig.report(lost, ExecutionState.FAILED, release=True)
    assert rig.one(act.Refuse).reason == "LEASE_SUPERSEDED"
    assert rig.state_of("x1") is ExecutionState.DISPATCHED
    assert [len(host.leases) for host in rig.scheduler.pool(rig.now_s).hosts] == [0, 1]


def test_caller_that_does_not_want_its_lease_gives_it_back_by_a_report(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.run("x2", "s2")
    rig.report(lease, ExecutionState.FAILED, release=True, reason="INTERRUPTED")
    assert rig.one(act.GrantLease).lease.execution_id == "x2"


def test_held_time_counts_from_grant_to_release_times_the_gpus(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat(gpus=2)
    lease = rig.lease("x1", gpus=2)
    rig.now_s += 3
    assert rig.scheduler.pool(rig.now_s).held_gpu_s == 6
    rig.finish(lease)
    assert rig.one(act.JournalTotals).totals.held_gpu_s == 6
    rig.now_s += 10
    assert rig.scheduler.pool(rig.now_s).held_gpu_s == 6
    assert rig.scheduler.execution(ExecutionId("x1")).held_gpu_s == 6


def test_ended_executions_beyond_the_bound_are_forgotten_oldest_first(new_rig: Any) -> None:
    rig = new_rig(journal_records_max=2)
    rig.heartbeat()
    for number in range(3):
        rig.finish(rig.lease(f"x{number}"))
    assert rig.one(act.ForgetExecution).execution_id == "x0"
    assert rig.scheduler.execution(ExecutionId("x0")) is None
    assert rig.state_of("x2") is ExecutionState.SAVED


@pytest.mark.parametrize(("stage", "state"), [
    (WorkerStage.RUNNING, ExecutionState.STARTED),
    (WorkerStage.SAVING, ExecutionState.FINISHED),
])
def test_lost_start_report_is_made_good_by_a_heartbeat(
    rig: Any, worker: Any, stage: WorkerStage, state: ExecutionState,
) -> None:
    lease = rig.lease("x1")
    rig.heartbeat(leases=(lease,), workers=(worker("w1", stage=stage, gpus=(0,), execution="x1"),))
    assert rig.state_of("x1") is state


def test_release_without_an_end_is_refused_and_keeps_the_lease(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.report(lease, ExecutionState.FINISHED, release=True)
    assert rig.one(act.Refuse).reason == "STATE_NOT_REPORTABLE"
    assert rig.scheduler.pool(rig.now_s).hosts[0].leases == (lease,)


def test_worker_of_a_lease_given_back_unused_has_run_nothing(rig: Any, worker: Any) -> None:
    ready = worker("w1", stage=WorkerStage.HOST_READY, prepared="a")
    rig.heartbeat(workers=(ready,))
    lease = rig.lease("x1", source="a")
    assert lease.worker_id == "w1"
    rig.report(lease, ExecutionState.FAILED, release=True, reason="INTERRUPTED")
    [seen] = rig.scheduler.pool(rig.now_s).hosts[0].workers
    assert (seen.stage, seen.gpu_indices) == (WorkerStage.HOST_READY, ())
    rig.run("x2", source="b", names=("other",))
    assert rig.one(act.GrantLease).lease.path is StartPath.COLD


def test_held_time_of_a_lease_that_was_given_up_is_counted_once(rig: Any, worker: Any) -> None:
    lease = rig.lease("x1")
    rig.report(lease, ExecutionState.STARTED)
    rig.pass_time(11)
    rig.now_s += 1
    running = worker("w1", stage=WorkerStage.RUNNING, gpus=(0,), execution="x1")
    rig.heartbeat(workers=(running,), leases=(lease,))
    rig.now_s += 8
    rig.report(lease, ExecutionState.SAVED, release=True, figures=Figures(gpu_held_s=20.0))
    assert rig.scheduler.pool(rig.now_s).held_gpu_s == 20.0
    rig.report(lease, ExecutionState.SAVED, release=True, figures=Figures(gpu_held_s=20.0))
    assert rig.scheduler.pool(rig.now_s).held_gpu_s == 20.0
    assert rig.scheduler.execution(ExecutionId("x1")).held_gpu_s == 20.0


def test_held_time_beyond_the_loss_of_its_host_comes_with_the_late_report(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.report(lease, ExecutionState.STARTED)
    rig.pass_time(11)
    rig.report(lease, ExecutionState.SAVED, release=True, figures=Figures(gpu_held_s=30.0))
    assert rig.scheduler.pool(rig.now_s).held_gpu_s == 30.0


def test_next_cell_of_a_session_whose_lease_is_taken_back_starts_elsewhere_at_once(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat(gpus=2)
    first = rig.lease("x1", "s1")
    [asked] = rig.scheduler.state.leases.on_host(first.host_id)[0].recipients
    rig.run("x2", "s1")
    assert rig.all(act.GrantLease) == []
    rig.send(ev.RunCancelled(asked, first.execution_id))
    assert rig.one(act.RevokeLease).lease_id == first.lease_id
    granted = rig.one(act.GrantLease).lease
    assert (granted.execution_id, granted.gpu_indices) == ("x2", (1,))
