"""Warnings filters as part of a session's state."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.checkpoint.warning_filters import WarningFilters, by_category, by_category_name, merged
from looseleaf.devices.hook import WATCHER

LIBRARY = "looseleaf_warns_for_test"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A library with a category and a filter of its own, not imported."""
    text = "import warnings\nclass OddWarning(UserWarning): pass\nwarnings.simplefilter('once', OddWarning)\n"
    (tmp_path / f"{LIBRARY}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with warnings.catch_warnings():
        yield
    sys.modules.pop(LIBRARY, None)


def odd(action: str) -> tuple[object, ...]:
    return (action, None, (LIBRARY, "OddWarning"), None, 0)


BASE = ("ignore", None, DeprecationWarning, None, 0)
LAST = ("default", None, Warning, None, 0)


def test_filter_of_a_library_waits_for_it_and_is_still_part_of_the_state(library: None) -> None:
    state = WarningFilters()
    state.apply([BASE, odd("error"), odd("once"), LAST])
    assert LIBRARY not in sys.modules
    assert warnings.filters == [BASE, LAST]
    assert state.read() == [BASE, odd("error"), odd("once"), LAST]
    import looseleaf_warns_for_test as arrived

    own = ("once", None, arrived.OddWarning, None, 0)
    # The one that the library sets by itself stays where its import has put it; the other comes before it again.
    assert warnings.filters == [("error", None, arrived.OddWarning, None, 0), own, BASE, LAST]
    assert by_category_name(own) in state.read()
    with pytest.raises(arrived.OddWarning):
        warnings.warn("odd", arrived.OddWarning, stacklevel=1)


def test_filter_of_a_library_outlives_the_block_in_which_it_was_imported(library: None) -> None:
    state = WarningFilters()
    state.apply([odd("error"), LAST])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import looseleaf_warns_for_test as arrived
    assert warnings.filters == [("error", None, arrived.OddWarning, None, 0), LAST]
    assert state.read() == [odd("error"), LAST]


def test_second_state_takes_the_place_of_the_first(library: None) -> None:
    state = WarningFilters()
    state.apply([odd("error"), LAST])
    state.apply([LAST])
    import looseleaf_warns_for_test as arrived

    assert ("error", None, arrived.OddWarning, None, 0) not in warnings.filters
    assert not WATCHER.hooks.get(LIBRARY)


def test_category_of_the_session_and_of_python_stay_classes() -> None:
    own = type("Own", (Warning,), {"__module__": "__main__"})
    for category in (own, UserWarning):
        entry = ("ignore", None, category, None, 0)
        assert by_category_name(entry) is entry and by_category(entry) is entry


@pytest.mark.parametrize("name", [(LIBRARY, "X"), ("os", "path"), ("os", "nothing.at.all"), ("builtins", "int")])
def test_name_that_leads_to_no_category_waits(name: tuple[str, str]) -> None:
    assert by_category(("ignore", None, name, None, 0)) is None


entries = st.integers(0, 12).map(lambda number: ("ignore", None, number, None, 0))


@given(st.lists(entries, unique=True), st.lists(entries, unique=True), st.lists(entries, unique=True))
def test_merge_keeps_what_is_and_adds_each_before_what_came_after_it(now, recorded, added) -> None:
    found = merged(now, recorded, added)
    assert [entry for entry in found if entry in now] == now
    assert set(found) == {*now, *added} and len(found) == len(set(found))
    for entry in set(added) - set(now):
        if entry in recorded:
            after = [other for other in recorded[recorded.index(entry) + 1 :] if other in now]
            assert not after or found.index(entry) < found.index(after[0])
