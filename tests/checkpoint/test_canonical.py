"""Canonical pickles read back as the same value, and do not depend on which equal texts are one object."""

from __future__ import annotations

import io
import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.checkpoint.canonical import CANONICAL_BYTES_MAX, canonical

texts = st.text(max_size=4)
values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | texts | st.binary(max_size=300) | st.integers(10**30),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=60,
)


@settings(max_examples=100)
@given(values)
def test_canonical_reads_back_as_the_same_value(value):
    assert pickle.loads(canonical(pickle.dumps(value, 5))) == value


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


def test_canonical_leaves_a_large_pickle_as_it_is():
    data = pickle.dumps(["x" * 10] * 3 + [bytes(CANONICAL_BYTES_MAX)], 5)
    assert canonical(data) == data
