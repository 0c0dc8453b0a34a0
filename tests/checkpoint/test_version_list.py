"""Which kept version is meant, and which are gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.checkpoint.version_list import ListedVersion, find_version, pruned_ranges
from looseleaf.errors import NotFound


def kept(*numbers: int) -> list[ListedVersion]:
    return [ListedVersion(number, number - 1, 0, False, 0, 0, "x") for number in sorted(numbers, reverse=True)]


def test_version_is_found_by_number_or_from_the_newest() -> None:
    assert find_version(kept(2, 5, 6), 5) == 5
    assert [find_version(kept(2, 5, 6), back) for back in (-1, -2)] == [5, 2]


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [(7, "VERSION_UNKNOWN"), (-3, "VERSION_UNKNOWN"), (3, "VERSION_PRUNED"), (1, "VERSION_PRUNED")],
)
def test_version_that_is_not_there_is_told_from_one_that_is_gone(wanted: int, reason: str) -> None:
    with pytest.raises(NotFound, match=reason):
        find_version(kept(2, 5, 6), wanted)
    with pytest.raises(NotFound, match="VERSION_UNKNOWN"):
        find_version([], wanted)


@given(st.sets(st.integers(1, 30), min_size=1), st.booleans())
def test_pruned_ranges_are_exactly_what_is_not_kept(numbers: set[int], whole: bool) -> None:
    listed = kept(*numbers)
    gone = pruned_ranges(listed, whole=whole)
    below = min(numbers) if not whole else 1
    covered = [number for first, last in gone for number in range(last, first - 1, -1)]
    assert covered == [n for n in range(max(numbers), below - 1, -1) if n not in numbers]
