"""Save and restore give back the same graph, aliases and cycles included; partial restores merge."""

from __future__ import annotations

from typing import Any

import pytest
from checkpoint_graphs import FEWER, HOW_MANY, Names, assert_same_graph, containers, graphs, hold, make_tracker, mutate
from checkpoint_nursery import MemoryIO
from hypothesis import strategies as st

from looseleaf.checkpoint.tracker import StateTracker


@pytest.mark.parametrize("examples", HOW_MANY)
def test_save_and_restore_give_the_same_graph(examples: int) -> None:
    hold(_whole, graphs(), examples=examples)


@pytest.mark.parametrize("examples", FEWER)
def test_restore_in_two_parts_gives_the_same_graph(examples: int) -> None:
    hold(_in_two_parts, graphs(), st.data(), examples=examples)


@pytest.mark.parametrize("examples", FEWER)
def test_partial_restores_mutations_and_saves_of_three_holders_merge(examples: int) -> None:
    hold(_merge, graphs(), st.data(), examples=examples)


def _whole(namespace: Names) -> None:
    io = MemoryIO()
    report = make_tracker(namespace, io).save("x")
    assert report.unsaved == ()
    restored: dict[str, Any] = {}
    tracker = make_tracker(restored, io)
    tracker.restore(list(namespace))
    assert_same_graph(namespace, restored)
    again = tracker.save("y")
    assert again.dirty_regions == 0
    # The order of a set depends on how it grew; everything else is pickled to the same bytes.
    assert again.units_written == 0 or b"\x8f" in b"".join(io.units.values())


def _in_two_parts(namespace: Names, data: st.DataObject) -> None:
    io = MemoryIO()
    make_tracker(namespace, io).save("x")
    restored: dict[str, Any] = {}
    tracker = make_tracker(restored, io)
    tracker.restore(data.draw(st.lists(st.sampled_from(list(namespace)), max_size=3)))
    if data.draw(st.booleans()):
        tracker.save("y")
    tracker.restore(list(namespace))
    assert_same_graph(namespace, restored)


def _merge(namespace: Names, data: st.DataObject) -> None:
    io = MemoryIO()
    make_tracker(namespace, io).save("x")
    holders: dict[int, tuple[dict[str, Any], StateTracker]] = {}
    for step in range(data.draw(st.integers(1, 5))):
        which = data.draw(st.integers(0, 2))
        if which not in holders:
            live: dict[str, Any] = {}
            holders[which] = (live, make_tracker(live, io))
        live, tracker = holders[which]
        names = data.draw(st.lists(st.sampled_from(list(namespace)), min_size=1, max_size=3, unique=True))
        tracker.restore(names, version=len(io.versions))
        here, there = containers([live[n] for n in names]), containers([namespace[n] for n in names])
        assert len(here) == len(there)
        for number in data.draw(st.lists(st.integers(1, 40), max_size=4)):
            if here:
                at = number % len(here)
                mutate(here[at], number + step, here[number % 7 % len(here)])
                mutate(there[at], number + step, there[number % 7 % len(there)])
        if len(names) > 1 and data.draw(st.booleans()) and len(namespace) > 1:
            del live[names[0]], namespace[names[0]]
        tracker.save(f"y{step}")
    final: dict[str, Any] = {}
    make_tracker(final, io).restore(list(namespace))
    assert_same_graph(namespace, {name: final[name] for name in namespace})
    assert set(final) == set(namespace)
