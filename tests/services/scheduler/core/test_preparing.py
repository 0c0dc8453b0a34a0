"""Preparations: where, on which worker, how many, and why not."""

from __future__ import annotations

from typing import Any

from looseleaf.ids import HostId, LeaseId, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import WorkerStage


def done(rig: Any, worker_id: str = "w1") -> None:
    rig.send(ev.WorkerPrepared(rig.one(act.PrepareWorker).request_id, WorkerId(worker_id), 700.0, 4242))


def test_preparation_orders_a_new_worker_and_takes_no_gpu(rig: Any) -> None:
    rig.prepare("s1", source="a")
    order = rig.one(act.PrepareWorker)
    assert (order.host_id, order.session_id, order.worker_id, order.recipe.source_hash) == ("h0", "s1", "", "a")
    done(rig)
    assert rig.one(act.AnswerPreparation) == act.AnswerPreparation("r2", WorkerId("w1"), HostId("h0"), 700.0)
    rig.run("other", "s2")
    assert rig.one(act.GrantLease).lease.gpu_indices == (0,)


def test_preparation_goes_to_the_host_with_most_free_gpus(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0", gpus=1)
    rig.heartbeat("h1", gpus=2)
    rig.prepare("s1")
    assert rig.one(act.PrepareWorker).host_id == "h1"


def test_preparation_reuses_the_sessions_completed_worker(rig: Any) -> None:
    rig.finish(rig.lease("x1"), worker="w1")
    rig.prepare("s1", version=2)
    assert rig.one(act.PrepareWorker).worker_id == "w1"


def test_preparation_that_is_ready_already_is_answered_at_once(rig: Any) -> None:
    rig.prepare("s1", source="a", names=("df", "model"))
    done(rig)
    rig.prepare("s1", source="b", names=("df",))
    assert rig.last == [act.AnswerPreparation("r3", WorkerId("w1"), HostId("h0"))]


def test_worker_that_was_ready_before_an_install_is_prepared_anew(rig: Any) -> None:
    rig.prepare("s1", source="a", environment_id="before")
    done(rig)
    rig.prepare("s1", source="a", environment_id="after")
    # The daemon decides whether the same process will do.
    assert rig.one(act.PrepareWorker).worker_id == "w1"
    done(rig, "w2")
    rig.prepare("s1", source="a", environment_id="after")
    assert rig.last == [act.AnswerPreparation("r4", WorkerId("w2"), HostId("h0"))]


def test_next_edit_retargets_the_same_worker(rig: Any) -> None:
    rig.prepare("s1", source="a")
    done(rig)
    rig.prepare("s1", source="b", names=("other",))
    assert rig.one(act.PrepareWorker).worker_id == "w1"


def test_same_preparation_asked_twice_is_joined(rig: Any) -> None:
    rig.prepare("s1", source="a")
    order = rig.one(act.PrepareWorker)
    assert rig.prepare("s1", source="a") == []
    rig.send(ev.WorkerPrepared(order.request_id, WorkerId("w1"), 5.0))
    assert [answer.request_id for answer in rig.all(act.AnswerPreparation)] == ["r2", "r3"]


def test_newest_edit_waits_and_older_ones_are_told(rig: Any) -> None:
    rig.prepare("s1", source="a")
    order = rig.one(act.PrepareWorker)
    assert rig.prepare("s1", source="b") == []
    rig.prepare("s1", source="c", names=("df",))
    assert rig.last == [act.AnswerPreparation("r3", skipped_reason="A newer edit took its place.")]
    rig.send(ev.WorkerPrepared(order.request_id, WorkerId("w1"), 5.0))
    following = rig.one(act.PrepareWorker)
    assert (following.recipe.source_hash, following.worker_id) == ("c", "w1")


def test_old_epoch_prepares_nothing(rig: Any) -> None:
    rig.prepare("s1", epoch=2)
    rig.prepare("s1", epoch=1)
    assert rig.one(act.Refuse).reason == "STALE_EPOCH"


def test_preparation_without_a_host_is_skipped_with_a_reason(new_rig: Any) -> None:
    rig = new_rig()
    rig.prepare("s1")
    assert rig.one(act.AnswerPreparation).skipped_reason == "No GPU host is connected."
    rig.heartbeat(gpus=1)
    rig.prepare("s1", gpus=2)
    assert rig.one(act.AnswerPreparation).skipped_reason == "No connected host has 2 GPUs."
    rig.heartbeat(gpus=1, gpu_memory_bytes=1000)
    rig.prepare("s1", device_bytes=2000)
    assert "enough GPU memory" in rig.one(act.AnswerPreparation).skipped_reason


def test_preparation_while_the_sessions_cell_runs_is_skipped(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat(gpus=2)
    rig.lease("x1")
    rig.prepare("s1")
    assert "is running" in rig.one(act.AnswerPreparation).skipped_reason


def test_session_holds_one_speculative_worker(rig: Any, worker: Any) -> None:
    rig.heartbeat(workers=(worker("w1", "s1", WorkerStage.FORKED),))
    rig.prepare("s1")
    assert rig.one(act.AnswerPreparation).skipped_reason == "This notebook's other worker is not ready yet."


def test_full_host_skips_and_lets_the_oldest_expired_worker_go(new_rig: Any) -> None:
    rig = new_rig(prepared_max_per_host=2)
    rig.heartbeat()
    for session, worker_id in (("s1", "w1"), ("s2", "w2")):
        rig.prepare(session)
        done(rig, worker_id)
        rig.now_s += 1
    rig.prepare("s3")
    assert "2 prepared workers" in rig.one(act.AnswerPreparation).skipped_reason
    assert rig.all(act.EvictWorker) == []
    workers = rig.scheduler.pool(rig.now_s).hosts[0].workers
    rig.now_s += 25
    rig.heartbeat(workers=workers)
    rig.prepare("s3")
    order = rig.one(act.EvictWorker)
    assert (order.worker_id, order.lease_id) == ("w1", "")
    rig.send(ev.EvictionEnded(order.host_id, order.worker_id, LeaseId(""), evicted=True))
    rig.prepare("s3")
    assert rig.one(act.PrepareWorker).session_id == "s3"


def test_worker_that_refused_to_go_for_a_newer_one_is_asked_again_after_heartbeats(new_rig: Any, worker: Any) -> None:
    rig = new_rig(prepared_max_per_host=1, speculative_expiry_s=1.0)
    kept = (worker("w1", "s1", WorkerStage.HOST_READY, prepared="p"),)
    rig.heartbeat(workers=kept)
    rig.now_s += 2.0
    rig.prepare("s2")
    order = rig.one(act.EvictWorker)
    rig.send(ev.EvictionEnded(order.host_id, order.worker_id, LeaseId(""), evicted=False))
    rig.prepare("s3")
    assert rig.all(act.EvictWorker) == []
    for _ in range(rig.scheduler.state.limits.missed_heartbeats_max):
        rig.heartbeat(workers=kept)
    rig.prepare("s4")
    assert rig.one(act.EvictWorker).worker_id == "w1"


def test_prepare_under_way_takes_a_place_until_it_fails(new_rig: Any) -> None:
    rig = new_rig(prepared_max_per_host=1)
    rig.heartbeat()
    rig.prepare("s1")
    order = rig.one(act.PrepareWorker)
    rig.prepare("s2")
    assert "1 prepared workers" in rig.one(act.AnswerPreparation).skipped_reason
    rig.send(ev.PreparationFailed(order.request_id, "FORK_FAILED"))
    rig.prepare("s2")
    assert rig.one(act.PrepareWorker).session_id == "s2"


def test_worker_that_came_or_went_changes_which_host_has_most_room(new_rig: Any) -> None:
    rig = new_rig(speculative_expiry_s=1.0)
    rig.heartbeat("h0")
    rig.heartbeat("h1")
    for session, host_id in (("s1", "h0"), ("s2", "h1"), ("s3", "h0")):
        rig.prepare(session)
        assert rig.one(act.PrepareWorker).host_id == host_id
        done(rig, f"w-{session}")
    # So old that their sessions get no other at once.
    rig.now_s += 2.0
    for gone in ("w-s1", "w-s3"):
        rig.send(ev.EvictionEnded(HostId("h0"), WorkerId(gone), LeaseId(""), evicted=True))
        assert rig.all(act.PrepareWorker) == []
    rig.prepare("s4")
    assert rig.one(act.PrepareWorker).host_id == "h0"


def test_worker_first_seen_in_a_heartbeat_is_not_expired_yet(new_rig: Any, worker: Any) -> None:
    rig = new_rig(prepared_max_per_host=1)
    rig.now_s = 100.0
    rig.heartbeat(workers=(worker("w1", "s1", WorkerStage.FORKED),))
    rig.prepare("s2")
    assert rig.all(act.EvictWorker) == []


def test_failed_preparation_is_answered_with_why(rig: Any) -> None:
    rig.prepare("s1")
    order = rig.one(act.PrepareWorker)
    rig.send(ev.PreparationFailed(order.request_id, "IMPORT_FAILED", "numpy is missing"))
    assert rig.last == [
        act.AnswerPreparation("r2", skipped_reason="The worker could not be prepared (numpy is missing).")]


def test_preparation_on_a_lost_host_is_answered(rig: Any) -> None:
    rig.prepare("s1", source="a")
    rig.prepare("s1", source="b")
    rig.pass_time(11)
    assert [answer.skipped_reason for answer in rig.all(act.AnswerPreparation)] == [
        "The host of the worker was lost."] * 2
    assert rig.send(ev.WorkerPrepared("r2", WorkerId("w1"), 5.0)) == []


def test_run_prefers_the_host_where_its_worker_is_on_the_way(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat("h0", gpus=1)
    rig.heartbeat("h1", gpus=2)
    rig.prepare("s1")
    assert rig.one(act.PrepareWorker).host_id == "h1"
    rig.run("x1")
    lease = rig.one(act.GrantLease).lease
    assert (lease.host_id, lease.worker_id) == ("h1", "")


def test_worker_that_its_run_took_meanwhile_is_not_marked_prepared(rig: Any) -> None:
    rig.finish(rig.lease("x1"), worker="w1")
    rig.prepare("s1", source="b", version=2)
    order = rig.one(act.PrepareWorker)
    lease = rig.lease("x2", version=2, source="b")
    assert lease.worker_id == "w1"
    rig.send(ev.WorkerPrepared(order.request_id, WorkerId("w1"), 5.0))
    assert rig.scheduler.pool(0).hosts[0].workers[0].prepared_source_hash == ""
