"""Widget states with their binary parts inside and beside them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.kernel.widget_state import join_state, size_bytes, split_state

LEAVES = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
STATES = st.dictionaries(
    st.text(), st.recursive(LEAVES, lambda c: st.lists(c, max_size=4) | st.dictionaries(st.text(), c, max_size=4)),
    max_size=5,
)  # fmt: skip


def has_bytes(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(has_bytes, value.values()))
    return any(map(has_bytes, value)) if isinstance(value, list) else isinstance(value, bytes)


@given(STATES)
def test_state_that_is_split_and_joined_is_the_same(state: dict[str, Any]) -> None:
    plain, paths, buffers = split_state(state)
    assert not has_bytes(plain) and len(paths) == len(buffers)
    assert join_state({"state": plain, "buffer_paths": paths}, buffers) == state


def test_split_leaves_the_state_as_it_is() -> None:
    state = {"a": [b"x", {"b": memoryview(b"y")}]}
    assert split_state(state) == ({"a": [None, {}]}, [["a", 0], ["a", 1, "b"]], [b"x", b"y"])
    assert state["a"][0] == b"x"


@pytest.mark.parametrize("paths", [[["no", "such"]], [[]], ["a"], [["a", 5]], [["a", "b"]], None, 3])
def test_join_leaves_out_paths_that_lead_nowhere(paths: Any) -> None:
    assert join_state({"state": {"a": [1]}, "buffer_paths": paths}, [b"x"]) == {"a": [1]}


@pytest.mark.parametrize("state", [None, 3, "text", ["a"]])
def test_join_of_a_comm_that_is_no_widget_is_empty(state: Any) -> None:
    assert join_state({"state": state}, []) == {}


def test_size_counts_what_is_large() -> None:
    assert 1000 <= size_bytes({"a": {"b": [b"x" * 1000]}}) < 2000
