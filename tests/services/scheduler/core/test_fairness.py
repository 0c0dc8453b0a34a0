"""Whose turn it is: tenants by what they used, runs of one tenant by arrival, and nobody waits for ever."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId, Version
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core.facts import ExecutionState, RecipeFacts
from looseleaf.services.scheduler.core.fairness import TenantShares, in_turn
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.queue import Run, RunQueue

TENANTS = st.sampled_from(["", "a", "b"])


def run(number: int, tenant: str, arrived_at_s: float = 0.0, gpus: int = 1) -> Run:
    return Run(
        ExecutionId(f"x{number}"), SessionId(f"s{number}"), Epoch(1), RecipeFacts("h", Version(1), gpu_count=gpus),
        "interactive", number, arrived_at_s, arrived_at_s, tenant=tenant)


def queue_of(*runs: Run) -> RunQueue:
    queue = RunQueue()
    for queued in runs:
        queue.put(queued)
    return queue


def served(queue: RunQueue, shares: TenantShares, limits: Limits, now_s: float) -> list[str]:
    return [queued.execution_id for queued in in_turn(queue, shares, limits, now_s)]


@given(
    st.lists(st.tuples(TENANTS, st.floats(0, 400), st.integers(1, 4)), max_size=30),
    st.lists(st.tuples(TENANTS, st.integers(1, 8), st.floats(0, 400)), max_size=6))
def test_everybody_has_a_turn_and_no_tenants_runs_overtake_each_other(
    waiting: list[tuple[str, float, int]], leases: list[tuple[str, int, float]],
) -> None:
    limits = Limits(tenant_weights=(("a", 3.0),))
    shares, queue = TenantShares(limits), RunQueue()
    for number, (tenant, granted_at_s, gpus) in enumerate((t, s, g) for t, g, s in leases):
        shares.begin(LeaseId(f"l{number}"), tenant, gpus, granted_at_s)
    for number, (tenant, arrived_at_s, gpus) in enumerate(waiting):
        queue.put(run(number, tenant, arrived_at_s, gpus))
    order = list(in_turn(queue, shares, limits, 400.0))
    assert sorted(r.execution_id for r in order) == sorted(r.execution_id for r in queue)
    for tenant in ("", "a", "b"):
        keys = [r.key for r in order if r.tenant == tenant]
        assert keys == sorted(keys)
    heads = [next((r for r in order if r.tenant == tenant), None) for tenant in ("", "a", "b")]
    starved = sorted(
        r.key for r in heads
        if r and 400.0 - max(r.rank_s, shares.granted_at_s(r.tenant)) >= limits.fair_fifo_after_s)
    if sum(r is not None for r in heads) > 1:
        assert [r.key for r in order[:len(starved)]] == starved


@given(st.lists(st.tuples(TENANTS, st.integers(1, 8), st.floats(0, 100), st.floats(0, 1000)), max_size=8))
def test_use_is_what_leases_held_decayed_from_their_end_on(leases: list[tuple[str, int, float, float]]) -> None:
    limits = Limits()
    shares = TenantShares(limits)
    now_s = 0.0
    expected = {"": 0.0, "a": 0.0, "b": 0.0}
    for number, (tenant, gpus, held_s, pause_s) in enumerate(leases):
        shares.begin(LeaseId(f"l{number}"), tenant, gpus, now_s)
        assert shares.gpus(tenant) == gpus
        now_s += held_s
        shares.end(LeaseId(f"l{number}"), now_s)
        for other in expected:
            expected[other] *= 0.5 ** (held_s / limits.fair_half_life_s)
        expected[tenant] += gpus * held_s
        now_s += pause_s
        for other in expected:
            expected[other] *= 0.5 ** (pause_s / limits.fair_half_life_s)
    for tenant, used in expected.items():
        assert abs(shares.used_gpu_s(tenant, now_s) - used) <= 1e-6 * (1 + used)


def test_tenants_take_turns_within_one_round() -> None:
    limits = Limits()
    queue = queue_of(*(run(n, "a") for n in range(4)), *(run(n, "b", 1.0) for n in range(4, 7)))
    assert served(queue, TenantShares(limits), limits, 2.0) == ["x0", "x4", "x1", "x5", "x2", "x6", "x3"]


def test_tenant_of_weight_two_has_two_turns_for_each_of_the_others() -> None:
    limits = Limits(tenant_weights=(("a", 2.0),))
    queue = queue_of(*(run(n, "a") for n in range(4)), *(run(n, "b", 1.0) for n in range(4, 6)))
    assert served(queue, TenantShares(limits), limits, 2.0) == ["x0", "x4", "x1", "x2", "x5", "x3"]


def test_tenant_that_used_less_goes_first_until_the_other_has_waited_long() -> None:
    limits = Limits()
    shares = TenantShares(limits)
    shares.begin(LeaseId("l1"), "a", 1, 0.0)
    shares.end(LeaseId("l1"), 30.0)
    shares.begin(LeaseId("l2"), "b", 1, 0.0)
    shares.end(LeaseId("l2"), 20.0)
    queue = queue_of(run(1, "a", 30.0), run(2, "b", 31.0))
    assert served(queue, shares, limits, 32.0) == ["x2", "x1"]
    assert served(queue, shares, limits, 60.0) == ["x1", "x2"]  # a waited 30 s: its weight doubles, b's not yet
    assert served(queue, shares, limits, 155.0) == ["x1", "x2"]  # both first come, first served


def test_forgotten_tenants_are_those_that_hold_nothing_and_used_little() -> None:
    shares = TenantShares(Limits())
    shares.begin(LeaseId("l1"), "a", 1, 0.0)
    shares.forget_idle(1e6)
    assert shares.gpus("a") == 1
    shares.end(LeaseId("l1"), 10.0)
    shares.forget_idle(11.0)
    assert shares.used_gpu_s("a", 11.0) > 9
    shares.forget_idle(1e6)
    assert shares.used_gpu_s("a", 11.0) == 0


def test_flood_of_one_tenant_does_not_keep_another_waiting(rig: Any) -> None:
    first = rig.lease("x0", "s0", tenant="a")
    for number in range(1, 60):
        rig.run(f"x{number}", f"s{number}", tenant="a")
    rig.run("y1", "t1", tenant="b")
    rig.now_s += 2
    rig.finish(first)
    assert rig.one(act.GrantLease).lease.execution_id == "y1"


def test_flood_that_waits_for_minutes_does_not_keep_another_tenant_waiting() -> None:
    limits = Limits()
    shares, queue = TenantShares(limits), queue_of(*(run(n, "a") for n in range(499)), run(500, "b", 130.0))
    shares.begin(LeaseId("l1"), "a", 1, 0.0)
    places = []
    for now_s in (131.0, 180.0, 300.0):
        shares.begin(LeaseId(f"l{now_s}"), "a", 1, now_s)
        places.append(served(queue, shares, limits, now_s).index("x500"))
    assert places == [0, 0, 0]


def test_tenant_without_a_gpu_for_long_has_one_turn_before_those_that_used_less() -> None:
    limits = Limits()
    shares = TenantShares(limits)
    shares.begin(LeaseId("l1"), "a", 8, 0.0)
    queue = queue_of(*(run(n, "a", 10.0) for n in range(3)), *(run(n, "b", 200.0) for n in range(3, 6)))
    assert served(queue, shares, limits, 201.0) == ["x0", "x3", "x4", "x5", "x1", "x2"]


def test_cells_that_their_own_notebook_holds_back_take_no_turn_of_a_colleague() -> None:
    limits = Limits()
    all_of_one = [run(n, "a") for n in range(10)]
    for waiting in all_of_one:
        waiting.session_id = SessionId("busy")
    queue = queue_of(*all_of_one, *(run(n, "b", 1.0) for n in range(10, 18)), run(99, "a", 2.0))
    shares = TenantShares(limits)
    assert served(queue, shares, limits, 3.0)[:4] == ["x0", "x10", "x11", "x99"]
    order = [
        queued.execution_id for queued in in_turn(queue, shares, limits, 3.0, lambda session: session == "busy")]
    assert order[:3] == ["x10", "x99", "x11"]
    assert order[-10:] == [queued.execution_id for queued in all_of_one]


def test_places_told_are_those_of_the_turns(new_rig: Any) -> None:
    rig = new_rig()
    rig.heartbeat()
    rig.lease("x0", "s0", tenant="a")
    rig.run("x1", "s1", tenant="a")
    rig.run("x2", "s2", tenant="a")
    rig.run("y1", "t1", tenant="b")
    assert [(told.request_id, told.position) for told in rig.all(act.NotifyQueue)] == [
        ("r5", 1), ("r3", 2), ("r4", 3)]
    assert [told.execution_id for told in rig.scheduler.pool(rig.now_s, queue_max=9).queue] == ["y1", "x1", "x2"]


def test_tenant_at_its_quota_waits_though_a_gpu_is_free(new_rig: Any) -> None:
    rig = new_rig(tenant_gpus_max=1)
    rig.heartbeat(gpus=3)
    first = rig.lease("x1", "s1", tenant="a")
    rig.run("x2", "s2", tenant="a")
    assert rig.one(act.NotifyQueue).reason == "Your team already uses 1 of its 1 GPU."
    rig.run("y1", "t1", tenant="b")
    assert rig.one(act.GrantLease).lease.execution_id == "y1"
    rig.finish(first)
    assert rig.one(act.GrantLease).lease.execution_id == "x2"
    rig.run("x3", "s3", tenant="a", gpus=2)
    assert rig.one(act.Refuse).reason == "NEVER_FITS"
    assert rig.state_of("x3") is ExecutionState.UNSPECIFIED


def test_people_are_told_how_long_they_will_wait_once_enough_cells_ended(rig: Any) -> None:
    for number in range(3):
        lease = rig.lease(f"x{number}", f"s{number}")
        rig.now_s += 10
        rig.heartbeat(leases=(lease,))
        rig.finish(lease)
    rig.lease("x8", "s8")
    rig.run("x9", "s9")
    told = rig.one(act.NotifyQueue)
    assert (told.position, told.estimated_s) == (1, 10.0)
