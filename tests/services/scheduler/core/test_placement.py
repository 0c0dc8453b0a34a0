"""Which GPU and worker a run gets, who gives way, and which path it is counted as."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionState, Hold, StartPath, WorkerStage


def prepared(rig: Any, session: str, worker_id: str, **recipe: Any) -> None:
    rig.prepare(session, **recipe)
    order = rig.one(act.PrepareWorker)
    rig.send(ev.WorkerPrepared(order.request_id, WorkerId(worker_id), 700.0))


def test_prepared_worker_is_used_and_counted_as_prepared(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0")
    rig.heartbeat("h1")
    rig.lease("x0", "s0")
    prepared(rig, "s1", "w1", source="a")
    rig.run("x1", source="a")
    lease = rig.one(act.GrantLease).lease
    assert (lease.host_id, lease.worker_id, lease.path) == ("h1", "w1", StartPath.PREPARED)


def test_worker_prepared_for_more_than_the_cell_needs_counts_as_prepared(rig: Any) -> None:
    prepared(rig, "s1", "w1", source="a", names=("df", "model"))
    rig.run("x1", source="b", names=("model",))
    assert rig.one(act.GrantLease).lease.path is StartPath.PREPARED


def test_worker_prepared_for_less_counts_as_cold_but_is_used(rig: Any) -> None:
    prepared(rig, "s1", "w1", source="a", names=("df",))
    rig.run("x1", source="b", names=("df", "model"))
    lease = rig.one(act.GrantLease).lease
    assert (lease.worker_id, lease.path) == ("w1", StartPath.COLD)


def test_worker_prepared_at_another_version_counts_as_cold(rig: Any) -> None:
    prepared(rig, "s1", "w1", source="a", version=1)
    rig.run("x1", source="a", version=2)
    assert rig.one(act.GrantLease).lease.path is StartPath.COLD


def test_preparation_that_ends_after_run_arrived_does_not_count(rig: Any) -> None:
    blocker = rig.lease("x0", "s0")
    rig.prepare("s1", source="a")
    order = rig.one(act.PrepareWorker)
    rig.run("x1", source="a")
    rig.send(ev.WorkerPrepared(order.request_id, WorkerId("w1"), 700.0))
    rig.finish(blocker)
    lease = rig.one(act.GrantLease).lease
    assert (lease.worker_id, lease.path) == ("w1", StartPath.COLD)


def test_heartbeat_of_a_prepared_worker_counts_too(rig: Any, worker: Any) -> None:
    rig.heartbeat(workers=(worker("w1", stage=WorkerStage.HOST_READY, prepared="a", version=4),))
    rig.run("x1", source="a", version=4)
    assert rig.one(act.GrantLease).lease.path is StartPath.PREPARED


def test_own_completed_worker_is_warm_even_before_the_next_heartbeat(rig: Any) -> None:
    rig.finish(rig.lease("x1"), worker="w1")
    rig.run("x2", version=2)
    lease = rig.one(act.GrantLease).lease
    assert (lease.worker_id, lease.path, lease.gpu_indices) == ("w1", StartPath.WARM, (0,))


def test_completed_worker_prepared_for_the_next_cell_is_prepared(rig: Any) -> None:
    rig.finish(rig.lease("x1"), worker="w1")
    rig.prepare("s1", source="b", version=2)
    assert rig.one(act.PrepareWorker).worker_id == "w1"
    rig.send(ev.WorkerPrepared(rig.one(act.PrepareWorker).request_id, WorkerId("w1"), 30.0))
    rig.run("x2", source="b", version=2)
    assert rig.one(act.GrantLease).lease.path is StartPath.PREPARED


def test_free_gpu_goes_before_one_with_a_warm_worker_of_another_session(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat(gpus=2)
    rig.finish(rig.lease("x1", "s1"), worker="w1")
    rig.run("x2", "s2")
    assert rig.all(act.EvictWorker) == []
    assert rig.one(act.GrantLease).lease.gpu_indices == (1,)


def test_warm_worker_of_another_session_is_evicted_before_the_grant(rig: Any) -> None:
    rig.finish(rig.lease("x1", "s1"), worker="w1")
    rig.run("x2", "s2")
    order = rig.one(act.EvictWorker)
    assert order.worker_id == "w1"
    assert rig.all(act.GrantLease) == []
    assert rig.state_of("x2") is ExecutionState.PENDING
    rig.send(ev.EvictionEnded(order.host_id, order.worker_id, order.lease_id, evicted=True))
    assert rig.one(act.GrantLease).lease.execution_id == "x2"
    assert [host.workers for host in rig.scheduler.pool(rig.now_s).hosts] == [()]


def test_worker_that_refuses_to_go_keeps_its_gpu_until_later_heartbeats(rig: Any, worker: Any) -> None:
    rig.finish(rig.lease("x1", "s1"), worker="w1")
    rig.run("x2", "s2")
    order = rig.one(act.EvictWorker)
    rig.send(ev.EvictionEnded(order.host_id, order.worker_id, order.lease_id, evicted=False))
    assert rig.one(act.NotifyQueue).position == 1
    warm = worker("w1", gpus=(0,))
    rig.heartbeat(workers=(warm,))
    assert rig.all(act.EvictWorker) == []
    rig.heartbeat(workers=(warm,))
    assert rig.one(act.EvictWorker).worker_id == "w1"


def test_running_or_saving_worker_is_never_evicted(rig: Any, worker: Any) -> None:
    for stage in (WorkerStage.RUNNING, WorkerStage.SAVING):
        rig.heartbeat(workers=(worker("w1", "s9", stage, gpus=(0,)),))
        rig.run(f"x-{stage.name}", "s2")
        assert rig.all(act.EvictWorker) == []
        assert rig.all(act.GrantLease) == []


def test_cancel_during_an_eviction_frees_the_reservation(rig: Any) -> None:
    rig.finish(rig.lease("x1", "s1"), worker="w1")
    rig.run("x2", "s2")
    order = rig.one(act.EvictWorker)
    rig.send(ev.RunCancelled("r6", ExecutionId("x2")))
    assert rig.state_of("x2") is ExecutionState.FAILED
    rig.send(ev.EvictionEnded(order.host_id, order.worker_id, order.lease_id, evicted=True))
    assert rig.last == []
    rig.run("x3", "s3")
    assert rig.one(act.GrantLease).lease.execution_id == "x3"


def test_victim_is_the_completed_worker_that_is_cheapest_to_lose(new_rig: Any, worker: Any) -> None:
    rig = new_rig()
    rig.heartbeat(gpus=3)
    for number in range(3):
        rig.lease(f"busy{number}", f"s{number}")
    mib = 1 << 20
    rig.heartbeat(gpus=3, workers=(
        worker("w0", "s0", gpus=(0,), resident_bytes=100 * mib),
        worker("w1", "s1", gpus=(1,), resident_bytes=900 * mib),
        worker("w2", "s2", WorkerStage.CONTEXT_READY, gpus=(2,), prepared="a"),
    ), incarnation="i2")
    rig.run("x", "s9")
    assert rig.one(act.EvictWorker).worker_id == "w1"


def test_prepared_worker_is_worth_an_eviction_though_another_host_has_a_free_gpu(new_rig: Any, worker: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0", workers=(worker("w0", "s0", gpus=(0,)),))
    prepared(rig, "s1", "w1", source="a")
    rig.heartbeat("h1")
    rig.run("x1", source="a")
    order = rig.one(act.EvictWorker)
    assert order.worker_id == "w0"
    rig.send(ev.EvictionEnded(order.host_id, order.worker_id, order.lease_id, evicted=True))
    lease = rig.one(act.GrantLease).lease
    assert (lease.host_id, lease.worker_id, lease.path) == ("h0", "w1", StartPath.PREPARED)


def test_no_start_is_worth_variables_that_no_version_has(new_rig: Any, worker: Any) -> None:
    rig = new_rig()
    holder = replace(worker("w0", "s0", gpus=(0,)), hold=Hold(("live",), 0.0, Epoch(1)))
    rig.heartbeat("h0", workers=(holder,))
    prepared(rig, "s1", "w1", source="a")
    rig.heartbeat("h1")
    rig.run("x1", source="a")
    assert rig.all(act.EvictWorker) == []
    assert rig.one(act.GrantLease).lease.host_id == "h1"


def test_completed_worker_goes_before_a_speculative_one(new_rig: Any, worker: Any) -> None:
    rig = new_rig()
    rig.heartbeat(gpus=2, workers=(
        worker("w0", "s0", WorkerStage.CONTEXT_READY, gpus=(0,), prepared="a"), worker("w1", "s1", gpus=(1,)),
    ))
    rig.run("x", "s9")
    assert rig.one(act.EvictWorker).worker_id == "w1"


def test_two_gpus_lie_on_one_host(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0", gpus=1)
    rig.heartbeat("h1", gpus=2)
    rig.run("x1", gpus=2)
    lease = rig.one(act.GrantLease).lease
    assert (lease.host_id, lease.gpu_indices) == ("h1", (0, 1))


def test_cell_goes_where_its_variables_fit_and_waits_for_that(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0", gpu_memory_bytes=1000)
    rig.heartbeat("h1", gpu_memory_bytes=4000)
    first = rig.lease("x1", "s1", device_bytes=2000)
    assert first.host_id == "h1"
    rig.run("x2", "s2", device_bytes=2000)
    assert rig.all(act.GrantLease) == []
    assert rig.one(act.NotifyQueue).reason == "No GPU with enough memory for this cell's variables is free."
    rig.finish(first)
    assert (rig.one(act.GrantLease).lease.execution_id, rig.one(act.GrantLease).lease.host_id) == ("x2", "h1")


def test_waiting_cell_is_refused_when_the_last_host_that_could_hold_it_shrinks(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0", gpus=2)
    blocker = rig.lease("x0", "s0")
    rig.run("x1", "s1", gpus=2)
    assert rig.all(act.Refuse) == []
    rig.heartbeat("h0", gpus=1, leases=(blocker,))
    assert rig.one(act.Refuse).reason == "NEVER_FITS"


def test_one_gpu_run_fills_the_fuller_host(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0", gpus=4)
    rig.heartbeat("h1", gpus=2)
    rig.run("x1")
    assert rig.one(act.GrantLease).lease.host_id == "h1"


def test_own_warm_worker_on_one_gpu_gives_way_to_a_cell_that_needs_two(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat(gpus=2)
    rig.finish(rig.lease("x1"), worker="w1")
    rig.run("x2", gpus=2)
    order = rig.one(act.EvictWorker)
    assert order.worker_id == "w1"
    rig.send(ev.EvictionEnded(HostId("h0"), WorkerId("w1"), order.lease_id, evicted=True))
    lease = rig.one(act.GrantLease).lease
    assert (lease.gpu_indices, lease.worker_id) == ((0, 1), "")


def test_worker_that_goes_while_room_is_made_makes_the_start_cold(new_rig: Any, worker: Any) -> None:
    rig = new_rig()
    rig.heartbeat(workers=(worker("w1", stage=WorkerStage.HOST_READY, prepared="a"), worker("w9", "s9", gpus=(0,))))
    rig.run("x1", source="a")
    order = rig.one(act.EvictWorker)
    for _ in range(2):
        rig.heartbeat(workers=(worker("w9", "s9", gpus=(0,)),))
    rig.send(ev.EvictionEnded(HostId("h0"), WorkerId("w9"), order.lease_id, evicted=True))
    lease = rig.one(act.GrantLease).lease
    assert (lease.worker_id, lease.path) == ("", StartPath.COLD)


def test_gang_that_waited_keeps_a_host_from_one_gpu_runs(new_rig: Any) -> None:
    rig = new_rig(gang_patience_s=1.0)
    rig.heartbeat(gpus=2)
    first = rig.lease("x1", "s1")
    second = rig.lease("x2", "s2")
    rig.run("gang", "s3", gpus=2)
    assert rig.one(act.NotifyQueue).reason == "Needs 2 GPUs on one host; at most 0 are free on one."
    rig.now_s += 2
    rig.heartbeat(gpus=2, leases=(first, second))
    rig.run("x4", "s4")
    rig.finish(first)
    assert rig.all(act.GrantLease) == []
    reasons = {news.request_id: news.reason for news in rig.all(act.NotifyQueue)}
    assert "Free GPUs are kept for a cell that waits for several of them." in reasons.values()
    rig.finish(second)
    assert rig.one(act.GrantLease).lease.execution_id == "gang"


def test_host_kept_for_several_gpus_is_given_to_whoever_comes_before_by_waiting_alone(new_rig: Any) -> None:
    rig = new_rig(
        look_again_s=1e9, heartbeat_suspect_s=9e3, heartbeat_dead_s=9e3, start_timeout_s=9e3, gang_patience_s=5.0,
        fair_double_after_s=9e3, fair_fifo_after_s=60.0, batch_penalty_s=100.0)
    rig.heartbeat(gpus=2)
    rig.lease("x1", "s1", tenant="a")
    # Tenant b used nothing, so its cell is first, and after its patience the host is kept for it.
    rig.run("x2", "s2", tenant="b", gpus=2, priority="batch")
    rig.now_s = 6.0
    rig.run("x3", "s3", tenant="a")
    assert rig.all(act.GrantLease) == []
    while not rig.all(act.GrantLease):
        rig.pass_time(1.0)
        assert rig.now_s <= 66.0
    assert rig.one(act.GrantLease).lease.execution_id == "x3"


def test_draining_and_suspect_hosts_get_no_new_work(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat(draining=True)
    rig.run("x1")
    assert rig.one(act.NotifyQueue).reason == "Every GPU host is being drained and takes no new work."
    rig.heartbeat(draining=False)
    assert rig.one(act.GrantLease).lease.execution_id == "x1"
    rig.now_s += 4
    rig.run("x2", "s2")
    assert rig.one(act.NotifyQueue).reason == "The GPU hosts do not answer at the moment."


def test_lease_ids_are_never_reused(rig: Any) -> None:
    seen = set()
    for number in range(5):
        lease = rig.lease(f"x{number}")
        rig.finish(lease)
        seen.add(lease.lease_id)
    assert seen == {LeaseId(f"l{number}") for number in range(1, 6)}
