"""A context stays on its GPU: what becomes of a worker that waits with one when others need that GPU."""

from __future__ import annotations

from typing import Any

import pytest

from looseleaf.ids import SessionId, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import StartPath, WorkerReport, WorkerStage


@pytest.fixture
def rig(new_rig: Any) -> Any:
    """A host of two GPUs; w1 of s1 is ready, with a context on the second one."""
    made = new_rig(
        heartbeat_suspect_s=900.0, heartbeat_dead_s=1000.0, prepare_stage_max=WorkerStage.CONTEXT_READY)
    made.heartbeat(gpus=2)
    edit(made)
    order = made.one(act.PrepareWorker)
    assert (order.stage, order.gpu_indices) == (WorkerStage.CONTEXT_READY, (1,))
    made.send(ev.WorkerPrepared(
        order.request_id, WorkerId("w1"), 700.0, stage=order.stage, gpu_indices=order.gpu_indices))
    # A new worker is forked after a pause only.
    made.now_s += 3.0
    return made


def edit(rig: Any) -> None:
    rig.prepare("s1", source="cell", device_bytes=50)


# A second host that has no GPU for the cell, though it has one that no lease holds.
NO_HELP = ["drained", "too small", "in use soon"]


def add_host(rig: Any, kind: str) -> None:
    workers: tuple[WorkerReport, ...] = ()
    if kind == "in use soon":
        workers = (WorkerReport(WorkerId("w9"), SessionId("s9"), WorkerStage.COMPLETED, gpu_indices=(0,)),)
    rig.heartbeat(
        "h1", gpus=1, draining=kind == "drained", gpu_memory_bytes=10 if kind == "too small" else 0, workers=workers)
    if kind == "in use soon":
        rig.prepare("s9", source="next", predicted=True)
        assert rig.one(act.PrepareWorker).worker_id == "w9"


def test_whoever_stands_on_the_contexts_gpu_makes_way_though_another_is_free(rig: Any) -> None:
    first, second = rig.lease("x2", session="s2"), rig.lease("x3", session="s3")
    assert (first.gpu_indices, second.gpu_indices) == ((0,), (1,))
    rig.finish(second, worker="w3")
    rig.finish(first)
    rig.run("x1", session="s1", source="cell")
    order = rig.one(act.EvictWorker)
    assert order.worker_id == "w3"
    rig.send(ev.EvictionEnded(order.host_id, order.worker_id, order.lease_id, True))
    lease = rig.one(act.GrantLease).lease
    assert (lease.worker_id, lease.gpu_indices, lease.path) == ("w1", (1,), StartPath.PREPARED)


def test_worker_whose_gpu_a_cell_has_is_replaced_at_the_next_edit(rig: Any) -> None:
    rig.lease("x2", session="s2")
    rig.lease("x3", session="s3")
    edit(rig)
    ended, order = rig.one(act.EvictWorker), rig.one(act.PrepareWorker)
    assert ended.worker_id == "w1"
    assert (order.worker_id, order.session_id, order.stage) == ("", "s1", WorkerStage.HOST_READY)


def test_worker_whose_gpu_a_cell_takes_is_replaced_at_once_if_another_gpu_is_to_be_had(rig: Any) -> None:
    rig.lease("x2", session="s2")
    rig.heartbeat("h1", gpus=2)
    # The fullest host comes first.
    rig.run("x3", session="s3")
    lease = rig.one(act.GrantLease).lease
    assert (lease.host_id, lease.gpu_indices) == ("h0", (1,))
    ended = rig.one(act.EvictWorker)
    assert ended.worker_id == "w1"
    rig.send(ev.EvictionEnded(ended.host_id, ended.worker_id, ended.lease_id, True))
    order = rig.one(act.PrepareWorker)
    assert (order.session_id, order.worker_id, order.recipe.source_hash) == ("s1", "", "cell")
    assert order.host_id == "h1"


@pytest.mark.parametrize("kind", NO_HELP)
def test_worker_whose_gpu_a_cell_takes_stays_where_a_new_one_would_find_none(rig: Any, kind: str) -> None:
    rig.lease("x2", session="s2")
    add_host(rig, kind)
    rig.run("x3", session="s3")
    assert rig.one(act.GrantLease).lease.gpu_indices == (1,)
    assert not rig.all(act.EvictWorker)


def test_worker_in_whose_cell_nobody_types_stays_where_a_cell_took_its_gpu(rig: Any) -> None:
    rig.lease("x2", session="s2")
    rig.heartbeat("h1", gpus=2)
    rig.now_s += rig.scheduler.state.limits.speculative_expiry_s
    rig.lease("x3", session="s3")
    assert not rig.all(act.EvictWorker)


@pytest.mark.parametrize("other", ["none", "free", *NO_HELP])
def test_worker_on_a_host_without_a_gpu_to_give_is_replaced_if_another_host_has_one(
    new_rig: Any, other: str,
) -> None:
    rig = new_rig(heartbeat_suspect_s=900.0, heartbeat_dead_s=1000.0)
    rig.heartbeat("h0", gpus=1)
    edit(rig)
    order = rig.one(act.PrepareWorker)
    rig.send(ev.WorkerPrepared(order.request_id, WorkerId("w1"), 700.0))
    rig.now_s += 3.0
    rig.lease("x2", session="s2")
    if other != "none":
        add_host(rig, other)
    edit(rig)
    if other == "free":
        order = rig.one(act.PrepareWorker)
        assert (rig.one(act.EvictWorker).worker_id, order.host_id, order.worker_id) == ("w1", "h1", "")
    else:
        assert rig.one(act.AnswerPreparation).worker_id == "w1"
        assert not rig.all(act.EvictWorker)


def test_worker_whose_gpu_is_free_stays(rig: Any) -> None:
    rig.lease("x2", session="s2")
    edit(rig)
    assert rig.one(act.AnswerPreparation).worker_id == "w1"
    assert not rig.all(act.EvictWorker)


def test_no_more_contexts_wait_on_a_gpu_than_its_memory_has_room_for(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=WorkerStage.CONTEXT_READY, context_bytes=10, gpu_settle_s=0.0)
    rig.heartbeat(gpus=1, gpu_memory_bytes=100, gpu_used_bytes=(75,))
    stages = []
    for number in range(3):
        rig.prepare(f"s{number}", source=f"c{number}", device_bytes=1)
        order = rig.one(act.PrepareWorker)
        stages.append(order.stage)
        rig.send(ev.WorkerPrepared(
            order.request_id, WorkerId(f"w{number}"), 5.0, stage=order.stage, gpu_indices=order.gpu_indices))
    assert stages == [WorkerStage.CONTEXT_READY, WorkerStage.CONTEXT_READY, WorkerStage.HOST_READY]
