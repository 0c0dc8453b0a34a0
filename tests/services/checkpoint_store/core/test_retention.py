from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.services.checkpoint_store.core.retention import (
    Fallback,
    KeptVersion,
    Retention,
    plan_fallback,
    versions_to_drop,
)


def kept(text: str) -> list[KeptVersion]:
    """ "1 2d 5" stands for versions 1, 2 (durable) and 5."""
    return [KeptVersion(int(word.rstrip("d")), word.endswith("d"), f"x{word.rstrip('d')}") for word in text.split()]


def test_retention_keeps_newest_last_durable_and_used() -> None:
    assert versions_to_drop(kept("1d 2d 3 4 5 6"), Retention(2)) == (1, 3, 4)
    assert versions_to_drop(kept("1d 2d 3 4 5 6"), Retention(2), in_use={3, 9}) == (1, 4)
    assert versions_to_drop(kept("1 2 3"), Retention(3)) == ()
    assert versions_to_drop(kept("1d 2 3 4d"), Retention(1)) == (1, 2, 3)
    assert versions_to_drop([], Retention(1)) == ()


def test_retention_age_counts_from_the_next_version_on() -> None:
    made = [KeptVersion(number, False, "x", at_ms) for number, at_ms in ((1, 0), (2, 100), (3, 900), (4, 950))]
    assert versions_to_drop(made, Retention(9, keep_ms=500), 599) == ()
    assert versions_to_drop(made, Retention(9, keep_ms=500), 600) == (1,)
    assert versions_to_drop(made, Retention(9, keep_ms=500), 1_400) == (1, 2)
    # The state of today stays for ever.
    assert versions_to_drop(made, Retention(9, keep_ms=500), 10**9) == (1, 2, 3)


@st.composite
def chains(draw: st.DrawFn) -> list[KeptVersion]:
    numbers = sorted(draw(st.sets(st.integers(1, 30), max_size=12)))
    times = sorted(draw(st.lists(st.integers(0, 100), min_size=len(numbers), max_size=len(numbers))))
    return [KeptVersion(n, draw(st.booleans()), "x", at_ms) for n, at_ms in zip(numbers, times, strict=True)]


RULES = st.builds(Retention, st.integers(1, 5), st.integers(0, 60))


@settings(max_examples=50)
@given(chain=chains(), rule=RULES, now=st.integers(0, 200), in_use=st.sets(st.integers(1, 30)))
def test_retention_keeps_what_it_promises_and_no_more(
    chain: list[KeptVersion], rule: Retention, now: int, in_use: set[int]
) -> None:
    drops = versions_to_drop(chain, rule, now, in_use)
    left = [entry for entry in chain if entry.version not in drops]
    assert list(drops) == sorted(drops) and len(left) + len(drops) == len(chain)
    assert left[-1:] == chain[-1:] and not in_use.intersection(drops)
    assert [e.version for e in left if e.durable][-1:] == [e.version for e in chain if e.durable][-1:]
    assert len(left) <= rule.keep_last + 1 + len(in_use)
    if not rule.keep_ms:
        assert left[-rule.keep_last :] == chain[-rule.keep_last :]
    # A dropped one was beyond the number or had its time; nothing else is dropped by the next run.
    for entry, later in pairwise(chain):
        beyond = entry.version < chain[-rule.keep_last :][0].version
        assert entry.version not in drops or beyond or now - later.created_unix_ms >= rule.keep_ms > 0
    assert versions_to_drop(left, rule, now, in_use) == ()


@settings(max_examples=50)
@given(chain=chains(), rule=RULES, now=st.integers(0, 200), later=st.integers(0, 200))
def test_retention_drops_ever_more_with_time(chain: list[KeptVersion], rule: Retention, now: int, later: int) -> None:
    assert set(versions_to_drop(chain, rule, now)) <= set(versions_to_drop(chain, rule, now + later))


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
