"""Uploads and reads of regions over real files and a real database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from looseleaf.clock import ManualClock
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import CapacityExceeded, Conflict, Corrupt, InvalidArgument, LooseLeafError, NotFound, Unavailable
from looseleaf.services.checkpoint_store.regions import UPLOAD_BATCH_REGIONS, Region
from looseleaf.services.checkpoint_store.stats import count_all
from looseleaf.services.checkpoint_store.store import Store, StoreLimits, open_store
from looseleaf.services.checkpoint_store.verifier import verify_index
from looseleaf.units import REGION_BYTES

from .conftest import Saver, State, make_state

Chunk = tuple[Region, bytes]


def chunk(data: bytes) -> Chunk:
    return Region(hash128(data), len(data)), data


def put(store: Store, *data: bytes) -> int:
    upload = store.regions.begin_upload()
    try:
        upload.add([chunk(item) for item in data])
        return upload.finish()
    finally:
        upload.abort()


def test_uploaded_regions_read_back_and_are_stored_once(store: Store) -> None:
    assert put(store, b"a", b"bb", b"a") == 2
    assert put(store, b"bb", b"ccc") == 1
    assert store.regions.get([chunk(b"ccc")[0], chunk(b"a")[0]]) == [b"ccc", b"a"]
    located = store.regions.locate([chunk(b"a")[0], chunk(b"zz")[0], Region(hash128(b"a"), 2)])
    assert [row is not None and row.slot is not None for row in located] == [True, False, False]


def test_region_with_wrong_bytes_is_refused_by_name(store: Store) -> None:
    upload = store.regions.begin_upload()
    for region, data in ((Region(hash128(b"a"), 1), b"b"), (Region(hash128(b"a"), 2), b"a")):
        with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH") as caught:
            upload.add([(region, data)])
        assert caught.value.fields["region"] == hash128(b"a").hex()
    for region in (Region(b"short", 1), Region(hash128(b""), 0), Region(hash128(b"a"), (2 << 20) + 1)):
        with pytest.raises(InvalidArgument):
            upload.add([(region, b"a")])
    upload.abort()
    assert store.usage.used_bytes == 0


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_damaged_region_is_corrupt_and_names_its_place(store: Store, damage: str) -> None:
    put(store, b"first", b"second")
    row = store.regions.locate([chunk(b"second")[0]])[0]
    assert row is not None
    assert row.slot is not None
    path, offset = store.files.path_of(row.slot)
    if damage == "flip":
        with path.open("r+b") as file:
            file.seek(offset + 2)
            file.write(b"!")
    else:
        with path.open("r+b") as file:
            file.truncate(offset + 2)
    with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH") as caught:
        store.regions.get([chunk(b"second")[0]])
    assert caught.value.fields == {"region": hash128(b"second").hex(), "file": path.name, "offset": offset}
    assert store.regions.get([chunk(b"first")[0]]) == [b"first"]


@pytest.mark.parametrize("length", [1, 4_097, REGION_BYTES])
def test_region_of_zeros_takes_no_room_and_is_collected_like_any_other(
    store: Store, clock: ManualClock, length: int
) -> None:
    zeros = bytes(length)
    assert put(store, zeros, b"a") == 2
    assert put(store, zeros) == 0
    assert store.usage.used_bytes == 4096
    assert store.regions.get([chunk(b"a")[0], chunk(zeros)[0]]) == [b"a", zeros]
    stats = count_all(store)
    assert (stats.regions_on_disk, stats.regions_zero, stats.region_bytes) == (2, 1, 4096)
    assert verify_index(store.index) == []
    clock.advance(100)
    assert store.collector.collect().regions_deleted == 2
    assert store.usage.used_bytes == 0
    assert store.files.allocate() == 0
    with pytest.raises(NotFound, match="REGIONS_UNKNOWN"):
        store.regions.get([chunk(zeros)[0]])


@pytest.mark.parametrize("data", [bytes(9_999) + b"x", b"x" + bytes(9_999)])
def test_region_that_is_nearly_of_zeros_is_kept_whole(store: Store, data: bytes) -> None:
    put(store, data)
    assert store.regions.get([chunk(data)[0]]) == [data]
    assert store.usage.used_bytes == 3 * 4096


def test_durable_version_of_zeros_only_writes_no_region(store: Store) -> None:
    zeros = bytes(REGION_BYTES)
    put(store, zeros)
    saver = Saver(store, host_id="")
    saver.save(State({}, {"zeros": zeros}))
    assert store.index.version("s1", 1).durable
    assert store.usage.used_bytes == 0
    assert not list(store.files.path_of(0)[0].parent.iterdir())


def test_unknown_region_is_not_found(store: Store) -> None:
    put(store, b"a")
    with pytest.raises(NotFound, match="REGIONS_UNKNOWN") as caught:
        store.regions.get([chunk(b"a")[0], chunk(b"b")[0]])
    assert caught.value.fields["missing"] == [hash128(b"b").hex()]


def test_two_uploads_of_one_region_keep_one_slot(store: Store) -> None:
    first, second = store.regions.begin_upload(), store.regions.begin_upload()
    first.add([chunk(b"same")])
    second.add([chunk(b"same")])
    assert (first.finish(), second.finish()) == (1, 0)
    assert store.usage.used_bytes == 4096
    assert store.files.allocate() == 1
    assert verify_index(store.index) == []


def test_aborted_upload_leaves_nothing_and_abort_after_finish_keeps_all(store: Store) -> None:
    upload = store.regions.begin_upload()
    upload.add([chunk(b"a")])
    upload.abort()
    upload.add([chunk(b"b")])
    assert store.usage.used_bytes == 0
    assert store.files.allocate() == 0
    done = store.regions.begin_upload()
    done.add([chunk(b"c")])
    done.finish()
    done.abort()
    assert store.regions.get([chunk(b"c")[0]]) == [b"c"]


def test_long_upload_publishes_in_batches(store: Store) -> None:
    upload = store.regions.begin_upload()
    items = [str(number).encode() for number in range(UPLOAD_BATCH_REGIONS + 1)]
    upload.add([chunk(item) for item in items])
    assert upload.stored == UPLOAD_BATCH_REGIONS + 1
    assert upload.finish() == UPLOAD_BATCH_REGIONS + 1


def test_region_collected_during_an_upload_that_relies_on_it_is_a_conflict(store: Store, clock: ManualClock) -> None:
    put(store, b"a")
    upload = store.regions.begin_upload()
    upload.add([chunk(b"a")])
    clock.advance(100)
    assert store.collector.collect().regions_deleted == 1
    with pytest.raises(Conflict, match="REGIONS_COLLECTED"):
        upload.finish()
    upload.abort()
    assert put(store, b"a") == 1


def test_upload_of_present_orphan_renews_its_grace(store: Store, clock: ManualClock) -> None:
    put(store, b"a")
    clock.advance(59)
    put(store, b"a")
    clock.advance(59)
    assert store.collector.collect().regions_deleted == 0


def test_slot_freed_while_it_is_read_is_not_reused(store: Store, clock: ManualClock) -> None:
    put(store, b"old")
    with store.files.pinned([0]):
        clock.advance(100)
        assert store.collector.collect().regions_deleted == 1
        put(store, b"new")
        assert store.files.read(0, 3) == b"old"
    assert store.files.allocate() == 0


def test_reopened_store_knows_its_slots_usage_and_sessions(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    saver = Saver(store)
    state = make_state(units=["a"], regions=["a", "b"])
    upload = store.regions.begin_upload()
    upload.add([(Region(*key), data) for key, data in state.region_chunks()])
    upload.finish()
    saver.save(state)
    used_bytes = store.usage.used_bytes
    store.close()
    again = open_store(tmp_path)
    assert again.usage.used_bytes == used_bytes
    assert again.sessions.count == 1
    assert again.files.allocate() == 2
    assert again.sessions.manifest("s1", 0, 0).version == 1
    assert again.regions.get([Region(*key) for key, _ in state.region_chunks()]) == list(state.regions.values())
    assert verify_index(again.index) == []
    again.close()


@pytest.mark.parametrize("action", ["write", "sync"])
def test_failed_upload_gives_its_slots_back_and_the_next_one_works(
    store: Store, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    def fail(*args: object) -> None:
        raise Unavailable("STORE_IO", "the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(store.files, action, fail)
        with pytest.raises(Unavailable, match="STORE_IO"):
            put(store, b"a")
    assert store.usage.used_bytes == 0
    assert put(store, b"a") == 1
    assert store.files.allocate() == 1


def test_failed_index_write_leaves_its_slots_to_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, StoreLimits())

    def fail(write: Callable[..., None]) -> Callable[..., None]:
        def written_and_lost(*args: object, **kwargs: object) -> None:
            write(*args, **kwargs)
            raise Unavailable("KV_IO", "the answer was lost")

        return written_and_lost

    with monkeypatch.context() as patch:
        patch.setattr(store.index.kv, "write", fail(store.index.kv.write))
        upload = store.regions.begin_upload()
        upload.add([chunk(b"a")])
        with pytest.raises(LooseLeafError):
            upload.finish()
        upload.abort()
    # The row is there after all: its slot must not have been handed out again.
    put(store, b"b")
    assert store.regions.get([chunk(b"a")[0], chunk(b"b")[0]]) == [b"a", b"b"]
    store.close()


def test_full_disk_is_refused_before_writing(tmp_path: Path) -> None:
    store = open_store(tmp_path, StoreLimits(disk_free_bytes_min=1 << 60), kind="memory")
    with pytest.raises(CapacityExceeded, match="STORE_FULL.*free space on the disk of") as caught:
        put(store, b"a")
    assert caught.value.fields["available_bytes"] == 0
    assert not list((tmp_path / "regions").iterdir())
    assert put(store) == store.units.put([]) == 0
    store.close()
