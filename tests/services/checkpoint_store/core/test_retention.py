from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from looseleaf.services.checkpoint_store.core.retention import (
    Fallback,
    KeptVersion,
    plan_fallback,
    versions_to_drop,
)


def kept(text: str) -> list[KeptVersion]:
    """ "1 2d 5" stands for versions 1, 2 (durable) and 5."""
    return [KeptVersion(int(word.rstrip("d")), word.endswith("d"), f"x{word.rstrip('d')}") for word in text.split()]


def test_retention_keeps_newest_and_last_durable() -> None:
    assert versions_to_drop(kept("1d 2d 3 4 5 6"), 2) == (1, 3, 4)
    assert versions_to_drop(kept("1 2 3"), 3) == ()
    assert versions_to_drop(kept("1d 2 3 4d"), 1) == (1, 2, 3)
    assert versions_to_drop([], 1) == ()


VERSIONS = st.lists(st.tuples(st.integers(1, 30), st.booleans()), unique_by=lambda item: item[0], max_size=12)


@given(versions=VERSIONS, keep_last=st.integers(1, 5))
def test_retention_never_drops_head_or_last_durable(versions: list[tuple[int, bool]], keep_last: int) -> None:
    chain = [KeptVersion(version, durable, "x") for version, durable in sorted(versions)]
    drops = versions_to_drop(chain, keep_last)
    left = [entry for entry in chain if entry.version not in drops]
    assert len(left) <= keep_last + 1
    assert left[-keep_last:] == chain[-keep_last:]
    assert [e.version for e in left if e.durable][-1:] == [e.version for e in chain if e.durable][-1:]


def test_fallback_of_lost_head_names_every_execution_above_the_new_head() -> None:
    plan = plan_fallback(kept("3d 7 8"), [7, 8], [(4, "x4"), (5, "x5"), (6, "x6")])
    assert plan == Fallback(frozenset({7, 8}), 3, ("x4", "x5", "x6", "x7", "x8"))


def test_fallback_stops_at_the_newest_version_that_lost_nothing() -> None:
    assert plan_fallback(kept("1d 2 3"), [3]) == Fallback(frozenset({3}), 2, ("x3",))


def test_fallback_without_survivor_goes_to_nothing() -> None:
    assert plan_fallback(kept("1 2"), [1, 2]) == Fallback(frozenset({1, 2}), 0, ("x1", "x2"))


def test_fallback_of_older_version_only_drops_it_and_keeps_the_head() -> None:
    assert plan_fallback(kept("1 2 3"), [2]) == Fallback(frozenset({2}), 3, ())


def test_fallback_without_loss_is_none() -> None:
    assert plan_fallback(kept("1 2"), [9]) is None
