"""Names and shapes of namespaces that nobody writes and programs make: many, long, odd, deep, wide."""

from __future__ import annotations

import time

import pytest
import torch
from checkpoint_nursery import MemoryIO

from looseleaf.checkpoint import saving
from looseleaf.checkpoint.manifest import NAMES_MAX, UNITS_MAX
from looseleaf.checkpoint.tracker import StateTracker


def tracker_over(io, space):
    return StateTracker(space, io, session_id="s-n", epoch=1, hidden=lambda name: name.startswith("__"))


def restored(io):
    fresh: dict = {}
    tracker = tracker_over(io, fresh)
    tracker.restore([])
    assert not tracker.restore(list(tracker.manifest.roots)).failed
    return fresh


def test_every_allowed_number_of_variables_fits_a_version():
    # Beside the variables' own units there are those of the process state and of what they share.
    assert UNITS_MAX > NAMES_MAX + 4096


def test_names_beyond_the_limit_are_reported_and_the_others_saved(monkeypatch):
    monkeypatch.setattr(saving, "NAMES_MAX", 50)
    monkeypatch.setattr(saving, "_NAMED_BEYOND_MAX", 10)
    io = MemoryIO()
    space = {f"n{number}": [number] for number in range(200)}
    report = tracker_over(io, space).save("x-1")
    assert {entry.reason for entry in report.unsaved} == {"TOO_MANY_NAMES"}
    beyond = [f"n{number}" for number in range(50, 60)]
    assert [entry.name for entry in report.unsaved] == [*beyond, "all further variables"]
    fresh = restored(io)
    assert fresh["n49"] == [49]
    assert "n60" not in fresh


def test_odd_names_are_kept_or_reported():
    io = MemoryIO()
    space: dict = {
        "print": [1], "None": 2, "": [3], "a b": [4], "\0": [5], "true": [6], "é" * 500: [7], "x" * 1000: [8],
        "y" * 1001: [9], "z\ud800": [10], "q" * 100_000: [11], 5: [12], None: [13], ("t",): [14], "plain": [15],
    }  # fmt: skip
    tracker = tracker_over(io, space)
    report = tracker.save("x-1")
    assert {entry.reason for entry in report.unsaved} == {"NAME_UNUSABLE"}
    assert len(report.unsaved) == 3
    assert all(entry.is_place for entry in report.unsaved)
    fresh = restored(io)
    expected = {name: value for name, value in space.items() if type(name) is str and len(name) <= 1000}
    expected.pop("z\ud800")
    assert fresh == expected
    assert tracker.save("x-2").nothing_changed


def test_work_grows_as_the_number_of_names_does():
    # Counted, not timed: calls of Python functions for each name.
    import sys

    def calls_of(count):
        space = {f"n{number}": [number] for number in range(count)}
        io, calls = MemoryIO(), 0

        def count_calls(frame, event, argument):
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count_calls)
        try:
            tracker = tracker_over(io, space)
            tracker.save("x-1")
            space["n0"].append(1)
            tracker.save("x-2")
            fresh: dict = {}
            other = tracker_over(io, fresh)
            other.restore(list(space))
        finally:
            sys.setprofile(None)
        assert fresh["n0"] == [0, 1]
        return calls

    calls_of(10)
    few, many = calls_of(300), calls_of(1200)
    assert many < 5 * few


@pytest.mark.slow
@pytest.mark.soak
def test_hundred_thousand_names_are_saved_and_restored():
    io = MemoryIO()
    space = {f"n{number}": [number] for number in range(NAMES_MAX)}
    began_s = time.monotonic()
    report = tracker_over(io, space).save("x-1")
    saved_s = time.monotonic() - began_s
    assert not report.unsaved
    fresh = restored(io)
    print(f"{NAMES_MAX} names: saved in {saved_s:.1f} s, restored in {time.monotonic() - began_s - saved_s:.1f} s")
    assert fresh == space


def test_wide_sharing_and_many_small_tensors_keep_their_identity():
    io = MemoryIO()
    shared = ["s"]
    space = {
        "wide": [[shared] for _ in range(100_000)], "shared": shared, "table": {n: str(n) for n in range(200_000)},
        "tensors": [torch.full((2,), float(n)) for n in range(3000)],
    }  # fmt: skip
    assert not tracker_over(io, space).save("x-1").unsaved
    fresh = restored(io)
    assert all(entry[0] is fresh["shared"] for entry in fresh["wide"])
    assert fresh["table"] == space["table"]
    assert float(fresh["tensors"][2999][1]) == 2999.0
