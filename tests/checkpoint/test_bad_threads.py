"""Objects that a background thread changes while they are saved: what is committed is what its hashes say, always."""

from __future__ import annotations

import collections
import sys
import threading

import numpy as np
import pytest
import torch
from checkpoint_nursery import MemoryIO

from looseleaf.checkpoint.manifest import decode_manifest
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import Corrupt

SAVES = 6


class CheckingIO(MemoryIO):
    """Refuses regions that are not what their ids say, as a host's daemon does."""

    def put_regions(self, items):
        for ref, data in items:
            copy = bytes(data)
            if len(copy) != ref.length_bytes or hash128(copy) != ref.region_id:
                raise Corrupt("CHECKSUM_MISMATCH", "the bytes of a region are not what its id says")
            self.regions[ref.region_id] = copy


class Node:
    pass


def grow_list(space, n):
    space["x"].append([n])
    if n % 3 == 0:
        del space["x"][:2]


def resize_dict(space, n):
    space["x"][n] = [n]
    space["x"].pop(n - 50, None)


def resize_set(space, n):
    space["x"].add(n)
    space["x"].discard(n - 50)


def turn_deque(space, n):
    space["x"].append([n])


def write_array(space, n):
    space["x"][n % 7 :: 7] += 1


def write_tensor(space, n):
    space["x"].add_(1)


def add_attributes(space, n):
    setattr(space["x"], f"a{n % 200}", [n])


def rewire(space, n):
    node = Node()
    node.next, space["x"].next = space["x"].next, node
    if n % 20 == 0:
        node.next = None


def add_columns(space, n):
    frame = space["x"]
    frame[f"c{n % 30}"] = n
    if n % 7 == 0:
        del frame[f"c{n % 30}"]


def rebind(space, n):
    space["x"] = [space["y"], n]
    space[f"fresh{n % 40}"] = [n]
    space.pop(f"fresh{(n + 20) % 40}", None)


def frame():
    return pytest.importorskip("pandas").DataFrame({"a": np.arange(500), "b": ["t"] * 500})


def node():
    made = Node()
    made.next = None
    return made


CASES = {
    "list": (lambda: [[n] for n in range(3000)], grow_list),
    "dict": (lambda: {n: [n] for n in range(3000)}, resize_dict),
    "set": (lambda: set(range(3000)), resize_set),
    "deque": (lambda: collections.deque(([n] for n in range(500)), maxlen=500), turn_deque),
    "array": (lambda: np.zeros(700_000), write_array),
    "tensor": (lambda: torch.zeros(1_500_000), write_tensor),
    "attributes": (node, add_attributes),
    "graph": (node, rewire),
    "frame": (frame, add_columns),
    "names": (lambda: [0], rebind),
}


@pytest.mark.parametrize("case", CASES)
def test_value_that_a_thread_changes_while_it_is_saved_is_whole_or_named(case):
    make, change = CASES[case]
    space = {"x": make(), "y": {"steady": [1, 2]}, "__name__": "__main__"}
    space["alias"] = space["x"]
    stop, began = threading.Event(), threading.Event()
    broken: list[BaseException] = []

    def run():
        number = 10_000
        while not stop.is_set():
            try:
                change(space, number)
            except BaseException as error:
                broken.append(error)
                break
            finally:
                began.set()
            number += 1

    io = CheckingIO()
    tracker = StateTracker(space, io, session_id="s-t", epoch=1, hidden=lambda name: name.startswith("__"))
    interval = sys.getswitchinterval()
    thread = threading.Thread(target=run)
    try:
        sys.setswitchinterval(1e-5)
        thread.start()
        began.wait()
        reports = [tracker.save(f"x-{n}") for n in range(SAVES)]
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not broken
    for report in reports:
        assert {entry.reason for entry in report.unsaved} <= {"NOT_SERIALIZABLE"}
    for unit_hash, data in io.units.items():
        assert hash128(data) == unit_hash
    for version in range(1, len(io.versions) + 1):
        manifest = decode_manifest(io.versions[version - 1])
        fresh: dict = {"__name__": "__main__"}
        other = StateTracker(fresh, io, session_id="s-t", epoch=1, hidden=lambda name: name.startswith("__"))
        restored = other.restore(list(manifest.roots), version=version)
        # Pandas changes a frame in several steps: one that was met between two of them is named, until the next save.
        torn = {entry.name: entry.reason for entry in restored.failed}
        assert not torn or (case == "frame" and torn == dict.fromkeys(("x", "alias"), "RESTORE_FAILED"))
        assert fresh["y"] == {"steady": [1, 2]}
    # Alone again, everything is saved.
    assert not tracker.save("x-last").unsaved
