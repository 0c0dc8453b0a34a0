"""No room: in the arena, in the store, in the process. What was saved stays valid, the next save does all of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoint_nursery import MemoryIO

from looseleaf.checkpoint import saver
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.errors import CapacityExceeded, Conflict, LooseLeafError, Timeout, Unavailable

FULL = {
    "put_regions": CapacityExceeded("ARENA_FULL", "4 regions of 2 MiB were needed, 1 is free", needed_bytes=8 << 20),
    "put_units": CapacityExceeded("STORE_FULL", "the store's quota is used up"),
    "commit": Conflict("MANIFEST_MOVED", "somebody else was first"),
    "have_regions": Unavailable("STORE_DOWN", "the daemon does not answer"),
}


class TightIO(MemoryIO):
    """A store that refuses one kind of call, after `after` of them."""

    refuses = ""
    after = 0
    error: LooseLeafError | None = None

    def _call(self, name, *args):
        if name == self.refuses:
            self.after -= 1
            if self.after < 0:
                assert self.error is not None
                raise self.error
        return getattr(MemoryIO, name)(self, *args)

    def put_regions(self, items):
        return self._call("put_regions", items)

    def put_units(self, items):
        return self._call("put_units", items)

    def commit(self, *args):
        return self._call("commit", *args)

    def have_regions(self, refs, session_bytes=0):
        return self._call("have_regions", refs)


def picture(tracker):
    labels = tracker.labels
    return (
        {name: id(value) for name, value in tracker.namespace.items()}, dict(tracker.saved_bindings),
        dict(labels.atoms), labels.live_ids(), tracker.applied_process_state, tracker.manifest,
        dict(tracker.unsaved_here),
    )  # fmt: skip


def session(io):
    space = {"big": torch.zeros(1_500_000), "base": np.zeros(50_000), "text": ["a"]}
    space["view"] = space["base"][5:]
    tracker = StateTracker(space, io, session_id="s-m", epoch=1, hidden=lambda name: name.startswith("__"))
    tracker.save("x-1")
    space["big"].add_(torch.arange(1_500_000))
    space["base"][:] = 3
    space["text"].append("b")
    space["more"] = {"text": space["text"]}
    return tracker


def check_all_saved(io):
    fresh: dict = {}
    tracker = StateTracker(fresh, io, session_id="s-m", epoch=1, hidden=lambda name: name.startswith("__"))
    assert not tracker.restore(["big", "base", "view", "text", "more"]).failed
    assert fresh["more"]["text"] is fresh["text"]
    assert fresh["text"] == ["a", "b"]
    assert float(fresh["big"][-1]) == 1_499_999
    fresh["base"][5] = 9
    assert fresh["view"][0] == 9
    assert fresh["view"][1] == 3


@pytest.mark.parametrize("call", FULL)
def test_save_without_room_changes_nothing_and_the_next_one_does_all(call):
    io = TightIO()
    tracker = session(io)
    io.refuses, io.error = call, FULL[call]
    before = picture(tracker)
    for _ in range(2):
        with pytest.raises(type(FULL[call])) as caught:
            tracker.save("x-2")
        assert caught.value is FULL[call]
        assert picture(tracker) == before
    io.refuses = ""
    report = tracker.save("x-3")
    assert not report.unsaved
    check_all_saved(io)


@pytest.mark.parametrize("step", ["hash_blocks", "RegionList", "encode_manifest", "hash128"])
def test_save_without_memory_is_told_with_what_is_left(monkeypatch, step):
    io = TightIO()
    tracker = session(io)
    before = picture(tracker)

    def fails(*args, **kwargs):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(saver, step, fails)
        with pytest.raises(CapacityExceeded) as caught:
            tracker.save("x-2")
    assert caught.value.reason == "OUT_OF_MEMORY"
    assert caught.value.fields["available_bytes"] > 0
    assert picture(tracker) == before
    tracker.save("x-3")
    check_all_saved(io)


def test_restore_without_memory_costs_the_large_variable_only(process):
    process("cell('import torch; big = torch.ones(80_000_000); small = [1]; other = torch.ones(100_000)'); save()")
    result = process("""
import resource
tracker.restore([])
pages = int(open("/proc/self/statm").read().split()[0])
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (100 << 20), hard))
r = tracker.restore(["big", "small", "other"])
failed = [[f.name, f.reason, f.detail] for f in r.failed]
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
again = tracker.restore(["big"])
result = [failed, check("small"), check("float(other[0])"), check("float(big[-1])")]
""")
    ((name, reason, text),) = result[0]
    assert (name, reason) == ("big", "OUT_OF_MEMORY")
    assert "MiB are left" in text
    assert result[1:] == [[1], 1.0, 1.0]


def test_save_of_a_large_tensor_needs_no_second_copy_of_it(process):
    result = process("""
cell('import torch; big = torch.ones(80_000_000); small = [1]'); save(); cell('big.add_(1); small.append(2)')
import resource
pages = int(open("/proc/self/statm").read().split()[0])
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (64 << 20), hard))
report = save()
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
result = [report.version, len(report.unsaved)]
""")
    assert result == [2, 0]


def test_timeout_of_a_commit_is_passed_on():
    io = TightIO()
    tracker = session(io)
    io.refuses, io.error = "commit", Timeout("STORE_TIMEOUT", "the store did not answer in time")
    before = picture(tracker)
    with pytest.raises(Timeout):
        tracker.save("x-2")
    assert picture(tracker) == before
