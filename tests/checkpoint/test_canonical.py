"""Canonical pickles read back as the same value, and do not depend on which equal texts are one object."""

from __future__ import annotations

import io
import pickle

import pytest
import reference_canonical
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.checkpoint._native import canonical, make_persistent_id

texts = st.text(max_size=4)
values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | texts | st.binary(max_size=300) | st.integers(10**30),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=60,
)


@settings(max_examples=100)
@given(values)
def test_canonical_reads_back_as_the_same_value(value):
    data = pickle.dumps(value, 5)
    assert pickle.loads(canonical(data)) == value
    assert canonical(data) == reference_canonical.canonical(data)


@settings(max_examples=100)
@given(values)
def test_canonical_does_not_depend_on_which_texts_are_one_object(value):
    # A copy by way of a pickle without memo has no two places with one object.
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5)
    pickler.fast = True
    pickler.dump(value)
    apart = pickle.loads(file.getvalue())
    joined = pickle.loads(canonical(pickle.dumps(apart, 5)))
    assert canonical(pickle.dumps(joined, 5)) == canonical(pickle.dumps(apart, 5))


@settings(max_examples=50)
@given(values, values)
def test_canonical_of_two_pickles_with_one_memo_reads_back_as_both(first, second):
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5)
    pickler.dump([first])
    pickler.dump([first, second])
    unpickler = pickle.Unpickler(io.BytesIO(canonical(file.getvalue())))
    assert unpickler.load() == [first]
    assert unpickler.load() == [first, second]


def test_canonical_of_many_objects_uses_long_memo_reads():
    value = [[f"text {i % 700}", (i,)] for i in range(2000)]
    assert pickle.loads(canonical(pickle.dumps(value, 5))) == value


@settings(max_examples=300)
@given(st.binary(max_size=200) | values.map(lambda value: pickle.dumps(value, 5)), st.data())
def test_canonical_of_damaged_pickles_is_the_pickle_or_another_but_no_crash(data, draw):
    cut = draw.draw(st.integers(0, len(data)))
    place = draw.draw(st.integers(0, max(0, len(data) - 1)))
    damaged = bytes([*data[:place], draw.draw(st.integers(0, 255)), *data[place + 1 :]])[:cut]
    assert isinstance(canonical(damaged), bytes)


@pytest.mark.parametrize("body", [b"N", b"h\x00.", b"j\x00\x00\x00\x00.", b"\x8c\x05ab.", b"I1\n.", b"\x95\x01"])
def test_canonical_leaves_what_no_pickler_wrote_as_it_is(body):
    data = b"\x80\x05" + body
    assert canonical(data) is data


def test_persistent_id_finds_objects_by_identity_and_notes_what_it_found():
    known, other = [1], [1]
    ids, used = {id(known): "k", id("text"): "never"}, set()
    persistent_id = make_persistent_id(ids, used)
    assert [persistent_id(value) for value in (known, other, "text", 1, None)] == ["k", None, None, None, None]
    assert used == {"k"}
    ids[id(other)] = 7
    assert persistent_id(other) == 7 and used == {"k", 7}
    del ids[id(known)]
    assert persistent_id(known) is None
