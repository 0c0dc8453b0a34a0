"""Cells go where their memory is: what is free of others, and what such cells were seen to hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.ids import HostId, LeaseId, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionState, Lease, WorkerReport, WorkerStage
from looseleaf.services.scheduler.core.foreign_memory import ForeignMemory
from looseleaf.services.scheduler.core.shapes import HostShape
from tests.services.scheduler.core.conftest import Rig

SETTLE_S = 15.0


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 80), st.booleans()), min_size=1, max_size=20))
def test_others_are_taken_to_use_what_is_in_use_where_none_of_ours_has_been_and_never_more_than_is_in_use(
    looks: list[tuple[float, int, bool]],
) -> None:
    foreign, now_s, left_s, known = ForeignMemory(), 0.0, None, 0
    for pause_s, used, ours in looks:
        now_s += pause_s
        foreign.measured([used], {0} if ours else (), now_s, SETTLE_S)
        left_s = None if ours else now_s if left_s is None else left_s
        settled = left_s is not None and now_s - left_s >= SETTLE_S
        known = used if settled else min(known, used)
        assert foreign.on(0) == known == foreign.most_bytes
        assert foreign.on(1) == 0


@pytest.mark.parametrize("stage", [WorkerStage.CONTEXT_READY, WorkerStage.DEVICE_READY])
def test_what_a_preparation_of_ours_takes_of_a_gpu_is_nobody_elses(
    new_rig: Any, worker: Any, stage: WorkerStage
) -> None:
    rig = new_rig(prepare_stage_max=stage, heartbeat_suspect_s=9e3, heartbeat_dead_s=9e3)

    def beat(used_bytes: int, *workers: WorkerReport) -> None:
        rig.heartbeat(gpus=1, gpu_memory_bytes=1000, gpu_used_bytes=(used_bytes,), workers=workers)

    for _ in range(20):
        beat(0)
        rig.now_s += 1
    rig.prepare("s1", source="a", device_bytes=600)
    order = rig.one(act.PrepareWorker)
    assert (order.stage, order.gpu_indices) == (stage, (0,))
    # Before its answer, from a worker that nobody has told of yet; then for long.
    beat(500)
    beat(500, replace(worker("w1", "s1", WorkerStage.IMPORTED), context_gpus=(0,)))
    gpus = (0,) if stage is WorkerStage.DEVICE_READY else ()
    rig.send(ev.WorkerPrepared(order.request_id, WorkerId("w1"), 100.0, stage=stage, gpu_indices=(0,)))
    ready = replace(worker("w1", "s1", stage, gpus=gpus, prepared="a"), context_gpus=() if gpus else (0,))
    for _ in range(100):
        rig.now_s += 1
        beat(500, ready)
    assert rig.scheduler.state.hosts.get(HostId("h0")).foreign.on(0) == 0
    rig.run("x1", "s1", source="a", device_bytes=600)
    assert rig.one(act.GrantLease).lease.gpu_indices == (0,)


@pytest.fixture
def crowded(new_rig: Any) -> Any:
    """A host of two GPUs of 80, where somebody else uses 50 of the first, and one of one GPU of 40."""
    rig = new_rig(heartbeat_suspect_s=9e3, heartbeat_dead_s=9e3)
    for _ in range(2):
        rig.heartbeat("h0", gpus=2, gpu_memory_bytes=80, gpu_used_bytes=(50, 0))
        rig.heartbeat("h1", gpus=1, gpu_memory_bytes=40)
        rig.pass_time(SETTLE_S)
    return rig


def test_cell_goes_to_a_gpu_with_enough_free_memory_and_waits_while_there_is_none(crowded: Any) -> None:
    first = crowded.lease("x1", "s1", device_bytes=60)
    assert (first.host_id, first.gpu_indices) == ("h0", (1,))
    crowded.run("x2", "s2", device_bytes=60)
    assert crowded.all(act.GrantLease) == crowded.all(act.Refuse) == []
    told = crowded.one(act.NotifyQueue)
    assert told.reason == "No GPU with enough memory for this cell's variables is free."
    small = crowded.lease("x3", "s3", device_bytes=30)
    assert (small.host_id, small.gpu_indices) == ("h0", (0,))
    crowded.report(small, ExecutionState.STARTED)
    crowded.finish(small)
    # The other one has gone: less is in use than was known.
    crowded.heartbeat("h0", gpus=2, gpu_memory_bytes=80, gpu_used_bytes=(10, 70), leases=(first,))
    granted = crowded.one(act.GrantLease).lease
    assert (granted.execution_id, granted.gpu_indices) == ("x2", (0,))


def test_cell_that_fits_no_gpu_even_if_all_are_free_is_refused(crowded: Any) -> None:
    crowded.run("x1", device_bytes=81)
    assert crowded.one(act.Refuse).reason == "NEVER_FITS"


def test_cell_of_two_gpus_needs_its_share_of_memory_on_each(crowded: Any) -> None:
    crowded.run("x1", gpus=2, device_bytes=60)
    assert crowded.one(act.GrantLease).lease.host_id == "h0"
    crowded.run("x2", "s2", gpus=2, device_bytes=62)
    crowded.finish(crowded.scheduler.state.leases.on_host(HostId("h0"))[0].lease)
    assert crowded.all(act.GrantLease) == []


def test_memory_of_our_own_workers_is_nobody_elses(new_rig: Any, worker: Any) -> None:
    rig = new_rig(heartbeat_suspect_s=9e3, heartbeat_dead_s=9e3)
    rig.heartbeat("h0", gpus=1, gpu_memory_bytes=80)
    lease = rig.lease("x1", "s1", device_bytes=70)
    rig.report(lease, ExecutionState.STARTED)
    rig.finish(lease, worker="w1")
    for _ in range(3):
        rig.pass_time(SETTLE_S)
        rig.heartbeat("h0", gpus=1, gpu_memory_bytes=80, gpu_used_bytes=(75,), workers=(worker("w1", gpus=(0,)),))
    rig.run("x2", "s2", device_bytes=60)
    assert rig.one(act.EvictWorker).worker_id == "w1"


@pytest.mark.parametrize("what", ["preparation", "failed preparation", "cell"])
def test_what_began_and_ended_between_two_measurements_was_ours(new_rig: Any, what: str) -> None:
    rig = new_rig(prepare_stage_max=WorkerStage.CONTEXT_READY, heartbeat_suspect_s=9e3, heartbeat_dead_s=9e3)
    told: dict[str, Any] = {"gpu_memory_bytes": 1000}
    for _ in range(2):
        rig.heartbeat("h0", gpu_used_bytes=(0,), **told)
        rig.pass_time(SETTLE_S)
    if what == "cell":
        rig.finish(rig.lease("x1"))
    else:
        rig.prepare(certain=True)
        order = rig.one(act.PrepareWorker)
        assert order.gpu_indices == (0,)
        if what == "preparation":
            rig.send(ev.WorkerPrepared(
                order.request_id, WorkerId("w1"), 100.0, 1, 0, WorkerStage.CONTEXT_READY, order.gpu_indices))
            rig.send(ev.EvictionEnded(HostId("h0"), WorkerId("w1"), LeaseId(""), True))
            assert not rig.all(act.PrepareWorker)
        else:
            rig.send(ev.PreparationFailed(order.request_id, "ENDED"))
    foreign = rig.scheduler.state.hosts.get(HostId("h0")).foreign
    for pause_s, known in ((1.0, 0), (SETTLE_S, 0), (SETTLE_S, 500)):
        rig.pass_time(pause_s)
        rig.heartbeat("h0", gpu_used_bytes=(500,), **told)
        assert foreign.on(0) == known


@pytest.fixture
def unlike(new_rig: Any) -> Any:
    """A host of a GPU of 24 and one of a GPU of 80."""
    rig = new_rig(heartbeat_suspect_s=9e3, heartbeat_dead_s=9e3)
    rig.heartbeat("h0", gpus=1, gpu_memory_bytes=24)
    rig.heartbeat("h1", gpus=1, gpu_memory_bytes=80)
    return rig


def test_cell_that_was_seen_to_hold_much_waits_a_while_for_a_gpu_of_that_size(unlike: Any) -> None:
    large = unlike.lease("x1", "s1", device_bytes=10, peak_bytes=60)
    assert large.host_id == "h1"
    unlike.run("x2", "s2", device_bytes=10, peak_bytes=60)
    unlike.run("x3", "s3", device_bytes=10, peak_bytes=60)
    assert unlike.all(act.GrantLease) == []
    told = unlike.one(act.NotifyQueue)
    assert told.reason == (
        "No GPU with as much memory as this cell held in earlier runs is free; after 30 s one with room for its"
        " variables will do.")
    unlike.pass_time(29.0)
    assert unlike.all(act.GrantLease) == []
    unlike.finish(large)
    assert unlike.one(act.GrantLease).lease.host_id == "h1"
    unlike.pass_time(1.0)
    assert unlike.one(act.GrantLease).lease.host_id == "h0"


@given(
    st.integers(1, 24), st.integers(0, 200), st.lists(st.sampled_from([24, 80]), max_size=2),
    st.lists(st.tuples(st.sampled_from([24, 80]), st.sampled_from(["draining", "silent"])), max_size=3))
@settings(deadline=None, max_examples=30)
def test_what_was_learned_keeps_no_cell_waiting_longer_and_costs_no_host_whatever_other_hosts_there_are(
    device_bytes: int, peak_bytes: int, busy: list[int], closed: list[tuple[int, str]],
) -> None:
    rig = Rig(hosts_min=0, hosts_max=9, gpus_per_host=1, headroom_hosts=0)
    hosts: dict[str, dict[str, Any]] = {}
    leases: dict[str, tuple[Lease, ...]] = {}

    def beat() -> None:
        for host, told in hosts.items():
            rig.heartbeat(host, leases=leases.get(host, ()), **told)

    rig.send(ev.HostsProvided(frozenset(), frozenset(), (HostShape(1, 24), HostShape(1, 200))))
    for number, memory in enumerate(busy):
        hosts[f"busy{number}"] = {"gpu_memory_bytes": memory}
        beat()
        lease = rig.lease(f"b{number}", f"t{number}")
        leases[f"busy{number}"] = (lease,)
        rig.report(lease, ExecutionState.STARTED)
    for number, (memory, how) in enumerate(closed):
        name = f"{how}{number}"
        rig.heartbeat(name, gpu_memory_bytes=memory, draining=how == "draining")
        if how == "draining":
            hosts[name] = {"gpu_memory_bytes": memory, "draining": True}
    hosts["open"] = {"gpu_memory_bytes": 24}
    for _ in range(4):
        rig.pass_time(1.0)
        beat()
    rig.prepare("p1", device_bytes=device_bytes, peak_bytes=peak_bytes)
    assert rig.one(act.PrepareWorker).host_id in hosts
    rig.run("x1", device_bytes=device_bytes, peak_bytes=peak_bytes)
    granted = rig.all(act.GrantLease)
    for _ in range(30):
        rig.pass_time(1.0)
        assert not rig.all(act.PowerOn)
        assert not rig.all(act.DrainHost)
        granted += rig.all(act.GrantLease)
        beat()
    assert [grant.lease.host_id for grant in granted] == ["open"]


def test_worker_is_prepared_where_the_cell_will_run(unlike: Any) -> None:
    unlike.prepare("s1", device_bytes=10, peak_bytes=60)
    assert unlike.one(act.PrepareWorker).host_id == "h1"
    unlike.prepare("s2", device_bytes=10, peak_bytes=200)
    assert unlike.one(act.PrepareWorker)


def test_data_are_put_on_no_gpu_before_run_where_others_leave_too_little(new_rig: Any) -> None:
    rig = new_rig(heartbeat_suspect_s=9e3, heartbeat_dead_s=9e3, prepare_stage_max=WorkerStage.DEVICE_READY)
    for _ in range(2):
        rig.heartbeat("h0", gpus=2, gpu_memory_bytes=80, gpu_used_bytes=(0, 50))
        rig.pass_time(SETTLE_S)
    rig.prepare("s1", device_bytes=60)
    order = rig.one(act.PrepareWorker)
    assert (order.stage, order.gpu_indices) == (WorkerStage.DEVICE_READY, (0,))


def test_what_was_learned_refuses_nobody(unlike: Any) -> None:
    unlike.run("x1", "s1", device_bytes=10, peak_bytes=200)
    assert unlike.one(act.GrantLease)
    assert unlike.all(act.Refuse) == []


def test_cell_does_not_wait_for_ever_for_memory_that_it_only_may_need(new_rig: Any) -> None:
    rig = new_rig(heartbeat_suspect_s=9e3, heartbeat_dead_s=9e3)
    for _ in range(2):
        rig.heartbeat("h0", gpus=1, gpu_memory_bytes=80, gpu_used_bytes=(5,))
        rig.pass_time(SETTLE_S)
    rig.run("x1", device_bytes=10, peak_bytes=79)
    assert rig.all(act.GrantLease) == []
    rig.pass_time(29.0)
    assert rig.all(act.GrantLease) == []
    rig.pass_time(1.0)
    assert rig.one(act.GrantLease)


def test_host_is_started_for_memory_that_others_leave_nowhere(new_rig: Any) -> None:
    rig = new_rig(
        hosts_min=1, hosts_max=2, gpus_per_host=1, headroom_hosts=0, heartbeat_suspect_s=9e3, heartbeat_dead_s=9e3)
    rig.send(ev.HostsProvided(frozenset(), frozenset(), (HostShape(1, 80),)))
    for _ in range(2):
        rig.heartbeat("h0", gpus=1, gpu_memory_bytes=80, gpu_used_bytes=(50,))
        rig.pass_time(SETTLE_S)
    rig.run("x1", device_bytes=60)
    rig.pass_time(1.0)
    assert rig.all(act.PowerOn) == []
    rig.pass_time(10.0)
    assert rig.one(act.PowerOn) == act.PowerOn(1, HostShape(1, 80))
