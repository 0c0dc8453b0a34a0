from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.errors import Corrupt
from looseleaf.services.checkpoint_store.core.references import (
    VersionRefs,
    count_runs,
    released_by_drop,
    released_by_drops,
)

OBJECTS = st.frozensets(st.sampled_from([b"a", b"b", b"c", b"d"]))
HASHES = st.binary(min_size=16, max_size=16)


def test_drop_of_only_namer_releases_its_objects() -> None:
    assert released_by_drop({b"a"}, {b"a", b"b"}, {b"a"}) == {b"b"}


def test_drop_between_two_namers_merges_their_runs() -> None:
    assert released_by_drop({b"a"}, set(), {b"a"}) == {b"a"}


@settings(max_examples=50)
@given(chain=st.lists(OBJECTS, max_size=7), data=st.data())
def test_drops_release_exactly_what_counting_afresh_says(chain: list[frozenset[bytes]], data: st.DataObject) -> None:
    numbered = list(enumerate(chain, start=1))
    drops = data.draw(st.frozensets(st.sampled_from([version for version, _ in numbered]))) if chain else frozenset()
    before = count_runs(chain)
    after = count_runs([objects for version, objects in numbered if version not in drops])
    released = released_by_drops(numbered, drops)
    assert before - released == after
    assert all(before[key] >= count for key, count in released.items())
    # No object that a kept version names ever loses its last reference.
    for version, objects in numbered:
        if version not in drops:
            assert all(before[key] > released[key] for key in objects)


@settings(max_examples=50)
@given(chain=st.lists(OBJECTS, min_size=1, max_size=7))
def test_commit_adds_one_reference_for_what_its_parent_lacks(chain: list[frozenset[bytes]]) -> None:
    *earlier, newest = chain
    parent = earlier[-1] if earlier else frozenset()
    assert count_runs(chain) == count_runs(earlier) + Counter(newest - parent)


@settings(max_examples=50)
@given(units=st.frozensets(HASHES, max_size=5), regions=st.dictionaries(HASHES, st.integers(1, 1 << 21), max_size=5))
def test_refs_decode_what_was_encoded(units: frozenset[bytes], regions: dict[bytes, int]) -> None:
    refs = VersionRefs(units, regions)
    assert VersionRefs.decode(refs.encode()) == refs


@pytest.mark.parametrize("data", [b"", b"\0\0\0\1", b"\0\0\0\0x", b"\0\0\0\1" + bytes(17)])
def test_refs_of_wrong_length_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match="INDEX_CORRUPT"):
        VersionRefs.decode(data)
