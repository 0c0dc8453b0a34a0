"""Contexts before Run are shared among tenants by weight, and those that were for nothing are counted."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.ids import HostId, SessionId, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import contexts
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import WorkerReport, WorkerStage
from looseleaf.services.scheduler.core.hosts import Host
from tests.services.scheduler.core.conftest import Rig

GPUS, PER_GPU = 2, 3
TENANTS = ("a", "b", "c")


class Typists(Rig):
    """People of several tenants on one host, whose daemon does at once what it is told."""

    def __init__(self, **limits: Any) -> None:
        self.names = itertools.count(1)
        super().__init__(
            heartbeat_suspect_s=9e5, heartbeat_dead_s=1e6, prepare_stage_max=WorkerStage.CONTEXT_READY,
            contexts_per_gpu_max=PER_GPU, prepared_max_per_host=99, **limits)
        self.heartbeat(gpus=GPUS)

    def type_in(self, tenant: str, number: int) -> bool:
        """One keystroke; True if that cell has a context afterwards."""
        session = SessionId(f"{tenant}{number}")
        # A session whose device was left may be forked anew at once here: only contexts matter.
        self.scheduler.state.sessions.touch(session).fork_not_before_s = 0.0
        orders = [action for action in self.prepare(session, source=session, tenant=tenant)
                  if isinstance(action, act.PrepareWorker)]
        for order in orders:
            stage = WorkerStage.HOST_READY if order.leave_device else order.stage
            worker = f"w{next(self.names)}" if order.leave_device or not order.worker_id else order.worker_id
            self.send(ev.WorkerPrepared(
                order.request_id, WorkerId(worker), 5.0, stage=stage, gpu_indices=order.gpu_indices))
            if order.leave_device:
                # A context ends with its process.
                self.host.workers.pop(order.worker_id)
        self.check()
        return session in self.have()

    @property
    def host(self) -> Host:
        found = self.scheduler.state.hosts.get(HostId("h0"))
        assert found is not None
        return found

    def have(self) -> set[str]:
        """Sessions with a context, by what the workers themselves are."""
        return {w.session_id for w in self.host.workers.values() if w.context_gpus}

    def held(self, tenant: str) -> int:
        return sum(session.startswith(tenant) for session in self.have())

    def check(self) -> None:
        workers = self.host.workers.values()
        for index in range(GPUS):
            assert sum(index in worker.context_gpus for worker in workers) <= PER_GPU
        for tenant in TENANTS:
            assert contexts.held_by(self.scheduler.state, tenant, self.now_s) == self.held(tenant)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(0, 7)), max_size=40),
    st.tuples(*[st.sampled_from((1.0, 2.0, 4.0))] * 3))
def test_contexts_are_all_in_use_and_nobody_who_wants_one_holds_less_than_a_part(
    keystrokes: list[tuple[str, int]], weights: tuple[float, ...],
) -> None:
    weight = dict(zip(TENANTS, weights, strict=True))
    rig = Typists(tenant_weights=tuple(weight.items()))
    for tenant, number in keystrokes:
        before = {other: rig.held(other) / weight[other] for other in TENANTS}
        had = len(rig.have())
        got = rig.type_in(tenant, number)
        assert len(rig.have()) >= had, "a context is left for nobody"
        if not got:
            assert len(rig.have()) == GPUS * PER_GPU, "there is room"
            mine = before[tenant] + 1 / weight[tenant]
            assert max(before.values()) <= mine, "somebody holds more by weight and does not make way"


def test_parts_that_cannot_be_equal_stay_as_they_are() -> None:
    rig = Typists()
    rig.type_in("a", 0)
    everybody = [(tenant, number) for number in range(4) for tenant in ("b", "c")]
    for tenant, number in everybody:
        rig.type_in(tenant, number)
    settled = rig.have()
    assert sorted(map(rig.held, TENANTS)) == [1, 2, 3]
    for tenant, number in everybody:
        rig.type_in(tenant, number)
        assert rig.have() == settled


def test_tenant_alone_may_have_all_contexts_and_gives_those_beyond_its_part_to_another() -> None:
    rig = Typists()
    assert [rig.type_in("a", number) for number in range(8)] == [True] * 6 + [False] * 2
    assert [rig.type_in("b", number) for number in range(4)] == [True] * 3 + [False]
    # Nothing goes to and fro.
    assert not any(rig.type_in("a", number) for number in (6, 7))
    assert (rig.held("a"), rig.held("b")) == (3, 3)
    totals = rig.scheduler.state.speculation.totals
    assert (totals.contexts, totals.contexts_wasted) == (9, 3)


def test_context_of_whoever_typed_least_lately_is_left_and_what_was_prepared_stays() -> None:
    rig = Typists()
    for number in (2, 1, 0, 3, 4, 5):
        rig.type_in("a", number)
        rig.now_s += 1.0
    rig.type_in("b", 0)
    assert rig.have() == {"a0", "a1", "a3", "a4", "a5", "b0"}
    rig.run("x", "a2", source="a2", tenant="a")
    assert rig.one(act.GrantLease).lease.path.name == "PREPARED"


def test_waiting_for_nothing_is_counted_and_a_context_that_a_cell_uses_is_not() -> None:
    rig = Typists()
    for tenant in ("a", "b"):
        rig.type_in(tenant, 0)
    rig.now_s += 5.0
    rig.lease("x", "a0", source="a0", tenant="a")
    for _ in range(2):
        # The daemon no longer has the other one.
        rig.heartbeat(gpus=GPUS, leases=tuple(entry.lease for entry in rig.scheduler.state.leases))
    totals = rig.scheduler.state.speculation.totals
    assert (totals.contexts, totals.contexts_used, totals.contexts_wasted) == (2, 1, 1)
    assert totals.wasted_context_s == pytest.approx(5.0)
    assert not list(rig.scheduler.state.speculation.contexts)


def test_gang_takes_no_more_than_its_part_on_all_its_gpus_together() -> None:
    rig = Typists(tenant_weights=(("a", 4.0), ("b", 1.0), ("c", 1.0)))
    for tenant, number in (("c", 0), ("c", 1), ("c", 2), ("a", 0), ("a", 1), ("a", 2)):
        assert rig.type_in(tenant, number)
    on = {index: {w.session_id[0] for w in rig.host.workers.values() if index in w.context_gpus} for index in (0, 1)}
    assert on == {0: {"a", "c"}, 1: {"a", "c"}}
    # With both, c would hold one and b two.
    rig.prepare("b0", tenant="b", gpus=2)
    assert rig.one(act.PrepareWorker).stage is WorkerStage.HOST_READY
    assert (rig.held("a"), rig.held("c")) == (3, 3)


def test_contexts_of_a_session_go_with_it_to_another_tenant() -> None:
    rig = Typists()
    for number in range(2):
        rig.type_in("a", number)
    rig.prepare("a0", source="a0", tenant="b")
    for tenant, held in (("a", 1), ("b", 1)):
        assert contexts.held_by(rig.scheduler.state, tenant, rig.now_s) == held
    assert contexts.held_by(rig.scheduler.state, "a", rig.now_s, but=SessionId("a0")) == 1
    assert contexts.held_by(rig.scheduler.state, "b", rig.now_s, but=SessionId("a0")) == 0


def test_heartbeats_are_no_keystrokes() -> None:
    rig = Typists()
    rig.type_in("a", 0)
    rig.now_s += rig.scheduler.state.limits.speculative_expiry_s
    for resident_bytes in (1, 2, 3):
        rig.heartbeat(gpus=GPUS, workers=tuple(
            WorkerReport(
                worker.worker_id, worker.session_id, worker.stage, worker.version, "a0",
                resident_bytes=resident_bytes, context_gpus=worker.context_gpus)
            for worker in rig.host.workers.values()))
    assert rig.held("a") == 1
    assert contexts.held_by(rig.scheduler.state, "a", rig.now_s) == 0
