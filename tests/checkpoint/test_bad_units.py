"""Stored bytes that are not what was saved: a typed reason for the variables that need them, all others live."""

from __future__ import annotations

import pickle
import struct
from dataclasses import replace

import checkpoint_nursery
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.checkpoint.manifest import Manifest, UnitEntry, UnitHeader, decode_manifest, encode_manifest
from looseleaf.checkpoint.stub import is_stub
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import Corrupt, LooseLeafError, NotFound, PreconditionFailed, Unavailable
from looseleaf.ids import UnitId

ALLOWED = {
    "UNIT_DAMAGED", "UNIT_MISSING", "UNITS_UNKNOWN", "PAYLOAD_DAMAGED", "RESTORE_FAILED", "CYCLIC_CONSTRUCTION",
    "MODULE_MISSING", "DEFINITION_MISSING", "IMPORT_FAILED", "OUT_OF_MEMORY", "REGION_UNKNOWN",
}  # fmt: skip
exploded: list[str] = []


def explode(text: str) -> str:
    """What a pickle of an attacker would call."""
    exploded.append(text)
    return text


class Bomb:
    """Pickles as a call of `explode`."""

    def __reduce__(self):
        return explode, ("boom",)


class StoreIO(checkpoint_nursery.MemoryIO):
    """The store in memory, with errors as the real one gives them; `lost`: hashes and region ids that it denies."""

    def __init__(self):
        super().__init__()
        self.lost = set()
        self.down = False

    def fetch_units(self, hashes):
        if self.down:
            raise Unavailable("STORE_DOWN", "the store does not answer")
        unknown = [unit_hash for unit_hash in hashes if unit_hash in self.lost]
        if unknown:
            raise NotFound("UNITS_UNKNOWN", f"{len(unknown)} units are not in the store")
        return super().fetch_units(hashes)

    def map_regions(self, refs):
        if any(ref.region_id in self.lost for ref in refs):
            raise NotFound("REGION_UNKNOWN", "a region is not there")
        return super().map_regions(refs)


def hidden(name: str) -> bool:
    return name.startswith("__")


def tracker_over(io, namespace=None):
    space = {} if namespace is None else namespace
    return StateTracker(space, io, session_id="s-bad", epoch=1, hidden=hidden)


def values():
    shared = [1, 2, 3]
    big = torch.arange(40_000, dtype=torch.float32)
    loop: list = []
    loop.append({"loop": loop})
    return {
        "a": {"shared": shared}, "b": [shared], "t": big, "view": big[10:20], "n": np.arange(20_000.0), "five": 5,
        "text": "x" * 2_000_000, "loop": loop, "inner": loop[0], "raw": b"z" * (1 << 20), "small": np.arange(4),
    }  # fmt: skip


EXPECTED = values()


@pytest.fixture(scope="module")
def saved():
    io = StoreIO()
    tracker_over(io, values()).save("x-1")
    return io


def copy_of(io):
    new = StoreIO()
    new.units, new.regions, new.versions = dict(io.units), dict(io.regions), list(io.versions)
    return new


def picture(tracker):
    """All of a holder that a restore may change."""
    labels = tracker.labels
    return (
        {name: id(value) for name, value in tracker.namespace.items()}, dict(tracker.saved_bindings),
        dict(labels.atoms), labels.live_ids(), labels.next_id, tracker.applied_process_state, tracker.manifest.version,
    )  # fmt: skip


def check_restored(tracker, report, names):
    """Each asked variable is right, or a stub with a typed reason; the holder saves and restores on."""
    failed = {entry.name: entry.reason for entry in report.failed}
    assert set(failed.values()) <= ALLOWED, failed
    expected = EXPECTED
    for name in names:
        value = tracker.namespace[name]
        if name in failed:
            assert is_stub(value), name
        elif isinstance(value, torch.Tensor | np.ndarray):
            assert bool((value == expected[name]).all()), name
        elif isinstance(value, str | bytes):
            assert value == expected[name], name
        else:
            assert repr(value) == repr(expected[name]), name
    return failed


@settings(max_examples=40)
@given(st.data())
def test_unit_with_other_bytes_costs_only_the_variables_that_need_it(saved, data):
    io = copy_of(saved)
    victim = data.draw(st.sampled_from(sorted(io.units)))
    old = io.units[victim]
    how = data.draw(st.sampled_from(["flip", "cut", "grow", "other", "bomb", "lost"]))
    if how == "flip":
        place = data.draw(st.integers(0, len(old) - 1))
        io.units[victim] = old[:place] + bytes([old[place] ^ (1 << data.draw(st.integers(0, 7)))]) + old[place + 1 :]
    elif how == "cut":
        io.units[victim] = old[: data.draw(st.integers(0, len(old) - 1))]
    elif how == "grow":
        io.units[victim] = old + data.draw(st.binary(min_size=1, max_size=9))
    elif how == "other":
        io.units[victim] = io.units[data.draw(st.sampled_from(sorted(set(io.units) - {victim})))]
    elif how == "bomb":
        io.units[victim] = b"V" + pickle.dumps(Bomb(), 5)
    else:
        io.lost.add(victim)
    exploded.clear()
    tracker = tracker_over(io)
    names = list(decode_manifest(io.versions[0]).roots)
    report = tracker.restore(names)
    failed = check_restored(tracker, report, names)
    manifest = tracker.manifest
    unit_id = next(unit_id for unit_id, entry in manifest.units.items() if entry.hash == victim)
    # Small plain values are in the manifest itself.
    needing = {name for name in names if unit_id in manifest.closure([name]).units and name != "five"}
    assert set(failed) == needing
    assert (unit_id == manifest.process_state) == bool(report.problems)
    assert not exploded
    tracker.namespace["more"] = [6]
    tracker.save("x-2")
    again = tracker_over(io)
    assert "more" in again.restore(["more"]).restored


def test_region_of_a_large_unit_with_other_bytes_is_not_unpickled(saved):
    io = copy_of(saved)
    manifest = decode_manifest(io.versions[0])
    ref = manifest.units[manifest.roots["text"]].regions[0]
    bomb = b"V" + pickle.dumps(Bomb(), 5)
    io.regions[ref.region_id] = bomb + bytes(ref.length_bytes - len(bomb))
    exploded.clear()
    tracker = tracker_over(io)
    report = tracker.restore(list(manifest.roots))
    assert [(entry.name, entry.reason) for entry in report.failed] == [("text", "UNIT_DAMAGED")]
    assert not exploded


def test_lost_region_of_a_payload_costs_what_lies_on_it(saved):
    io = copy_of(saved)
    manifest = decode_manifest(io.versions[0])
    (payload_id,) = manifest.closure(["t"]).payloads
    io.lost.add(manifest.payloads[payload_id].regions[0].region_id)
    tracker = tracker_over(io)
    names = list(manifest.roots)
    assert set(check_restored(tracker, tracker.restore(names), names)) == {"t", "view"}


def test_payload_of_another_length_is_refused(saved):
    io = copy_of(saved)
    manifest = decode_manifest(io.versions[0])
    (payload_id,) = manifest.closure(["t"]).payloads
    region_id = manifest.payloads[payload_id].regions[0].region_id
    io.regions[region_id] = io.regions[region_id][:-8]
    tracker = tracker_over(io)
    report = tracker.restore(["t", "five"])
    assert {entry.reason for entry in report.failed} == {"PAYLOAD_DAMAGED"}
    assert tracker.namespace["five"] == 5


def test_restore_that_raises_leaves_everything_as_it_was(saved):
    io = copy_of(saved)
    tracker = tracker_over(io)
    tracker.restore(["five"])
    tracker.namespace["mine"] = [1]
    before = picture(tracker)
    io.down = True
    with pytest.raises(Unavailable):
        tracker.restore(["a", "loop", "t"])
    assert picture(tracker) == before
    io.down = False
    report = tracker.restore(["a", "loop", "t"])
    assert not report.failed
    assert tracker.namespace["mine"] == [1]


def test_first_restore_that_raises_sets_nothing(saved):
    io = copy_of(saved)
    tracker = tracker_over(io)
    before = picture(tracker)
    io.down = True
    with pytest.raises(Unavailable):
        tracker.restore(["five"])
    assert picture(tracker) == before


class Crafted:
    """A session's version whose units were written by hand, hashes and all: what a faulty writer could leave."""

    def __init__(self, saved):
        self.io = copy_of(saved)
        self.manifest: Manifest = decode_manifest(self.io.versions[0])

    def unit(self, name, data, **header):
        """Puts `data` in the place of the variable's unit."""
        unit_id = self.manifest.roots[name]
        old = self.manifest.units[unit_id]
        new = UnitEntry(hash128(data), len(data), (), replace(old.header, **header))
        units = {**self.manifest.units, unit_id: new}
        self.manifest = replace(self.manifest, units=units)
        self.io.units[new.hash] = data
        return unit_id

    def restore(self, *names):
        self.io.versions[0] = encode_manifest(self.manifest)
        tracker = tracker_over(self.io)
        tracker.namespace["mine"] = 1
        report = tracker.restore(names)
        assert tracker.namespace["mine"] == 1
        return tracker, {entry.name: entry.reason for entry in report.failed}


NAMES = [999, -1, 1 << 70, "7:1", "7:999999999999", "9:", "dict:no_such_module", "x", None, 1.5, [1], True, (1,), b"1"]


@pytest.mark.parametrize("name", NAMES)
def test_unit_that_names_what_is_not_there_is_refused(saved, name):
    crafted = Crafted(saved)
    # The opcode for a persistent id after any value: what no pickler of ours writes.
    crafted.unit("small", b"V" + pickle.dumps(name, 5)[:-1] + b"Q.")
    _, failed = crafted.restore("small", "a")
    assert set(failed) == {"small"}
    assert failed["small"] in ALLOWED


def test_units_that_refer_to_each_other_in_their_construction_are_refused(saved):
    crafted = Crafted(saved)
    one, two = crafted.manifest.roots["a"], crafted.manifest.roots["small"]
    for name, other in (("a", two), ("small", one)):
        data = b"V\x80\x05K" + bytes([other]) + b"Q."
        assert other < 256
        crafted.unit(name, data, refs=(UnitId(other),))
    _, failed = crafted.restore("a", "small", "five")
    assert failed == {"a": "CYCLIC_CONSTRUCTION", "small": "CYCLIC_CONSTRUCTION"}


def long_chain(crafted, length):
    units = dict(crafted.manifest.units)
    first = crafted.manifest.next_id
    for unit_id in range(first, first + length):
        below = unit_id + 1 if unit_id + 1 < first + length else unit_id
        data = b"V\x80\x05J" + struct.pack("<i", below) + (b"Q." if below != unit_id else b".")
        crafted.io.units[hash128(data)] = data
        refs = (UnitId(below),) if below != unit_id else ()
        units[UnitId(unit_id)] = UnitEntry(hash128(data), len(data), (), UnitHeader(refs=refs))
    crafted.manifest = replace(
        crafted.manifest, units=units, next_id=first + length, roots={**crafted.manifest.roots, "chain": UnitId(first)}
    )


def test_chain_of_references_of_any_length_restores(saved):
    crafted = Crafted(saved)
    long_chain(crafted, 4000)
    tracker, failed = crafted.restore("chain")
    assert failed == {}
    assert tracker.namespace["chain"] == tracker.manifest.next_id - 1


@settings(max_examples=60)
@given(st.binary(max_size=80), st.sampled_from([b"V", b"L", b"D", b"E", b"O", b"", b"x", b"\xff"]))
def test_unit_of_random_bytes_is_a_typed_failure(saved, body, mode):
    crafted = Crafted(saved)
    if not mode + body:
        return
    crafted.unit("small", mode + body)
    tracker, failed = crafted.restore("small", "a")
    assert set(failed) <= {"small"}
    assert set(failed.values()) <= ALLOWED
    tracker.save("x-2")


@settings(max_examples=50)
@given(st.data())
def test_unit_with_mutated_opcodes_is_a_typed_failure_or_a_value(saved, data):
    crafted = Crafted(saved)
    name = data.draw(st.sampled_from(["a", "loop", "view", "small", "n"]))
    old = bytearray(crafted.io.units[crafted.manifest.units[crafted.manifest.roots[name]].hash])
    for _ in range(data.draw(st.integers(1, 3))):
        old[data.draw(st.integers(0, len(old) - 1))] = data.draw(st.integers(0, 255))
    crafted.unit(name, bytes(old))
    _, failed = crafted.restore(name, "five")
    assert set(failed.values()) <= ALLOWED


GEOMETRIES = [
    ("offset beyond", (1 << 20, (4,), (1,))),
    ("shape beyond", (0, (1 << 20,), (1,))),
    ("strides beyond", (0, (4,), (1 << 20,))),
    ("product beyond", (0, (1 << 40, 1 << 40), (1 << 40, 1))),
    ("offset below", (-4, (4,), (1,))),
    ("strides below", (0, (4,), (-4,))),
    ("sizes below", (0, (-4,), (1,))),
]


@pytest.mark.parametrize("geometry", [case[1] for case in GEOMETRIES], ids=[case[0] for case in GEOMETRIES])
@pytest.mark.parametrize("size", [64, 40_000])
def test_tensor_beyond_its_memory_is_refused(geometry, size):
    from looseleaf.checkpoint.loaded_memory import LoadedMemory, inline_memory
    from looseleaf.checkpoint.torch_memory import tensor

    for memory in (inline_memory(bytes(size), "cpu"), LoadedMemory(bytearray(size), size)):
        with pytest.raises(Corrupt) as caught:
            tensor(memory, 0, size, torch.Tensor, torch.float32, geometry, (False, None, False, False, False))
        assert caught.value.reason == "PAYLOAD_DAMAGED"
        assert memory.size_bytes == size
        assert all(storage.nbytes() == size for storage in memory.storages())


@pytest.mark.parametrize(("place", "size"), [(0, 65), (64, 1), (-1, 4), (1 << 62, 4), (0, -1), (0, 1 << 62)])
def test_storage_beyond_its_memory_is_refused(place, size):
    from looseleaf.checkpoint.loaded_memory import LoadedMemory, inline_memory

    for memory in (inline_memory(bytes(64), "cpu"), LoadedMemory(bytearray(64), 64)):
        with pytest.raises(Corrupt) as caught:
            memory.storage(place, size)
        assert caught.value.reason == "PAYLOAD_DAMAGED"


ARRAYS = [
    (-8, (4,), (8,)), (0, (9,), (8,)), (56, (2,), (8,)), (0, (2,), (1 << 40,)), (0, (4,), (-8,)),
    (0, (1 << 40, 1 << 40), (0, 0)), (1 << 62, (1,), (8,)), (0, (-1,), (8,)),
]  # fmt: skip


@pytest.mark.parametrize(("offset", "shape", "strides"), ARRAYS)
def test_array_beyond_its_memory_is_refused(offset, shape, strides):
    from looseleaf.checkpoint.loaded_memory import LoadedMemory
    from looseleaf.checkpoint.numpy_memory import array_on_memory, array_view, object_view

    memory = LoadedMemory(bytearray(64), 64)
    with pytest.raises((Corrupt, ValueError)):
        array_on_memory(memory, np.dtype("f8"), offset, shape, strides, True)
    with pytest.raises((Corrupt, ValueError)):
        array_view(np.zeros(8), np.dtype("f8"), offset, shape, strides, True)
    base = np.array([object() for _ in range(8)])
    with pytest.raises((Corrupt, ValueError)):
        object_view(base, offset if abs(offset) > 8 else offset // 8, shape, strides, True)


def test_memory_is_never_taken_for_objects():
    from looseleaf.checkpoint.loaded_memory import LoadedMemory
    from looseleaf.checkpoint.numpy_memory import array_on_memory, array_view

    dtypes = [np.dtype(object), np.dtype([("a", "i8"), ("b", object)])]
    for dtype in dtypes:
        with pytest.raises((Corrupt, ValueError, TypeError)):
            array_on_memory(LoadedMemory(bytearray(b"\x41" * 64), 64), dtype, 0, (1,), (dtype.itemsize,), True)
        with pytest.raises((Corrupt, ValueError, TypeError)):
            array_view(np.full(8, 0x4141), dtype, 0, (1,), (dtype.itemsize,), True)


@pytest.mark.parametrize(("place", "size"), [(0, 65), (60, 8), (-8, 8), (1 << 62, 1), (0, -1)])
def test_arrow_buffer_beyond_its_memory_is_refused(place, size):
    pytest.importorskip("pyarrow")
    from looseleaf.checkpoint.arrow_memory import arrow_buffer
    from looseleaf.checkpoint.loaded_memory import LoadedMemory

    for memory in (LoadedMemory(bytearray(64), 64), bytes(64)):
        with pytest.raises(Corrupt) as caught:
            arrow_buffer(memory, place, size)
        assert caught.value.reason == "PAYLOAD_DAMAGED"


def test_mapped_file_that_became_shorter_is_refused_and_left_alone(tmp_path):
    from looseleaf.checkpoint.numpy_memory import memory_mapped_file

    path = tmp_path / "numbers.bin"
    path.write_bytes(b"12345678")
    with pytest.raises(PreconditionFailed) as caught:
        memory_mapped_file(str(path), np.dtype("f8"), "r+", 0, (1000,), "C")
    assert caught.value.reason == "MAPPED_FILE_GONE"
    assert path.read_bytes() == b"12345678"


@settings(max_examples=40)
@given(st.integers(0, 20), st.binary(max_size=64))
def test_manifest_of_any_kind_of_damage_changes_nothing(saved, place, garbage):
    io = copy_of(saved)
    tracker = tracker_over(io)
    tracker.restore(["five"])
    before = picture(tracker)
    data = bytearray(io.versions[0])
    data[place : place + len(garbage)] = garbage
    for bad in (bytes(data[: len(data) // 2]), garbage, bytes(data) if garbage else b""):
        if bad == io.versions[0]:
            continue
        with pytest.raises(LooseLeafError):
            tracker.advance(bad)
        assert picture(tracker) == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"session_id": "s-other"}, "OTHER_SESSION"),
    ],
)
def test_manifest_of_another_session_changes_nothing(saved, change, reason):
    io = copy_of(saved)
    tracker = tracker_over(io)
    tracker.restore(["five"])
    before = picture(tracker)
    with pytest.raises(LooseLeafError) as caught:
        tracker.advance(encode_manifest(replace(tracker.manifest, **change)))
    assert caught.value.reason == reason
    assert picture(tracker) == before


def test_manifest_of_a_newer_format_is_named_so(saved):
    data = bytearray(saved.versions[0])
    data[4] += 1
    with pytest.raises(LooseLeafError) as caught:
        tracker_over(copy_of(saved)).advance(bytes(data))
    assert caught.value.reason == "MANIFEST_FORMAT"
    assert "newer" in caught.value.message
