"""Requests for runs: who gets a lease, who waits, who joins, who is refused, who leaves."""

from __future__ import annotations

from typing import Any, get_args

from looseleaf.ids import ExecutionId, LeaseId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionState, StartPath
from looseleaf.services.scheduler.core.policy import BY_EVENT


def kinds(actions: list[Any]) -> list[str]:
    return [type(action).__name__ for action in actions]


def test_run_on_a_free_gpu_is_journaled_before_it_is_granted(rig: Any) -> None:
    actions = rig.run("x1")

    assert kinds(actions) == ["JournalSession", "Journal", "GrantLease"]
    record = rig.one(act.Journal).record
    assert record.state is ExecutionState.DISPATCHED
    lease = rig.one(act.GrantLease).lease
    assert record.lease == lease
    assert (lease.host_id, lease.gpu_indices, lease.worker_id, lease.path) == ("h0", (0,), "", StartPath.COLD)
    assert rig.granted(lease) == [act.NotifyLease("r2", lease)]


def test_run_before_any_host_waits_and_says_why(new_rig: Any) -> None:
    rig = new_rig()
    rig.run("x1")

    assert rig.one(act.NotifyQueue) == act.NotifyQueue("r1", 1, "No GPU host is connected.")
    rig.heartbeat(gpus=0)
    assert rig.all(act.NotifyQueue) == []
    rig.heartbeat("h1")
    assert rig.one(act.GrantLease).lease.execution_id == "x1"


def test_two_sessions_on_one_gpu_take_turns(rig: Any) -> None:
    first = rig.lease("x1", "s1")
    rig.run("x2", "s2")
    assert rig.one(act.NotifyQueue) == act.NotifyQueue("r3", 1, "1 GPU busy with another notebook.")

    rig.now_s += 1
    actions = rig.finish(first)

    assert kinds(actions) == ["Journal", "JournalTotals", "Journal", "AnswerReport", "GrantLease"]
    second = rig.one(act.GrantLease).lease
    assert second.execution_id == "x2"
    assert rig.granted(second) == [act.NotifyLease("r3", second)]


def test_queue_moves_up_and_tells_only_what_changed(rig: Any) -> None:
    first = rig.lease("x1", "s1")
    rig.run("x2", "s2")
    rig.run("x3", "s3")
    assert rig.all(act.NotifyQueue) == [act.NotifyQueue("r4", 2, "1 GPU busy with another notebook.")]

    rig.finish(first)

    assert rig.one(act.GrantLease).lease.execution_id == "x2"
    assert rig.all(act.NotifyQueue) == [act.NotifyQueue("r4", 1, "1 GPU busy with another notebook.")]


def test_second_cell_of_a_session_waits_though_a_gpu_is_free(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat(gpus=2)
    first = rig.lease("x1", "s1")
    rig.run("x2", "s1")
    assert rig.one(act.NotifyQueue).reason == "This notebook's previous GPU cell has not ended."

    rig.finish(first)
    assert rig.one(act.GrantLease).lease.execution_id == "x2"


def test_batch_run_waits_below_interactive_ones(rig: Any) -> None:
    first = rig.lease("x1", "s1")
    rig.run("x2", "s2", priority="batch")
    rig.now_s += 2
    rig.run("x3", "s3")
    rig.finish(first)
    assert rig.one(act.GrantLease).lease.execution_id == "x3"


def test_batch_run_that_waited_long_goes_before_a_new_interactive_one(rig: Any) -> None:
    first = rig.lease("x1", "s1")
    rig.run("x2", "s2", priority="batch")
    for _ in range(60):
        rig.now_s += 2.5
        rig.heartbeat(leases=(first,))
    rig.run("x3", "s3")
    rig.finish(first)
    assert rig.one(act.GrantLease).lease.execution_id == "x2"


def test_unknown_priority_is_refused(rig: Any) -> None:
    rig.run("x1", priority="urgent")
    assert rig.one(act.Refuse).reason == "PRIORITY_UNKNOWN"
    assert rig.scheduler.execution(ExecutionId("x1")) is None


def test_full_queue_refuses_and_journals_nothing(new_rig: Any) -> None:
    rig = new_rig(run_queue_max=2)
    rig.run("x1", "s1")
    rig.run("x2", "s2")
    assert kinds(rig.run("x3", "s2")) == ["Refuse"]
    refusal = rig.one(act.Refuse)
    assert (refusal.code, refusal.reason, refusal.fields) == ("RESOURCE_EXHAUSTED", "RUN_QUEUE_FULL", (("limit", 2),))


def test_more_gpus_than_any_host_has_are_refused_with_both_numbers(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0", gpus=2)
    rig.heartbeat("h1", gpus=4)
    assert kinds(rig.run("x1", gpus=8)) == ["JournalSession", "Refuse"]
    refusal = rig.one(act.Refuse)
    assert refusal.reason == "NEVER_FITS"
    assert dict(refusal.fields) == {"asked_gpus": 8, "largest_host_gpus": 4}
    assert "8" in refusal.message
    assert "4" in refusal.message


def test_waiting_run_that_can_never_fit_is_refused_when_hosts_are_known(new_rig: Any) -> None:
    rig = new_rig()
    rig.run("x1", gpus=2)
    rig.heartbeat(gpus=1)
    assert rig.one(act.Refuse).reason == "NEVER_FITS"
    assert rig.state_of("x1") is ExecutionState.FAILED


def test_closure_larger_than_gpu_memory_is_refused_before_forking(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat(gpus=2, gpu_memory_bytes=1000)
    rig.run("x1", gpus=1, device_bytes=1500)
    assert dict(rig.one(act.Refuse).fields) == {"asked_bytes": 1500, "largest_bytes": 1000}
    rig.run("x2", gpus=2, device_bytes=1500)
    assert rig.one(act.GrantLease).lease.gpu_indices == (0, 1)


def test_same_execution_asked_twice_while_queued_gets_one_lease_for_both(rig: Any) -> None:
    blocker = rig.lease("x0", "s0")
    rig.run("x1", "s1")
    rig.run("x1", "s1")
    assert rig.one(act.NotifyQueue).request_id == "r4"
    rig.finish(blocker)
    lease = rig.one(act.GrantLease).lease
    assert rig.granted(lease) == [act.NotifyLease("r3", lease), act.NotifyLease("r4", lease)]


def test_same_execution_asked_again_after_its_lease_gets_the_same_lease(rig: Any) -> None:
    lease = rig.lease("x1")
    assert kinds(rig.run("x1")) == ["NotifyLease"]
    assert rig.one(act.NotifyLease).lease == lease
    rig.report(lease, ExecutionState.STARTED)
    rig.run("x1")
    assert rig.one(act.NotifyLease).lease == lease


def test_execution_that_ended_is_not_dispatched_again(rig: Any) -> None:
    rig.finish(rig.lease("x1"))
    assert kinds(rig.run("x1")) == ["Refuse"]
    assert rig.one(act.Refuse).reason == "EXECUTION_ENDED"
    assert dict(rig.one(act.Refuse).fields)["state"] == "SAVED"


def test_execution_id_of_another_session_is_refused(rig: Any) -> None:
    rig.lease("x1", "s1")
    rig.run("x1", "s2")
    assert rig.one(act.Refuse).reason == "EXECUTION_ID_REUSED"


def test_old_epoch_is_refused(rig: Any) -> None:
    rig.finish(rig.lease("x1", epoch=3))
    rig.run("x2", epoch=2)
    refusal = rig.one(act.Refuse)
    assert refusal.reason == "STALE_EPOCH"
    assert dict(refusal.fields) == {"epoch": 2, "current_epoch": 3}


def test_newer_epoch_ends_what_the_old_owner_waits_for(rig: Any) -> None:
    blocker = rig.lease("x0", "s0")
    rig.run("x1", "s1", epoch=1)
    rig.run("x2", "s1", epoch=2)
    assert rig.one(act.Refuse).request_id == "r3"
    assert rig.one(act.Refuse).reason == "EXECUTION_FAILED"
    assert dict(rig.one(act.Refuse).fields)["why"] == "STALE_EPOCH"
    rig.finish(blocker)
    assert rig.one(act.GrantLease).lease.execution_id == "x2"


def test_newer_epoch_takes_back_a_lease_that_was_not_used(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat(gpus=2)
    old = rig.lease("x1", epoch=1)
    rig.run("x2", epoch=2)
    assert rig.one(act.RevokeLease).lease_id == old.lease_id
    assert rig.one(act.GrantLease).lease.gpu_indices == (1,)
    rig.send(ev.LeaseRevoked(old.lease_id, in_use=False))
    assert rig.state_of("x1") is ExecutionState.FAILED


def test_newer_epoch_fences_a_running_cell_but_its_gpu_stays_taken(rig: Any) -> None:
    old = rig.lease("x1", epoch=1)
    rig.report(old, ExecutionState.STARTED)
    rig.run("x2", epoch=2)
    assert rig.all(act.GrantLease) == []
    rig.heartbeat(leases=(old,))
    assert rig.one(act.AnswerHeartbeat).unknown == (old.lease_id,)
    rig.report(old, ExecutionState.FAILED, release=True, reason="STALE_EPOCH")
    assert rig.one(act.GrantLease).lease.execution_id == "x2"


def test_cancel_of_a_waiting_run_removes_it(rig: Any) -> None:
    blocker = rig.lease("x0", "s0")
    rig.run("x1", "s1")
    rig.run("x2", "s2")
    rig.send(ev.RunCancelled("r3", ExecutionId("x1")))
    assert rig.one(act.NotifyQueue) == act.NotifyQueue("r4", 1, "1 GPU busy with another notebook.")
    assert rig.state_of("x1") is ExecutionState.FAILED
    rig.finish(blocker)
    assert rig.one(act.GrantLease).lease.execution_id == "x2"


def test_cancelled_run_may_be_asked_for_again_since_it_never_started(rig: Any) -> None:
    rig.lease("x0", "s0")
    rig.run("x1", "s1")
    rig.send(ev.RunCancelled("r3", ExecutionId("x1")))
    rig.run("x1", "s1")
    assert rig.one(act.NotifyQueue).position == 1
    assert rig.state_of("x1") is ExecutionState.PENDING


def test_cancel_of_one_of_two_callers_keeps_the_run(rig: Any) -> None:
    rig.lease("x0", "s0")
    rig.run("x1", "s1")
    rig.run("x1", "s1")
    rig.send(ev.RunCancelled("r3", ExecutionId("x1")))
    assert rig.state_of("x1") is ExecutionState.PENDING


def test_cancel_during_the_grant_takes_the_lease_back_after_the_grant_was_answered(rig: Any) -> None:
    rig.run("x1")
    lease = rig.one(act.GrantLease).lease
    assert rig.all(act.RevokeLease) == []
    rig.send(ev.RunCancelled("r2", ExecutionId("x1")))
    assert rig.all(act.RevokeLease) == []
    rig.granted(lease)
    assert rig.all(act.NotifyLease) == []
    assert rig.one(act.RevokeLease).lease_id == lease.lease_id
    rig.run("x2", "s2")
    assert rig.all(act.GrantLease) == []
    rig.send(ev.LeaseRevoked(lease.lease_id, in_use=False))
    assert rig.one(act.GrantLease).lease.execution_id == "x2"


def test_cancel_after_the_lease_was_handed_out_takes_it_back_unless_used(rig: Any) -> None:
    lease = rig.lease("x1")
    rig.send(ev.RunCancelled("r2", ExecutionId("x1")))
    assert rig.one(act.RevokeLease).lease_id == lease.lease_id
    rig.send(ev.LeaseRevoked(lease.lease_id, in_use=True))
    assert rig.state_of("x1") is ExecutionState.STARTED
    rig.heartbeat(leases=(lease,))
    assert rig.one(act.AnswerHeartbeat).renewed == (lease.lease_id,)


def test_run_whose_lease_is_being_taken_back_is_not_started_again(rig: Any) -> None:
    rig.lease("x1")
    rig.send(ev.RunCancelled("r2", ExecutionId("x1")))
    rig.run("x1")
    refusal = rig.one(act.Refuse)
    assert (refusal.reason, dict(refusal.fields)["why"]) == ("EXECUTION_FAILED", "LEASE_WITHDRAWN")
    assert "being taken back" in refusal.message


def test_run_that_ends_while_room_is_made_gives_its_reservation_back(rig: Any) -> None:
    rig.finish(rig.lease("x0", "s0"), worker="w0")
    rig.run("x1", "s1")
    order = rig.one(act.EvictWorker)
    rig.send(ev.ExecutionReported("r", ExecutionId("x1"), LeaseId(""), ExecutionState.FAILED, "INTERRUPTED"))
    rig.send(ev.EvictionEnded(order.host_id, order.worker_id, order.lease_id, evicted=True))
    assert rig.scheduler.pool(rig.now_s).hosts[0].leases == ()


def test_cancel_of_somebody_unknown_changes_nothing(rig: Any) -> None:
    rig.lease("x1")
    assert rig.send(ev.RunCancelled("r99", ExecutionId("x1"))) == []
    assert rig.send(ev.RunCancelled("r99", ExecutionId("x9"))) == []


def test_every_kind_of_event_has_its_function() -> None:
    assert set(get_args(ev.Event)) == set(BY_EVENT)
