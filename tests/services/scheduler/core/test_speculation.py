"""How far preparations go, what they may cost, and that nobody else waits for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.ids import Epoch, HostId, SessionId, Version, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionState, RecipeFacts, StartPath, WorkerReport, WorkerStage
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.sessions import Session
from looseleaf.services.scheduler.core.speculation import count_fork, earn, forget_forks, fork_wait_s, how_far
from looseleaf.units import GIB

HOST, CONTEXT, DEVICE = WorkerStage.HOST_READY, WorkerStage.CONTEXT_READY, WorkerStage.DEVICE_READY
SMALL, LARGE = GIB // 2, 8 * GIB


@pytest.fixture
def far(new_rig: Any) -> Any:
    """One host of four GPUs whose daemon can prepare up to device_ready."""
    made = new_rig(prepare_stage_max=DEVICE, heartbeat_suspect_s=900.0, heartbeat_dead_s=1000.0)
    made.heartbeat(gpus=4)
    return made


def done(rig: Any, worker_id: str) -> None:
    """The daemon did as it was told."""
    order = rig.one(act.PrepareWorker)
    rig.send(ev.WorkerPrepared(
        order.request_id, WorkerId(worker_id), 700.0, stage=order.stage, gpu_indices=order.gpu_indices))


def park(rig: Any, session: str, worker_id: str) -> tuple[int, ...]:
    """A large cell's data lie on a GPU before its Run."""
    rig.prepare(session, source=f"large-{session}", device_bytes=LARGE)
    gpus: tuple[int, ...] = rig.one(act.PrepareWorker).gpu_indices
    assert rig.one(act.PrepareWorker).stage is DEVICE
    done(rig, worker_id)
    return gpus


def test_run_is_given_the_gpu_that_an_expired_cells_replaced_worker_leaves(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=DEVICE, heartbeat_suspect_s=900.0, heartbeat_dead_s=1000.0)
    rig.heartbeat()
    park(rig, "s1", "w1")
    rig.pass_time(rig.scheduler.state.limits.speculative_expiry_s)
    order = rig.one(act.PrepareWorker)
    assert order.leave_device
    # While that is under way nobody else is given the GPU.
    rig.run("x", "s2")
    assert rig.all(act.EvictWorker) == []
    # A process cannot leave its device: another one holds the data now.
    rig.send(ev.WorkerPrepared(order.request_id, WorkerId("w2"), 5.0))
    ended = rig.one(act.EvictWorker)
    assert ended.worker_id == "w1"
    rig.send(ev.EvictionEnded(ended.host_id, ended.worker_id, ended.lease_id, True))
    assert rig.one(act.GrantLease).lease.session_id == "s2"


def test_replaced_worker_does_not_count_as_its_sessions_any_more(far: Any) -> None:
    park(far, "s1", "w1")
    far.prepare("s1", source="next", version=2, device_bytes=LARGE, predicted=True)
    far.send(ev.WorkerPrepared(far.one(act.PrepareWorker).request_id, WorkerId("w2"), 700.0))
    ended = far.one(act.EvictWorker)
    assert (ended.worker_id, ended.lease_id) == ("w1", "")
    far.send(ev.EvictionEnded(ended.host_id, ended.worker_id, ended.lease_id, True))
    assert [worker.worker_id for _host, worker in far.scheduler.state.hosts.workers_of(SessionId("s1"))] == ["w2"]


def test_replaced_worker_that_has_run_may_hold_variables_and_is_left_to_its_daemon(far: Any) -> None:
    far.finish(far.lease("x1"), worker="w1")
    far.prepare("s1", source="next", version=2)
    far.send(ev.WorkerPrepared(far.one(act.PrepareWorker).request_id, WorkerId("w2"), 700.0))
    assert far.all(act.EvictWorker) == []


@given(
    st.booleans(), st.booleans(), st.floats(0, 3), st.booleans(), st.booleans(),
    st.sampled_from([HOST, CONTEXT, DEVICE]))
def test_stage_is_never_further_than_certainty_budget_and_protocol_allow(
    predicted: bool, certain: bool, attach_s: float, idle: bool, may_spend: bool, furthest: WorkerStage,
) -> None:
    limits = Limits(prepare_stage_max=furthest)
    event = ev.PreparationRequested(
        "r", SessionId("s"), Epoch(1), RecipeFacts("h", Version(1)), predicted, certain, attach_s)
    stage = how_far(event, limits, gpu_idle=idle, may_spend=may_spend)
    assert HOST <= stage <= furthest
    if predicted or not certain:
        assert stage is HOST
    if stage is DEVICE:
        assert idle
        assert may_spend
        assert attach_s > limits.immediate_s or (not attach_s and limits.context_s > limits.immediate_s)


@pytest.mark.parametrize(
    ("device_bytes", "more", "stage"),
    [
        (SMALL, {}, DEVICE), (LARGE, {}, DEVICE), (LARGE, {"predicted": True}, HOST),
        (LARGE, {"certain": False}, HOST),
    ])
def test_edits_get_an_idle_gpu_and_guesses_none(
    far: Any, device_bytes: int, more: dict[str, bool], stage: WorkerStage,
) -> None:
    far.prepare("s1", device_bytes=device_bytes, **more)
    order = far.one(act.PrepareWorker)
    assert order.stage is stage
    assert len(order.gpu_indices) == (stage is not HOST)


def test_no_device_is_opened_unless_the_limits_say_so(rig: Any) -> None:
    rig.prepare("s1", device_bytes=LARGE)
    assert (rig.one(act.PrepareWorker).stage, rig.one(act.PrepareWorker).gpu_indices) == (HOST, ())


def test_prediction_that_is_then_typed_in_is_taken_further(far: Any) -> None:
    far.prepare("s1", source="a", device_bytes=SMALL, predicted=True)
    done(far, "w1")
    far.prepare("s1", source="a", device_bytes=SMALL)
    order = far.one(act.PrepareWorker)
    assert (order.worker_id, order.stage) == ("w1", DEVICE)
    done(far, "w1")
    far.prepare("s1", source="a", device_bytes=SMALL)
    assert far.all(act.PrepareWorker) == []


def test_run_goes_where_its_context_is(new_rig: Any) -> None:
    far = new_rig(prepare_stage_max=CONTEXT)
    far.heartbeat(gpus=4)
    far.prepare("s0", source="b", device_bytes=SMALL)
    done(far, "w0")
    far.prepare("s1", source="a", device_bytes=SMALL)
    gpus = far.one(act.PrepareWorker).gpu_indices
    done(far, "w1")
    far.run("x1", "s1", source="a")
    lease = far.one(act.GrantLease).lease
    assert (lease.worker_id, lease.gpu_indices) == ("w1", gpus)
    assert gpus == (2,), "others' runs take the first ones"


def test_context_that_is_elsewhere_is_of_no_use_to_a_run_and_keeps_nobody_from_its_gpu(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=CONTEXT)
    rig.heartbeat(gpus=2)
    rig.prepare("s1", source="a", device_bytes=SMALL)
    assert rig.one(act.PrepareWorker).gpu_indices == (1,)
    done(rig, "w1")
    first = rig.lease("x2", "s2")
    assert rig.lease("x3", "s3").gpu_indices == (1,)
    assert rig.all(act.EvictWorker) == []
    rig.report(first, ExecutionState.SAVED, release=True)
    lease = rig.lease("x1", "s1", source="a")
    assert (lease.worker_id, lease.gpu_indices, lease.path) == ("", (0,), StartPath.COLD)


def test_run_that_comes_while_its_context_is_opened_goes_there(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=CONTEXT)
    rig.heartbeat(gpus=4)
    rig.prepare("s1", source="a", device_bytes=SMALL, predicted=True)
    done(rig, "w1")
    rig.prepare("s1", source="a", device_bytes=SMALL)
    order = rig.one(act.PrepareWorker)
    assert (order.worker_id, order.stage, order.gpu_indices) == ("w1", CONTEXT, (3,))
    rig.run("x1", "s1", source="a")
    lease = rig.one(act.GrantLease).lease
    assert (lease.worker_id, lease.gpu_indices) == ("w1", (3,))


def test_context_that_a_daemon_tells_outlives_a_restart_of_the_scheduler(new_rig: Any, worker: Any) -> None:
    rig = new_rig(prepare_stage_max=CONTEXT)
    told = replace(worker("w1", "s1", CONTEXT, prepared="a"), context_gpus=(2,))
    rig.heartbeat(gpus=4, workers=(told,))
    rig.run("x1", "s1", source="a")
    lease = rig.one(act.GrantLease).lease
    assert (lease.worker_id, lease.gpu_indices) == ("w1", (2,))


def test_contexts_that_only_wait_are_few_on_one_gpu(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=CONTEXT, contexts_per_gpu_max=2)
    rig.heartbeat(gpus=1)
    stages = []
    for number in range(3):
        rig.prepare(f"s{number}", source=f"c{number}", device_bytes=SMALL)
        stages.append(rig.one(act.PrepareWorker).stage)
        done(rig, f"w{number}")
    assert stages == [CONTEXT, CONTEXT, HOST]


def test_contexts_of_cells_in_which_nobody_types_shut_nobody_out_and_are_left(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=CONTEXT, heartbeat_suspect_s=900.0, heartbeat_dead_s=1000.0)
    rig.heartbeat(gpus=1)
    for number in range(3):
        rig.prepare(f"s{number}", source=f"c{number}", device_bytes=SMALL)
        done(rig, f"w{number}")
        rig.now_s += 1
    rig.prepare("new", source="c", device_bytes=SMALL)
    assert rig.one(act.PrepareWorker).stage is HOST
    done(rig, "w9")
    rig.now_s += 20
    rig.prepare("new", source="c", device_bytes=SMALL)
    back, order = rig.all(act.PrepareWorker)
    assert (back.worker_id, back.stage, back.leave_device) == ("w0", HOST, True)
    assert (order.worker_id, order.stage, order.leave_device) == ("w9", CONTEXT, False)
    # What was prepared stays so, in a worker that is bound to no GPU.
    rig.send(ev.WorkerPrepared(back.request_id, WorkerId("w10"), 50.0))
    rig.run("x0", "s0", source="c0")
    assert rig.one(act.GrantLease).lease.worker_id == "w10"


def test_contexts_make_way_for_a_cell_that_needs_their_memory(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=CONTEXT, context_bytes=10)
    rig.heartbeat(gpus=1, gpu_memory_bytes=100)
    rig.prepare("s1", source="a", device_bytes=1)
    done(rig, "w1")
    rig.finish(rig.lease("x0", "s2", device_bytes=90))
    rig.run("x2", "s3", device_bytes=91)
    assert {order.worker_id for order in rig.all(act.EvictWorker)} >= {"w1"}


def test_device_that_cannot_be_opened_is_left_alone_for_a_while(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=CONTEXT, heartbeat_suspect_s=900.0, heartbeat_dead_s=1000.0)
    rig.heartbeat(gpus=1)
    orders = 0
    for _ in range(100):
        rig.prepare("s1", source="a", device_bytes=SMALL)
        for order in rig.all(act.PrepareWorker):
            # Killed by the attempt, forked anew, left in host memory.
            orders += 1
            rig.send(ev.WorkerPrepared(order.request_id, WorkerId(f"w{orders}"), 100.0))
        rig.now_s += 0.2
    assert orders == 1
    rig.now_s += 30
    rig.prepare("s1", source="a", device_bytes=SMALL)
    assert rig.one(act.PrepareWorker).stage is CONTEXT


def test_run_that_waits_for_its_tenants_quota_keeps_nobodys_data_off_a_gpu(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=DEVICE, tenant_gpus_max=1, tenant_speculation_share=1.0)
    rig.heartbeat(gpus=8)
    for number in (1, 2):
        rig.run(f"x{number}", f"a{number}", tenant="a")
    assert len(rig.scheduler.state.queue) == 1
    rig.prepare("b1", device_bytes=LARGE, tenant="b")
    assert rig.one(act.PrepareWorker).stage is DEVICE


def test_tenants_part_counts_what_is_on_its_way(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=DEVICE)
    rig.heartbeat(gpus=8)
    stages = []
    for number in range(4):
        rig.prepare(f"s{number}", source=f"c{number}", device_bytes=LARGE, tenant="a")
        stages.append(rig.one(act.PrepareWorker).stage)
    assert stages == [DEVICE, DEVICE, CONTEXT, CONTEXT]


def test_data_on_a_gpu_make_way_for_a_run_at_once(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=DEVICE)
    rig.heartbeat(gpus=1)
    park(rig, "s1", "w1")
    rig.run("x2", "s2")
    order = rig.one(act.EvictWorker)
    assert order.worker_id == "w1"
    rig.send(ev.EvictionEnded(order.host_id, order.worker_id, order.lease_id, evicted=True))
    assert rig.one(act.GrantLease).lease.session_id == "s2"
    assert rig.scheduler.state.speculation.parked == {}
    assert rig.scheduler.state.speculation.totals.wasted == 1


def test_warm_worker_of_a_session_at_rest_makes_way_for_an_edit_one_that_is_typed_in_does_not(
    new_rig: Any,
) -> None:
    rig = new_rig(prepare_stage_max=DEVICE, heartbeat_suspect_s=900.0, heartbeat_dead_s=1000.0)
    rig.heartbeat(gpus=1)
    rig.finish(rig.lease("x0", "s0"), worker="w0")
    rig.prepare("s0", source="next", device_bytes=LARGE)
    done(rig, "w0")
    rig.prepare("s1", source="a", device_bytes=LARGE)
    assert rig.one(act.PrepareWorker).stage is CONTEXT
    done(rig, "w1")
    assert rig.all(act.EvictWorker) == []
    rig.now_s += 21
    rig.prepare("s1", source="a", device_bytes=LARGE)
    assert rig.one(act.EvictWorker).worker_id == "w0"
    assert (rig.one(act.PrepareWorker).stage, rig.one(act.PrepareWorker).gpu_indices) == (DEVICE, (0,))


def test_warm_worker_of_a_guessed_cell_makes_way_for_an_edit(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=DEVICE, heartbeat_suspect_s=900.0, heartbeat_dead_s=1000.0)
    rig.heartbeat(gpus=1)
    rig.prepare("s0", source="cell", device_bytes=LARGE)
    done(rig, "w0")
    rig.finish(rig.lease("x0", "s0"), worker="w0")
    rig.prepare("s0", source="next", version=2, device_bytes=LARGE, predicted=True)
    done(rig, "w0")
    rig.prepare("s1", source="a", device_bytes=LARGE)
    assert rig.one(act.EvictWorker).worker_id == "w0"
    assert (rig.one(act.PrepareWorker).stage, rig.one(act.PrepareWorker).gpu_indices) == (DEVICE, (0,))


def test_data_are_laid_where_the_context_is_or_nowhere(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=DEVICE, heartbeat_suspect_s=900.0, heartbeat_dead_s=1000.0)
    rig.heartbeat(gpus=2)
    first, second = rig.lease("x0", "s0"), rig.lease("x9", "s9")
    rig.finish(first, worker="w0")
    rig.prepare("s0", source="next", version=2, device_bytes=LARGE)
    done(rig, "w0")
    rig.prepare("s1", source="a", device_bytes=LARGE)
    assert (rig.one(act.PrepareWorker).stage, rig.one(act.PrepareWorker).gpu_indices) == (CONTEXT, (0,))
    done(rig, "w1")
    rig.finish(second)
    # The other GPU is free: only another worker could go there.
    rig.prepare("s1", source="a", device_bytes=LARGE)
    assert rig.one(act.AnswerPreparation).worker_id == "w1"
    assert rig.all(act.PrepareWorker) == []
    rig.prepare("s1", source="b", version=2, device_bytes=LARGE)
    order = rig.one(act.PrepareWorker)
    assert (order.worker_id, order.stage, order.gpu_indices) == ("w1", CONTEXT, (0,))
    done(rig, "w1")
    # Nobody edits the other cell any more.
    rig.now_s += 21
    rig.prepare("s1", source="b", version=2, device_bytes=LARGE)
    order = rig.one(act.PrepareWorker)
    assert (order.worker_id, order.stage, order.gpu_indices) == ("w1", DEVICE, (0,))
    assert rig.one(act.EvictWorker).worker_id == "w0"


def test_worker_that_stays_on_its_gpu_is_no_sign_of_a_device_that_cannot_be_opened(far: Any) -> None:
    far.finish(far.lease("x1", "s1"), worker="w1")
    far.prepare("s1", source="next", version=2, device_bytes=LARGE, predicted=True)
    order = far.one(act.PrepareWorker)
    assert (order.worker_id, order.gpu_indices) == ("w1", (0,))
    # What a daemon says of one that has run.
    far.send(ev.WorkerPrepared(order.request_id, order.worker_id, 50.0, stage=HOST))
    assert far.scheduler.state.sessions.touch(SessionId("s1")).device_not_before_s <= far.now_s


def test_two_workers_of_one_session_leave_their_contexts_one_after_the_other(new_rig: Any) -> None:
    rig = new_rig(
        prepare_stage_max=CONTEXT, contexts_per_gpu_max=1, heartbeat_suspect_s=900.0, heartbeat_dead_s=1000.0)
    told = tuple(
        WorkerReport(
            WorkerId(worker), SessionId("s1"), CONTEXT, prepared_source_hash="a", context_gpus=(0,))
        for worker in ("w1", "w2"))
    rig.heartbeat(workers=told)
    rig.now_s += 21
    rig.prepare("s2", source="b", device_bytes=SMALL)
    orders = [(order.session_id, order.worker_id, order.leave_device) for order in rig.all(act.PrepareWorker)]
    assert orders == [("s1", "w1", True), ("s2", "", False)]


def test_nothing_goes_to_a_gpu_while_somebody_waits(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=DEVICE)
    rig.heartbeat("h0", gpus=1)
    rig.heartbeat("h1", gpus=2)
    rig.lease("x1", "s1", gpus=2)
    rig.run("x2", "s2", gpus=2)
    rig.prepare("s3", device_bytes=LARGE)
    assert rig.one(act.PrepareWorker).stage is CONTEXT


def test_run_finds_its_data_on_its_gpu_and_nothing_is_wasted(far: Any) -> None:
    gpus = park(far, "s1", "w1")
    far.now_s += 5
    lease = far.lease("x1", "s1", source="large-s1", device_bytes=LARGE)
    assert (lease.worker_id, lease.gpu_indices) == ("w1", gpus)
    totals = far.scheduler.state.speculation.totals
    assert (totals.used, totals.wasted_gpu_s) == (1, 0.0)


def test_heartbeat_that_comes_before_the_answer_makes_no_preparation_wasted(rig: Any, worker: Any) -> None:
    rig.prepare("s1", source="a", names=("df",))
    order = rig.one(act.PrepareWorker)
    rig.heartbeat(workers=(worker("w1", stage=HOST, prepared="a"),))
    rig.send(ev.WorkerPrepared(order.request_id, WorkerId("w1"), 700.0))
    assert rig.scheduler.state.speculation.totals.wasted == 0
    rig.prepare("s1", source="b", names=("model",))
    done(rig, "w1")
    assert rig.scheduler.state.speculation.totals.wasted == 1


def test_without_a_keystroke_the_data_leave_the_gpu_and_stay_in_host_memory(far: Any) -> None:
    park(far, "s1", "w1")
    far.pass_time(19.0)
    assert far.all(act.PrepareWorker) == []
    far.prepare("s1", source="large-s1", device_bytes=LARGE)
    far.pass_time(19.0)
    assert far.all(act.PrepareWorker) == []
    far.pass_time(2.0)
    order = far.one(act.PrepareWorker)
    assert (order.worker_id, order.stage, order.gpu_indices) == ("w1", HOST, ())
    done(far, "w1")
    assert far.scheduler.state.hosts.worker(HostId("h0"), WorkerId("w1")).gpu_indices == ()
    assert far.scheduler.state.speculation.totals.wasted_gpu_s == 40.0
    far.run("x1", "s1", source="large-s1")
    assert far.one(act.GrantLease).lease.worker_id == "w1"


def test_restarted_scheduler_finds_data_on_a_gpu_and_lets_them_go(far: Any, worker: Any) -> None:
    for _ in range(2):
        far.heartbeat(gpus=4, workers=(worker("w1", "s1", DEVICE, gpus=(0,), prepared="a"),))
    assert list(far.scheduler.state.speculation.parked) == ["w1"]
    far.pass_time(21.0)
    assert (far.one(act.PrepareWorker).worker_id, far.one(act.PrepareWorker).stage) == ("w1", HOST)


def test_worker_that_attaches_under_its_lease_is_not_taken_for_an_idle_one(far: Any, worker: Any) -> None:
    lease = far.lease("x1", "s1")
    for _ in range(2):
        far.heartbeat(gpus=4, workers=(worker("w1", "s1", DEVICE, gpus=lease.gpu_indices),), leases=(lease,))
    assert far.scheduler.state.hosts.worker(HostId("h0"), WorkerId("w1")).stage is DEVICE
    assert far.scheduler.state.speculation.parked == {}


def test_session_that_wasted_its_budget_gets_no_gpu_before_its_cells_earned_more(new_rig: Any) -> None:
    far = new_rig(
        prepare_stage_max=DEVICE, heartbeat_suspect_s=900.0, heartbeat_dead_s=1000.0, waste_burst_gpu_s=30.0,
        waste_refill=0.1)
    far.heartbeat(gpus=4)
    park(far, "s1", "w1")
    far.pass_time(31.0)
    done(far, "w1")
    far.prepare("s1", source="other", device_bytes=LARGE)
    assert far.one(act.PrepareWorker).stage is CONTEXT
    done(far, "w1")
    lease = far.lease("x1", "s1", source="other", device_bytes=LARGE)
    far.now_s += 100
    far.report(lease, ExecutionState.SAVED, release=True)
    assert far.scheduler.state.sessions.touch(SessionId("s1")).spare_gpu_s == pytest.approx(30 - 31 + 10)


def test_tenant_may_speculate_on_its_part_of_the_pool_only(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=DEVICE)
    rig.heartbeat(gpus=8)
    stages = []
    for number in range(3):
        rig.prepare(f"s{number}", source=f"c{number}", device_bytes=LARGE, tenant="a")
        stages.append(rig.one(act.PrepareWorker).stage)
        done(rig, f"w{number}")
    assert stages == [DEVICE, DEVICE, CONTEXT]


def test_speculation_of_a_tenant_over_its_part_goes_before_others(new_rig: Any) -> None:
    rig = new_rig(prepare_stage_max=DEVICE, tenant_speculation_share=1.0)
    rig.heartbeat(gpus=3)
    for session, tenant in (("s1", "b"), ("s2", "a"), ("s3", "a")):
        rig.prepare(session, source=session, device_bytes=LARGE, tenant=tenant)
        assert rig.one(act.PrepareWorker).stage is DEVICE
        done(rig, f"w{session}")
    for tenant in ("a", "b", "c"):
        rig.scheduler.state.shares.begin(f"l-{tenant}", tenant, 1, 0.0)  # three active tenants: one GPU each
    rig.pass_time(1.0)
    rig.run("x9", "s9", tenant="c")
    assert rig.one(act.EvictWorker).worker_id == "ws2"


def test_lease_that_took_the_gpu_meanwhile_keeps_it(far: Any) -> None:
    far.prepare("s1", source="a", device_bytes=LARGE)
    order = far.one(act.PrepareWorker)
    assert order.gpu_indices == (3,)
    for number in range(4):
        far.lease(f"x{number}", f"t{number}")
    far.send(ev.WorkerPrepared(order.request_id, WorkerId("w1"), 700.0, stage=DEVICE, gpu_indices=(3,)))
    back = far.one(act.PrepareWorker)
    assert (back.worker_id, back.stage) == ("w1", HOST)
    assert far.scheduler.state.speculation.parked == {}


def test_new_workers_for_one_session_come_ever_more_slowly() -> None:
    limits, session = Limits(), Session(Epoch(0))
    waits, now_s = [], 0.0
    for _ in range(6):
        now_s += fork_wait_s(session, now_s)
        count_fork(session, now_s, limits)
        waits.append(fork_wait_s(session, now_s))
    assert waits == [2.0, 4.0, 8.0, 16.0, 16.0, 16.0]
    now_s += 40
    count_fork(session, now_s, limits)
    assert fork_wait_s(session, now_s) == 2.0
    forget_forks(session)
    assert fork_wait_s(session, now_s) == 0.0


def test_fork_that_comes_too_early_is_skipped_with_a_reason(rig: Any) -> None:
    rig.prepare("s1", source="a")
    rig.send(ev.PreparationFailed(rig.one(act.PrepareWorker).request_id, "FORK_FAILED"))
    rig.prepare("s1", source="b")
    assert rig.one(act.AnswerPreparation).skipped_reason == (
        "This notebook has needed new workers too often; the next in 2 s.")
    rig.now_s += 2
    rig.prepare("s1", source="b")
    assert rig.one(act.PrepareWorker)


@given(st.lists(st.floats(0, 1000), max_size=20))
def test_budget_never_exceeds_its_burst(used: list[float]) -> None:
    limits, session = Limits(), Session(Epoch(0))
    for gpu_s in used:
        earn(session, gpu_s, limits)
        assert session.spare_gpu_s <= limits.waste_burst_gpu_s


@pytest.mark.parametrize("heard_first", [False, True])
def test_data_on_a_gpu_count_once_whether_answer_or_heartbeat_tells_first(
    far: Any, worker: Any, heard_first: bool
) -> None:
    far.prepare("s1", source="a", device_bytes=LARGE)
    order = far.one(act.PrepareWorker)
    answer = ev.WorkerPrepared(order.request_id, WorkerId("w1"), 700.0, stage=DEVICE, gpu_indices=order.gpu_indices)
    told = worker("w1", "s1", DEVICE, gpus=order.gpu_indices, prepared="a")
    if heard_first:
        # GPUs that a preparation is to get are believed from its answer on; its worker is there already.
        far.heartbeat(gpus=4, workers=(told,))
    far.send(answer)
    far.heartbeat(gpus=4, workers=(told,))
    far.heartbeat(gpus=4, workers=(told,))
    assert far.scheduler.state.speculation.totals.on_device == 1
