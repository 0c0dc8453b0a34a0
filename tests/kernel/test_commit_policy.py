"""When CPU cells' state is committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from looseleaf.kernel.commit_policy import (
    IDLE_DELAY_S,
    NEVER_S,
    UNCOMMITTED_CHANGES_MAX,
    UNCOMMITTED_S_MAX,
    CommitPolicy,
)


def test_policy_new_session_is_pending_until_its_first_commit() -> None:
    policy = CommitPolicy()
    assert policy.pending
    policy.committed()
    assert not policy.pending


def test_policy_few_changes_wait_for_idleness() -> None:
    policy = CommitPolicy()
    policy.committed()
    policy.changed(100.0)
    assert policy.pending and policy.delay_s(100.1) == IDLE_DELAY_S


def test_policy_that_commits_on_demand_only_is_pending_and_never_due() -> None:
    policy = CommitPolicy(commit_idle=False)
    for _ in range(2 * UNCOMMITTED_CHANGES_MAX):
        policy.changed(0.0)
    assert policy.pending and policy.delay_s(1000.0) == NEVER_S


def test_policy_tries_ever_rarer_while_cells_break_its_commits_off() -> None:
    policy = CommitPolicy()
    tries = 0
    # Cells in a row, each of which breaks off the commit that began before it.
    for _ in range(1000):
        policy.changed(0.0)
        if policy.delay_s(0.0) == 0.0:
            tries += 1
            policy.gave_way()
    assert tries == 5
    assert policy.delay_s(0.0) == IDLE_DELAY_S
    policy.committed()
    policy.changed(0.0)
    assert policy.delay_s(UNCOMMITTED_S_MAX) == 0.0


def test_policy_with_bytes_left_out_is_pending_and_as_old_as_these() -> None:
    policy = CommitPolicy()
    policy.committed()
    policy.changed(100.0)
    policy.committed(lazy=True)
    assert policy.pending and not policy.has_changes
    assert policy.delay_s(101.0) == IDLE_DELAY_S
    policy.changed(100.0 + UNCOMMITTED_S_MAX)
    policy.committed(lazy=True)
    assert policy.delay_s(100.0 + UNCOMMITTED_S_MAX) == 0.0
    policy.committed()
    assert not policy.pending


EVENTS = st.one_of(
    st.floats(0.0, 20.0).map(lambda seconds: ("wait", seconds)), st.sampled_from([("change", 0.0), ("commit", 0.0)])
)


@given(st.lists(EVENTS))
def test_policy_is_overdue_exactly_beyond_its_limits(events: list[tuple[str, float]]) -> None:
    policy = CommitPolicy()
    policy.committed()
    now_s, count, oldest_s = 50.0, 0, 50.0
    for event, seconds in events:
        if event == "wait":
            now_s += seconds
        elif event == "commit":
            policy.committed()
            count = 0
        else:
            policy.changed(now_s)
            oldest_s = now_s if count == 0 else oldest_s
            count += 1
        overdue = count > 0 and (count >= UNCOMMITTED_CHANGES_MAX or now_s - oldest_s >= UNCOMMITTED_S_MAX)
        assert policy.pending == (count > 0)
        assert policy.delay_s(now_s) == (0.0 if overdue else IDLE_DELAY_S)
