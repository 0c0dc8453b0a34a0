from __future__ import annotations

from dataclasses import replace

import pytest

from looseleaf.errors import Conflict, PreconditionFailed
from looseleaf.services.checkpoint_store.core.commit import (
    NAMED_IN_ERROR_MAX,
    CommitRequest,
    check_commit,
    is_repeat,
    missing_error,
    plan_regions,
)
from looseleaf.services.checkpoint_store.core.rows import RegionRow, SessionRow, VersionRow

REQUEST = CommitRequest("s1", epoch=3, parent=4, execution_id="x5", host_id="h1", manifest_hash=b"h" * 16)
SESSION = SessionRow(3, 4, 0, 0, 0, "")
ROW = VersionRow(4, 3, "x5", 0, False, 0, 0, "h1", b"h" * 16)


def test_commit_on_head_with_present_epoch_is_accepted() -> None:
    check_commit(REQUEST, SESSION)


@pytest.mark.parametrize("epoch", [2, 4])
def test_commit_with_another_epoch_is_fenced(epoch: int) -> None:
    with pytest.raises(PreconditionFailed, match="STALE_EPOCH") as caught:
        check_commit(replace(REQUEST, epoch=epoch), SESSION)
    assert caught.value.fields == {"epoch": 3, "version": 4}


@pytest.mark.parametrize("parent", [3, 5])
def test_commit_on_another_version_has_moved(parent: int) -> None:
    with pytest.raises(Conflict, match="MANIFEST_MOVED"):
        check_commit(replace(REQUEST, parent=parent), SESSION)


def test_same_execution_with_same_bytes_is_a_repeat_and_nothing_else_is() -> None:
    assert is_repeat(REQUEST, ROW)
    assert not is_repeat(REQUEST, None)
    assert not is_repeat(REQUEST, replace(ROW, execution_id="x6"))
    assert not is_repeat(REQUEST, replace(ROW, manifest_hash=b"g" * 16))


def test_new_region_is_located_at_the_committers_host() -> None:
    plan = plan_regions({b"r": 8}, {b"r": None}, "h1")
    assert plan.rows == {b"r": RegionRow(1, 8, None, ("h1",))}
    assert (plan.revived, plan.held, plan.durable) == ((b"r",), (b"r",), False)


def test_known_region_gains_a_reference_and_a_host() -> None:
    plan = plan_regions({b"r": 8}, {b"r": RegionRow(2, 8, 7, ("h2",))}, "h1")
    assert plan.rows == {b"r": RegionRow(3, 8, 7, ("h2", "h1"))}
    assert (plan.revived, plan.held, plan.durable) == ((), (b"r",), True)


def test_region_that_nobody_holds_is_refused() -> None:
    for row in (None, RegionRow(0, 8, None, ()), RegionRow(1, 9, 7, ())):
        with pytest.raises(PreconditionFailed, match="REGIONS_UNKNOWN"):
            plan_regions({b"r": 8}, {b"r": row}, "")


def test_region_with_another_length_is_refused_even_with_a_host() -> None:
    with pytest.raises(PreconditionFailed, match="REGIONS_UNKNOWN"):
        plan_regions({b"r": 8}, {b"r": RegionRow(1, 9, 7, ("h1",))}, "h1")


def test_error_for_many_missing_objects_stays_small() -> None:
    error = missing_error("UNITS_MISSING", "units", [bytes([n]) * 16 for n in range(200)])
    assert error.fields["missing_count"] == 200
    assert len(error.fields["missing"]) == NAMED_IN_ERROR_MAX
