"""Variables that no version has: their worker is kept for a time, cells that need them run there or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from looseleaf.ids import Epoch, ExecutionId, HostId, SessionId, Version, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import (
    EndedHolder,
    ExecutionState,
    Hold,
    HostReport,
    Need,
    RecipeFacts,
    StartPath,
    WorkerReport,
    WorkerStage,
)

KEPT_S = 60.0


def holding(
    worker: str = "w1", session: str = "s1", *, left_s: float = KEPT_S, gpus: tuple[int, ...] = (0,), epoch: int = 1,
    stage: WorkerStage = WorkerStage.COMPLETED,
) -> WorkerReport:
    hold = Hold(("it",), left_s, Epoch(epoch))
    return WorkerReport(WorkerId(worker), SessionId(session), stage, Version(1), "", gpus, hold=hold)


def cell_that_leaves_it(rig: Any, session: str = "s1", worker: str = "w1") -> None:
    """A cell ran and ended; the variable `it` lives in its worker."""
    lease = rig.lease(f"x-{session}", session)
    rig.report(lease, ExecutionState.STARTED)
    rig.report(lease, ExecutionState.SAVED, release=True, worker=holding(worker, session, gpus=lease.gpu_indices))


def run_with_need(
    rig: Any, execution: str, worker: str = "w1", session: str = "s1", *, gpus: int = 1, epoch: int = 1,
    device_bytes: int = 0,
) -> list[act.Action]:
    facts = RecipeFacts(f"hash-{execution}", Version(2), frozenset({"it"}), frozenset(), gpus, device_bytes)
    found: list[act.Action] = rig.send(ev.RunRequested(
        rig.new_request(), ExecutionId(execution), SessionId(session), Epoch(epoch), facts, "interactive",
        Need(WorkerId(worker), ("it",))))
    return found


def test_another_session_waits_for_the_holders_time_and_no_longer(rig: Any) -> None:
    cell_that_leaves_it(rig)
    rig.run("x2", "s2")
    assert not rig.all(act.EvictWorker) and "cannot be saved, for at most 60 s" in rig.one(act.NotifyQueue).reason
    for second in range(1, 60):
        rig.now_s = float(second)
        rig.heartbeat(workers=(holding(left_s=KEPT_S - second),))
        assert not rig.all(act.EvictWorker)
    assert [order.worker_id for order in rig.pass_time(1.0) if isinstance(order, act.EvictWorker)] == ["w1"]


def test_time_that_is_over_between_heartbeats_wakes_the_queue(rig: Any) -> None:
    cell_that_leaves_it(rig)
    rig.now_s = 59.5
    rig.heartbeat(workers=(holding(left_s=0.5),))
    rig.run("x2", "s2")
    assert not rig.all(act.EvictWorker)
    rig.pass_time(0.5)
    assert rig.one(act.EvictWorker).worker_id == "w1"


def test_a_free_gpu_is_taken_before_anybody_waits(rig: Any) -> None:
    rig.heartbeat("h1")
    cell_that_leaves_it(rig)
    rig.run("x2", "s2")
    assert rig.one(act.GrantLease).lease.host_id == "h1"


def test_holder_whose_time_is_over_goes_last_of_the_completed_workers(new_rig: Any, worker: Any) -> None:
    rig = new_rig()
    rig.heartbeat(gpus=2, workers=(holding("w1", left_s=0.0), worker("w2", "s2", gpus=(1,), resident_bytes=1 << 40)))
    rig.run("x3", "s3")
    assert rig.one(act.EvictWorker).worker_id == "w2"
    rig.run("x4", "s4")
    assert rig.one(act.EvictWorker).worker_id == "w1"


def test_holder_whose_time_is_over_goes_last_of_those_on_several_hosts(new_rig: Any, worker: Any) -> None:
    rig = new_rig()
    for _ in range(2):
        rig.heartbeat("h0", workers=(holding("kept", left_s=0.0),))
        # In use by a notebook in which somebody types.
        rig.heartbeat("h1", workers=(worker("typed", "s2", WorkerStage.DEVICE_READY, gpus=(0,), prepared="p"),))
    rig.run("x2", "s3")
    assert rig.one(act.EvictWorker).worker_id == "typed"


def test_the_sessions_own_cell_runs_on_the_holder_at_once(rig: Any) -> None:
    cell_that_leaves_it(rig)
    rig.run("x2", "s1")
    lease = rig.one(act.GrantLease).lease
    assert (lease.worker_id, lease.path, lease.worker_required) == ("w1", StartPath.WARM, False)


def test_cell_in_need_gets_its_worker_even_if_another_is_prepared_for_it(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat(gpus=2)
    cell_that_leaves_it(rig)
    ready = WorkerReport(WorkerId("w2"), SessionId("s1"), WorkerStage.HOST_READY, Version(2), "hash-x2")
    rig.heartbeat(gpus=2, workers=(holding(), ready))
    rig.heartbeat(gpus=2, workers=(holding(), ready))
    run_with_need(rig, "x2")
    lease = rig.one(act.GrantLease).lease
    assert (lease.worker_id, lease.gpu_indices, lease.worker_required) == ("w1", (0,), True)


def test_cell_in_need_waits_while_its_gpu_is_busy_rather_than_run_elsewhere(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0", workers=(holding(gpus=()),))
    rig.heartbeat("h1")
    blocker = rig.lease("x0", "s0")
    other = rig.lease("x1", "s2")
    assert {blocker.host_id, other.host_id} == {"h0", "h1"}
    run_with_need(rig, "x2")
    rig.finish(blocker if blocker.host_id == "h1" else other)
    assert not rig.all(act.GrantLease)
    rig.finish(other if blocker.host_id == "h1" else blocker)
    assert (rig.one(act.GrantLease).lease.host_id, rig.one(act.GrantLease).lease.worker_id) == ("h0", "w1")


def test_cell_in_need_of_a_worker_that_is_gone_is_told_when_and_why(rig: Any) -> None:
    cell_that_leaves_it(rig)
    rig.now_s = KEPT_S
    rig.heartbeat(workers=(holding(left_s=0.0),))
    rig.run("x2", "s2")
    order = rig.one(act.EvictWorker)
    rig.send(ev.EvictionEnded(order.host_id, order.worker_id, order.lease_id, True))
    rig.now_s += 12
    run_with_need(rig, "x3")
    refusal = rig.one(act.Refuse)
    assert refusal.reason == "UNSAVED_GONE" and "'it'" in refusal.message
    assert "made way for another cell" in refusal.message and "12 s ago" in refusal.message
    assert "did not run" in refusal.message and "Make it again" in refusal.message
    assert rig.state_of("x3") is ExecutionState.FAILED


def test_cell_in_need_learns_what_the_host_said_of_the_workers_end(rig: Any) -> None:
    cell_that_leaves_it(rig)
    ended = (EndedHolder(WorkerId("w1"), "was killed by signal 9", 3.0),)
    report = HostReport(HostId("h0"), "unix:/h0", "i1", 1, "emulated", ended_holders=ended)
    for _ in range(3):
        rig.send(ev.HeartbeatReceived(rig.new_request(), report))
    run_with_need(rig, "x2")
    assert "was killed by signal 9, 3 s ago" in rig.one(act.Refuse).message


def test_cell_in_need_of_a_worker_on_a_lost_host_is_refused_not_queued_for_ever(rig: Any) -> None:
    cell_that_leaves_it(rig)
    rig.heartbeat("h1")
    rig.now_s = 5.0
    rig.heartbeat("h1")
    run_with_need(rig, "x2")
    assert not rig.all(act.Refuse), "the host may only be slow"
    rig.now_s = 11.0
    rig.heartbeat("h1")
    rig.pass_time(0.0)
    assert "was lost with its host" in rig.one(act.Refuse).message


def test_cell_in_need_waits_for_hosts_that_a_restarted_scheduler_has_not_heard(new_rig: Any) -> None:
    from looseleaf.services.scheduler.core.facts import HostRecord

    rig = new_rig(ev.JournalRestored(hosts=(HostRecord(HostId("h0"), "unix:/h0", "i1", True),)))
    rig.heartbeat("h1")
    rig.pass_time(4.0)
    run_with_need(rig, "x2")
    assert not rig.all(act.Refuse)
    rig.heartbeat("h0", workers=(holding(),))
    assert rig.one(act.GrantLease).lease.worker_id == "w1"


def test_worker_that_goes_while_room_is_made_for_its_cell_is_not_replaced(new_rig: Any, worker: Any) -> None:
    rig = new_rig()
    rig.heartbeat(workers=(holding(gpus=(0,)), worker("w2", "s2", gpus=(0,))))
    run_with_need(rig, "x2")
    order = rig.one(act.EvictWorker)
    assert order.worker_id == "w2"
    ended = (EndedHolder(WorkerId("w1"), "exited with 1", 0.0),)
    report = HostReport(HostId("h0"), "unix:/h0", "i1", 1, "emulated", ended_holders=ended)
    for _ in range(2):
        rig.send(ev.HeartbeatReceived(rig.new_request(), report))
    rig.send(ev.EvictionEnded(order.host_id, order.worker_id, order.lease_id, True))
    assert not rig.all(act.GrantLease) and rig.one(act.Refuse).reason == "UNSAVED_GONE"


@pytest.mark.parametrize(("gpus", "device_bytes", "text"), [(2, 0, "2 GPUs"), (1, 3 << 30, "too small")])
def test_cell_that_its_worker_can_never_take_is_refused(new_rig: Any, gpus: int, device_bytes: int, text: str) -> None:
    rig = new_rig()
    rig.heartbeat("h0", workers=(holding(),), gpu_memory_bytes=1 << 30)
    rig.heartbeat("h1", gpus=2, gpu_memory_bytes=8 << 30)
    run_with_need(rig, "x2", gpus=gpus, device_bytes=device_bytes)
    refusal = rig.one(act.Refuse)
    assert refusal.reason == "UNSAVED_VARIABLE" and text in refusal.message


def test_newer_epoch_of_the_session_ends_the_hold(rig: Any) -> None:
    cell_that_leaves_it(rig)
    rig.prepare("s1", epoch=2)
    rig.send(ev.PreparationFailed(rig.one(act.PrepareWorker).request_id, "WORKER_LOST"))
    rig.heartbeat(workers=(holding(),))
    rig.heartbeat(workers=(holding(),))
    rig.run("x2", "s2")
    order = rig.one(act.EvictWorker)
    assert (order.worker_id, order.epoch) == ("w1", 2), "the daemon may not know of the newer epoch"


def test_released_hold_frees_the_gpu_with_the_next_heartbeat(rig: Any, worker: Any) -> None:
    cell_that_leaves_it(rig)
    rig.heartbeat(workers=(holding(),))
    rig.run("x2", "s2")
    assert not rig.all(act.EvictWorker)
    rig.heartbeat(workers=(worker("w1", gpus=(0,)),))
    assert rig.one(act.EvictWorker).worker_id == "w1"


def test_pool_view_tells_what_a_worker_is_kept_for_and_how_long(rig: Any) -> None:
    cell_that_leaves_it(rig)
    rig.now_s = 18.0
    [host] = rig.scheduler.pool(rig.now_s).hosts
    assert host.workers[0].hold == Hold(("it",), 42.0, Epoch(1))


def test_ends_are_remembered_up_to_a_limit(new_rig: Any) -> None:
    rig = new_rig(ended_holders_max=2)
    ended = tuple(EndedHolder(WorkerId(f"w{number}"), "exited", 0.0) for number in range(3))
    rig.send(ev.HeartbeatReceived(
        rig.new_request(), HostReport(HostId("h0"), "unix:/h0", "i1", 1, "emulated", ended_holders=ended)))
    assert list(rig.scheduler.state.ended_holders) == ["w1", "w2"]


def test_cell_that_runs_on_its_holder_or_nowhere_does_not_wait_for_memory_for_ever(new_rig: Any) -> None:
    rig = new_rig(memory_patience_s=30.0, gpu_settle_s=0.0, heartbeat_suspect_s=9e3, heartbeat_dead_s=9e3)
    rig.heartbeat(gpu_memory_bytes=24, gpu_used_bytes=(5,))
    cell_that_leaves_it(rig)
    # Others have left; beside our worker's own data that is not to be seen.
    rig.heartbeat(gpu_memory_bytes=24, gpu_used_bytes=(12,), workers=(holding(),))
    run_with_need(rig, "x2", device_bytes=20)
    assert "where this cell's variables are kept; it runs there after 30 s" in rig.one(act.NotifyQueue).reason
    rig.pass_time(29.0)
    assert not rig.all(act.GrantLease)
    rig.pass_time(1.0)
    assert rig.one(act.GrantLease).lease.worker_id == "w1"
