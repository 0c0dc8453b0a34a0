"""Renewal, silence, new incarnations, and leases that the two sides see differently."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from looseleaf.ids import ExecutionId, HostId, LeaseId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionState, HostRecord


def test_heartbeat_renews_a_known_lease(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.heartbeat(leases=(lease,))
    assert rig.last == [act.AnswerHeartbeat("r3", (lease.lease_id,), ())]


def test_new_host_is_journaled_once(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat()
    assert rig.one(act.JournalHost).record == HostRecord(HostId("h0"), "unix:/h0", "i1", True)
    rig.heartbeat()
    assert rig.all(act.JournalHost) == []


def test_lease_renewed_with_old_epoch_is_refused(rig: Any) -> None:
    lease = rig.lease("x1", epoch=1)
    rig.report(lease, ExecutionState.STARTED)
    rig.prepare("s1", epoch=2)
    rig.heartbeat(leases=(lease,))
    assert rig.one(act.AnswerHeartbeat).unknown == (lease.lease_id,)


def test_lease_missing_once_may_have_crossed_with_the_grant(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.heartbeat()
    assert rig.state_of("x1") is ExecutionState.DISPATCHED
    rig.heartbeat(leases=(lease,))
    rig.heartbeat()
    assert rig.state_of("x1") is ExecutionState.DISPATCHED


@pytest.mark.parametrize(("reached", "end", "reason"), [
    (ExecutionState.DISPATCHED, ExecutionState.FAILED, "LEASE_EXPIRED"),
    (ExecutionState.STARTED, ExecutionState.INDETERMINATE, "LEASE_VANISHED"),
    (ExecutionState.FINISHED, ExecutionState.FAILED, "SAVE_LOST"),
])
def test_lease_that_the_daemon_no_longer_has_ends(
    rig: Any, reached: ExecutionState, end: ExecutionState, reason: str,
) -> None:
    lease = rig.lease("x1")
    if reached is not ExecutionState.DISPATCHED:
        rig.report(lease, reached)
    rig.run("x2", "s2")
    rig.heartbeat()
    rig.heartbeat()
    assert rig.state_of("x1") is reached
    rig.now_s += 1
    rig.heartbeat()
    record = rig.scheduler.execution(ExecutionId("x1"))
    assert (record.state, record.reason) == (end, reason)
    assert rig.one(act.GrantLease).lease.execution_id == "x2"


@pytest.mark.parametrize(("reached", "end"), [
    (ExecutionState.DISPATCHED, ExecutionState.INDETERMINATE),
    (ExecutionState.STARTED, ExecutionState.INDETERMINATE),
    (ExecutionState.FINISHED, ExecutionState.FAILED),
])
def test_dead_host_ends_its_leases(rig: Any, reached: ExecutionState, end: ExecutionState) -> None:
    lease = rig.lease("x1")
    if reached is not ExecutionState.DISPATCHED:
        rig.report(lease, reached)
    rig.pass_time(9.9)
    assert rig.all(act.MarkHostDead) == []
    rig.pass_time(0.2)
    assert rig.one(act.MarkHostDead) == act.MarkHostDead(HostId("h0"), "HOST_LOST")
    assert rig.one(act.JournalHost).record.alive is False
    assert rig.state_of("x1") is end
    assert rig.scheduler.pool(rig.now_s).hosts[0].leases == ()
    rig.run("x1")
    assert rig.one(act.Refuse).reason in ("EXECUTION_INDETERMINATE", "EXECUTION_FAILED")


def test_host_that_dies_during_the_grant_gives_the_run_to_another(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0")
    rig.run("x1")
    lost = rig.one(act.GrantLease).lease
    rig.now_s += 8
    rig.heartbeat("h1")
    rig.pass_time(2.1)
    lease = rig.one(act.GrantLease).lease
    assert lease.host_id == "h1"
    assert rig.granted(lost) == []
    rig.granted(lease)
    assert rig.one(act.NotifyLease).lease == lease


def test_new_incarnation_loses_the_old_ones_leases(rig: Any, worker: Any) -> None:
    lease = rig.lease("x1")
    rig.report(lease, ExecutionState.STARTED)
    rig.heartbeat(workers=(worker("w1", gpus=(0,)),), leases=(lease,))
    rig.run("x2", "s2")
    rig.heartbeat(incarnation="i2")
    assert rig.one(act.MarkHostDead).reason == "DAEMON_RESTARTED"
    assert rig.state_of("x1") is ExecutionState.INDETERMINATE
    assert rig.one(act.GrantLease).lease.execution_id == "x2"
    assert rig.one(act.JournalHost).record.incarnation == "i2"


def test_new_incarnation_that_has_adopted_a_cell_keeps_its_lease(rig: Any, worker: Any) -> None:
    lease = rig.lease("x1")
    rig.report(lease, ExecutionState.STARTED)
    running = worker("w1", stage=worker("w").stage.RUNNING, gpus=(0,), execution="x1")
    rig.heartbeat(workers=(running,), leases=(lease,))
    rig.heartbeat(incarnation="i2", workers=(running,), leases=(lease,))
    assert rig.state_of("x1") is ExecutionState.STARTED
    assert rig.one(act.AnswerHeartbeat).renewed == (lease.lease_id,)
    assert rig.all(act.Journal) == []
    rig.run("x2", "s2")
    assert rig.all(act.GrantLease) == []
    rig.report(lease, ExecutionState.SAVED, release=True)
    assert rig.state_of("x1") is ExecutionState.SAVED


def test_new_incarnation_with_a_lease_and_no_worker_has_lost_the_cell(rig: Any, worker: Any) -> None:
    lease = rig.lease("x1")
    rig.report(lease, ExecutionState.STARTED)
    rig.heartbeat(incarnation="i2", workers=(worker("w1", gpus=(0,)),), leases=(lease,))
    assert rig.state_of("x1") is ExecutionState.INDETERMINATE


def test_superseded_incarnation_is_refused(rig: Any) -> None:
    rig.heartbeat(incarnation="i2")
    rig.heartbeat(incarnation="i1")
    assert rig.one(act.Refuse).reason == "STALE_INCARNATION"


def test_host_that_comes_back_with_its_running_cell_is_believed(rig: Any, worker: Any) -> None:
    lease = rig.lease("x1")
    rig.report(lease, ExecutionState.STARTED)
    rig.pass_time(11)
    assert rig.state_of("x1") is ExecutionState.INDETERMINATE
    from_host = worker("w1", stage=worker("w").stage.RUNNING, gpus=(0,), execution="x1")
    rig.heartbeat(workers=(from_host,), leases=(lease,))
    assert rig.one(act.AnswerHeartbeat).renewed == (lease.lease_id,)
    assert rig.state_of("x1") is ExecutionState.STARTED
    rig.run("x2", "s2")
    assert rig.all(act.GrantLease) == []
    rig.report(lease, ExecutionState.SAVED, release=True)
    assert rig.state_of("x1") is ExecutionState.SAVED
    assert rig.one(act.EvictWorker).worker_id == "w1"


def test_report_after_the_host_was_given_up_is_believed(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.report(lease, ExecutionState.STARTED)
    rig.pass_time(11)
    rig.report(lease, ExecutionState.SAVED, release=True)
    assert rig.one(act.AnswerReport)
    assert rig.state_of("x1") is ExecutionState.SAVED


def test_host_that_comes_back_with_an_unused_lease_gives_it_up(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.pass_time(11)
    rig.heartbeat(leases=(lease,))
    assert rig.one(act.AnswerHeartbeat).unknown == (lease.lease_id,)
    assert rig.one(act.RevokeLease).lease_id == lease.lease_id
    rig.send(ev.LeaseRevoked(lease.lease_id, in_use=False))
    assert rig.state_of("x1") is ExecutionState.INDETERMINATE


def test_revocation_answered_by_a_successor_of_the_daemon_proves_nothing(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.send(ev.RunCancelled("r2", ExecutionId("x1")))
    rig.now_s += 4
    rig.send(ev.LeaseRevoked(lease.lease_id, in_use=False))
    assert rig.state_of("x1") is ExecutionState.DISPATCHED
    rig.heartbeat(incarnation="i2")
    assert rig.state_of("x1") is ExecutionState.INDETERMINATE


def test_revocation_answered_by_a_host_that_was_silent_is_asked_again_when_it_is_heard(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.send(ev.RunCancelled("r2", ExecutionId("x1")))
    rig.now_s += 4
    rig.send(ev.LeaseRevoked(lease.lease_id, in_use=False))
    rig.heartbeat()
    rig.pass_time(0)
    assert rig.one(act.RevokeLease).lease_id == lease.lease_id
    rig.send(ev.LeaseRevoked(lease.lease_id, in_use=False))
    assert rig.state_of("x1") is ExecutionState.FAILED


def test_cell_under_a_lease_that_was_given_up_and_is_in_use_has_started(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.pass_time(11)
    assert rig.state_of("x1") is ExecutionState.INDETERMINATE
    rig.heartbeat(leases=(lease,))
    rig.send(ev.LeaseRevoked(lease.lease_id, in_use=True))
    assert rig.state_of("x1") is ExecutionState.STARTED
    rig.heartbeat(leases=(lease,))
    assert rig.one(act.AnswerHeartbeat).renewed == (lease.lease_id,)


def test_lease_that_nobody_knows_occupies_its_gpu_and_is_taken_back(rig: Any) -> None:
    known = rig.lease("x1")
    rig.finish(known)
    stray = replace(known, lease_id=LeaseId("l77"), execution_id=ExecutionId("x77"))
    rig.heartbeat(leases=(stray,))
    assert rig.one(act.AnswerHeartbeat).unknown == ("l77",)
    assert rig.one(act.RevokeLease).lease_id == "l77"
    rig.run("x2", "s2")
    assert rig.all(act.GrantLease) == []
    rig.send(ev.LeaseRevoked(LeaseId("l77"), in_use=False))
    assert rig.one(act.GrantLease).lease.execution_id == "x2"


def test_heartbeat_that_still_lists_a_released_lease_does_not_occupy(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.finish(lease)
    rig.heartbeat(leases=(lease,))
    assert rig.one(act.AnswerHeartbeat).unknown == (lease.lease_id,)
    rig.run("x2", "s2")
    assert rig.one(act.GrantLease).lease.execution_id == "x2"


def test_long_dead_host_is_forgotten(new_rig: Any) -> None:
    rig = new_rig(host_forget_s=60.0)
    rig.heartbeat()
    rig.pass_time(11)
    rig.pass_time(50)
    assert rig.one(act.ForgetHost).host_id == "h0"
    assert rig.scheduler.pool(rig.now_s).hosts == ()


def test_dead_big_host_still_counts_for_what_can_fit(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0", gpus=4)
    rig.pass_time(11)
    rig.heartbeat("h1", gpus=1)
    rig.run("x1", gpus=4)
    assert rig.one(act.NotifyQueue).position == 1


def test_host_beyond_the_bound_is_left_out(new_rig: Any) -> None:
    rig = new_rig(hosts_known_max=1)
    rig.heartbeat("h0")
    rig.heartbeat("h1")
    assert rig.one(act.Refuse).reason == "HOSTS_FULL"


def test_liveness_words_follow_the_heartbeat_age(rig: Any) -> None:
    seen = []
    for _ in range(3):
        seen.append(rig.scheduler.pool(rig.now_s).hosts[0].liveness)
        rig.now_s += 4
        rig.send(ev.Tick())
    rig.pass_time(0)
    seen.append(rig.scheduler.pool(rig.now_s).hosts[0].liveness)
    assert seen == ["alive", "suspect", "suspect", "dead"]


def test_silence_while_the_scheduler_stood_still_ends_nothing(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.now_s += 40
    rig.send(ev.Tick(overslept_s=40.0))
    assert rig.all(act.MarkHostDead) == []
    assert rig.all(act.RevokeLease) == []
    assert rig.state_of("x1") is ExecutionState.DISPATCHED
    assert rig.scheduler.pool(rig.now_s).hosts[0].liveness == "alive"
    rig.heartbeat(leases=(lease,))
    assert rig.one(act.AnswerHeartbeat).renewed == (lease.lease_id,)
    rig.pass_time(9.9)
    rig.pass_time(0.2)
    assert rig.one(act.MarkHostDead).host_id == "h0"


def test_what_may_be_tried_again_is_tried_with_its_heartbeat_also_if_something_else_is_due_later(
    new_rig: Any, worker: Any,
) -> None:
    rig = new_rig()
    rig.heartbeat(gpus=2)
    leases = [rig.lease(f"x{number}", f"s{number}") for number in range(2)]
    for number, lease in enumerate(leases):
        rig.finish(lease, worker=f"w{number}")
    warm = tuple(worker(f"w{number}", f"s{number}", gpus=(number,)) for number in range(2))
    for _ in range(3):
        rig.heartbeat(gpus=2, workers=warm)
    rig.run("x9", "s9")
    sooner = rig.one(act.EvictWorker)
    rig.send(ev.EvictionEnded(sooner.host_id, sooner.worker_id, sooner.lease_id, False))
    later = rig.one(act.EvictWorker)
    assert later.worker_id != sooner.worker_id
    rig.heartbeat(gpus=2, workers=warm)
    rig.send(ev.EvictionEnded(later.host_id, later.worker_id, later.lease_id, False))
    assert rig.all(act.EvictWorker) == []
    rig.heartbeat(gpus=2, workers=warm)
    assert rig.one(act.EvictWorker).worker_id == sooner.worker_id
