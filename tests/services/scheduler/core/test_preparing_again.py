"""Whoever loses a warm worker to somebody else's cell finds its next cell prepared all the same."""

from __future__ import annotations

from typing import Any

import pytest

from looseleaf.ids import SessionId, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import WorkerReport, WorkerStage


@pytest.fixture
def rig(new_rig: Any) -> Any:
    """One GPU, on which the worker of s1 stands after its cell."""
    made = new_rig(heartbeat_suspect_s=900.0, heartbeat_dead_s=1000.0)
    made.heartbeat()
    made.finish(made.lease("x1"), worker="w1")
    return made


def guess(rig: Any, source: str = "next") -> None:
    """The next cell of s1 is made ready on its own worker."""
    rig.prepare(source=source, version=2, predicted=True)
    order = rig.one(act.PrepareWorker)
    assert order.worker_id == "w1"
    rig.send(ev.WorkerPrepared(order.request_id, order.worker_id, 50.0))


def push_aside(rig: Any, *, ended: bool = True) -> None:
    """A cell of s2 needs the GPU."""
    rig.run("x2", session="s2")
    order = rig.one(act.EvictWorker)
    assert order.worker_id == "w1"
    rig.send(ev.EvictionEnded(order.host_id, order.worker_id, order.lease_id, ended))


def test_next_cell_is_prepared_on_a_new_worker_in_host_memory(rig: Any) -> None:
    guess(rig)
    push_aside(rig)
    order = rig.one(act.PrepareWorker)
    assert (order.session_id, order.worker_id, order.recipe.source_hash) == ("s1", "", "next")
    assert (order.stage, order.gpu_indices) == (WorkerStage.HOST_READY, ())
    # The cell that needed the GPU got it with the same event.
    assert rig.one(act.GrantLease).lease.session_id == "s2"
    rig.send(ev.WorkerPrepared(order.request_id, WorkerId("w2"), 700.0))
    rig.prepare(source="next", version=2)
    assert rig.one(act.AnswerPreparation).worker_id == "w2"


def test_worker_that_nobody_guessed_a_cell_for_is_not_replaced(rig: Any) -> None:
    push_aside(rig)
    assert rig.all(act.PrepareWorker) == []


def test_worker_that_stays_is_not_replaced(rig: Any) -> None:
    guess(rig)
    push_aside(rig, ended=False)
    assert rig.all(act.PrepareWorker) == []


def test_worker_of_a_session_with_another_one_is_not_replaced(rig: Any) -> None:
    guess(rig)
    rig.heartbeat("h1", workers=(WorkerReport(WorkerId("w9"), SessionId("s1"), WorkerStage.COMPLETED),), draining=True)
    push_aside(rig)
    assert rig.all(act.PrepareWorker) == []


def test_session_that_loses_workers_too_often_is_left_alone(rig: Any) -> None:
    guess(rig)
    push_aside(rig)
    order = rig.one(act.PrepareWorker)
    session = rig.scheduler.state.sessions.touch(order.session_id)
    assert session.fork_not_before_s > rig.now_s


@pytest.mark.parametrize(("idle_s", "again"), [(3.0, True), (25.0, False)])
def test_edited_cell_that_is_pushed_off_its_gpu_is_prepared_again_while_somebody_types(
    new_rig: Any, idle_s: float, again: bool,
) -> None:
    rig = new_rig(
        heartbeat_suspect_s=900.0, heartbeat_dead_s=1000.0, prepare_stage_max=WorkerStage.DEVICE_READY,
        tenant_speculation_share=1.0)
    rig.heartbeat()
    rig.prepare(source="edited", device_bytes=1 << 30)
    order = rig.one(act.PrepareWorker)
    assert order.stage is WorkerStage.DEVICE_READY
    rig.send(ev.WorkerPrepared(
        order.request_id, WorkerId("w1"), 700.0, stage=order.stage, gpu_indices=order.gpu_indices))
    rig.now_s += idle_s
    push_aside(rig)
    assert [(order.recipe.source_hash, order.stage) for order in rig.all(act.PrepareWorker)] == [
        ("edited", WorkerStage.HOST_READY)] * again
