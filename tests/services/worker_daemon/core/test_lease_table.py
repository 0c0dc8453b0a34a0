from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.errors import Conflict, LooseLeafError, PreconditionFailed
from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId
from looseleaf.services.worker_daemon.core import lease_table
from looseleaf.services.worker_daemon.core.lease_table import HeldLease, LeaseTable


def lease(
    number: int, *, gpus: tuple[int, ...] = (0,), session: str = "s-1", epoch: int = 1, now_s: float = 0.0
) -> HeldLease:
    return HeldLease(
        LeaseId(f"l-{number}"),
        SessionId(session),
        Epoch(epoch),
        ExecutionId(f"x-{number}"),
        gpus,
        None,
        3,
        10.0,
        now_s,
        now_s + 10.0,
    )


def test_grant_of_busy_gpu_is_refused() -> None:
    table = LeaseTable(1)
    table.grant(lease(1))
    with pytest.raises(Conflict, match="GPU_BUSY"):
        table.grant(lease(2))


def test_grant_twice_is_one_lease() -> None:
    table = LeaseTable(1)
    table.grant(lease(1))
    table.grant(lease(1))
    assert len(table.held()) == 1


def test_grant_with_old_epoch_is_refused() -> None:
    table = LeaseTable(2)
    table.grant(lease(1, epoch=3))
    with pytest.raises(PreconditionFailed, match="STALE_EPOCH"):
        table.grant(lease(2, gpus=(1,), epoch=2))


def test_grant_of_unknown_gpu_is_refused() -> None:
    with pytest.raises(PreconditionFailed, match="GPU_UNKNOWN"):
        LeaseTable(1).grant(lease(1, gpus=(1,)))


def test_use_after_expiry_is_refused() -> None:
    table = LeaseTable(1)
    table.grant(lease(1))
    assert [gone.lease_id for gone in table.expire(10.0)] == ["l-1"]
    with pytest.raises(PreconditionFailed, match="LEASE_UNKNOWN"):
        table.use(LeaseId("l-1"), ExecutionId("x-1"), Epoch(1), 0.0)


def test_use_past_its_term_is_refused_even_before_the_next_look_at_terms() -> None:
    table = LeaseTable(1)
    table.grant(lease(1))
    with pytest.raises(PreconditionFailed, match="LEASE_UNKNOWN"):
        table.use(LeaseId("l-1"), ExecutionId("x-1"), Epoch(1), 10.0)


@pytest.mark.parametrize("finished", [False, True])
def test_use_twice_is_refused(finished: bool) -> None:
    table = LeaseTable(1)
    table.grant(lease(1))
    table.use(LeaseId("l-1"), ExecutionId("x-1"), Epoch(1), 0.0)
    if finished:
        table.finish(LeaseId("l-1"))
    with pytest.raises(PreconditionFailed, match="LEASE_USED"):
        table.use(LeaseId("l-1"), ExecutionId("x-1"), Epoch(1), 1.0)


def test_epochs_of_many_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_table, "EPOCHS_KEPT_MAX", 2)
    table = LeaseTable(1)
    for number, session in enumerate(["s-1", "s-2", "s-1", "s-3"]):
        table.grant(lease(number, session=session, epoch=5))
        table.release(LeaseId(f"l-{number}"))
    with pytest.raises(PreconditionFailed, match="STALE_EPOCH"):
        table.grant(lease(10, session="s-1", epoch=4))
    table.grant(lease(11, session="s-2", epoch=4))


def test_used_lease_never_expires_and_is_not_revoked() -> None:
    table = LeaseTable(1)
    table.grant(lease(1))
    table.use(LeaseId("l-1"), ExecutionId("x-1"), Epoch(1), 0.0)
    assert table.expire(1e9) == []
    assert table.revoke(LeaseId("l-1")) is True
    table.release(LeaseId("l-1"))
    assert table.held() == []


def test_finished_lease_frees_its_gpu_but_stays_listed() -> None:
    table = LeaseTable(1)
    table.grant(lease(1))
    table.finish(LeaseId("l-1"))
    table.grant(lease(2))
    assert [item.lease_id for item in table.held()] == ["l-1", "l-2"]
    table.release(LeaseId("l-1"))
    assert [item.lease_id for item in table.held()] == ["l-2"]


def test_use_by_another_execution_is_refused() -> None:
    table = LeaseTable(1)
    table.grant(lease(1))
    with pytest.raises(PreconditionFailed, match="LEASE_UNKNOWN"):
        table.use(LeaseId("l-1"), ExecutionId("x-2"), Epoch(1), 0.0)


def test_renewed_lease_lives_another_term() -> None:
    table = LeaseTable(1)
    table.grant(lease(1))
    table.renew(LeaseId("l-1"), 5.0)
    assert table.expire(14.9) == []
    assert len(table.expire(15.0)) == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.sets(st.integers(0, 3), min_size=1), st.sampled_from("grxef")), max_size=40
    )
)
def test_no_gpu_is_ever_held_twice(steps: list[tuple[int, set[int], str]]) -> None:
    table = LeaseTable(4)
    for now, (number, gpus, step) in enumerate(steps):
        try:
            if step == "g":
                table.grant(lease(number, gpus=tuple(sorted(gpus)), now_s=float(now)))
            elif step == "r":
                table.release(LeaseId(f"l-{number}"))
            elif step == "f":
                table.finish(LeaseId(f"l-{number}"))
            elif step == "x":
                table.use(LeaseId(f"l-{number}"), ExecutionId(f"x-{number}"), Epoch(1), 0.0)
            else:
                table.expire(float(now))
        except LooseLeafError:
            pass
        held = [gpu for item in table.held() if not item.finished for gpu in item.gpus]
        assert len(held) == len(set(held))
