"""Records of executions: forward only, one end, one dispatch at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, WorkerId
from looseleaf.services.scheduler.core.facts import ExecutionState, Lease, StartPath
from looseleaf.services.scheduler.core.journal import ExecutionJournal, reopenable

X = ExecutionId("x1")
STATES = [state for state in ExecutionState if state >= ExecutionState.STARTED]
REPORTS = st.tuples(st.sampled_from(STATES), st.booleans())


def lease(lease_id: str = "l1") -> Lease:
    return Lease(
        LeaseId(lease_id), SessionId("s1"), Epoch(1), X, HostId("h0"), "unix:/h0", (0,), WorkerId(""), StartPath.COLD,
        10_000)


def dispatched() -> ExecutionJournal:
    journal = ExecutionJournal(10)
    journal.open(X, SessionId("s1"), Epoch(1))
    journal.dispatch(X, lease())
    return journal


@given(st.lists(REPORTS, max_size=12))
def test_journal_goes_forward_and_a_reported_end_is_final(reports: list[tuple[ExecutionState, bool]]) -> None:
    journal = dispatched()
    for state, inferred in reports:
        before = journal.get(X)
        assert before is not None
        journal.advance(X, state, inferred=inferred)
        after = journal.get(X)
        assert after is not None
        if before.state.ended and not before.inferred:
            assert after == before
        elif not before.state.ended:
            assert after.state == max(before.state, state)
        elif inferred:
            assert after == before
        assert after.lease == lease()


def test_dispatch_of_what_is_out_already_is_a_fault_of_ours() -> None:
    journal = dispatched()
    with pytest.raises(AssertionError):
        journal.dispatch(X, lease("l2"))
    journal.advance(X, ExecutionState.STARTED)
    with pytest.raises(AssertionError):
        journal.withdraw(X)


def test_withdrawn_lease_leaves_no_trace() -> None:
    journal = dispatched()
    record = journal.withdraw(X)
    assert (record.state, record.lease) == (ExecutionState.PENDING, None)
    assert journal.dispatch(X, lease("l2")).lease == lease("l2")


def test_only_what_never_had_a_lease_may_be_asked_for_again() -> None:
    journal = ExecutionJournal(10)
    journal.open(X, SessionId("s1"), Epoch(1))
    failed = journal.advance(X, ExecutionState.FAILED, "CANCELLED")
    assert failed is not None
    assert reopenable(failed)
    out = dispatched().advance(X, ExecutionState.FAILED, "START_TIMEOUT")
    assert out is not None
    assert not reopenable(out)


def test_oldest_ended_records_are_forgotten_and_live_ones_never() -> None:
    journal = ExecutionJournal(1)
    for number in range(3):
        journal.open(ExecutionId(f"x{number}"), SessionId("s1"), Epoch(1))
    journal.advance(ExecutionId("x2"), ExecutionState.FAILED)
    journal.advance(ExecutionId("x0"), ExecutionState.FAILED)
    assert journal.prune() == ["x2"]
    assert [record.execution_id for record in journal.live()] == ["x1"]
    assert len(journal) == 2
