"""A flipped bit in any row of the index, a date that is set, a manifest of another format: told by name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from looseleaf.checkpoint.manifest import decode_manifest
from looseleaf.clock import ManualClock
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import Conflict, Corrupt, LooseLeafError, Unavailable
from looseleaf.kv import Batch, open_kv
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.disk import Disk
from looseleaf.services.checkpoint_store.index import StoreIndex
from looseleaf.services.checkpoint_store.metrics import StoreMetrics
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.server import scrub
from looseleaf.services.checkpoint_store.stats import count_all
from looseleaf.services.checkpoint_store.store import Store, StoreLimits, open_store
from looseleaf.services.checkpoint_store.verifier import verify_bytes, verify_index

from .conftest import Saver, State, make_state

STATE = make_state(["a"], ["a"], 2_000)


def put(store: Store, state: State) -> None:
    upload = store.regions.begin_upload()
    upload.add([(Region(*key), data) for key, data in state.region_chunks()])
    upload.finish()


def restore(store: Store) -> None:
    """All that a restore of the newest version reads; AssertionError for a byte that is not what was saved."""
    found = store.sessions.manifest("s1", 0, 0)
    assert found.version == 1
    manifest = decode_manifest(found.manifest)
    assert store.units.get(list(manifest.unit_hashes())) == list(STATE.units.values())
    regions = [Region(ref.region_id, ref.length_bytes) for ref in manifest.region_refs()]
    assert store.regions.get(regions) == list(STATE.regions.values())


@pytest.mark.parametrize("kind", [
    keys.SESSION, keys.VERSION, keys.MANIFEST, keys.REFS, keys.UNIT, keys.UNIT_BYTES, keys.REGION, keys.FORMAT_KEY[:1],
])  # fmt: skip
def test_any_flipped_bit_of_the_index_is_an_error_or_changes_nothing_that_is_restored(
    store: Store, kind: bytes
) -> None:
    put(store, STATE)
    Saver(store, host_id="").save(STATE)
    (key, row), *_ = store.index.kv.scan(kind)
    told = 0
    for bit in range(0, 8 * len(row), 3):
        flipped = bytearray(row)
        flipped[bit // 8] ^= 1 << bit % 8
        write(store, key, bytes(flipped))
        try:
            restore(store)
            problems = verify_index(store.index)
        except LooseLeafError as error:
            assert error.code in ("DATA_LOSS", "NOT_FOUND", "UNIMPLEMENTED"), error  # noqa: PT017
            problems = [error.reason]
        told += bool(problems)
    # Times, titles and sizes may change unseen; what is restored, and who may write, may not.
    if kind in (keys.MANIFEST, keys.REFS, keys.UNIT_BYTES):
        assert told == len(range(0, 8 * len(row), 3))
    write(store, key, row)
    restore(store)
    assert verify_index(store.index) == []


def write(store: Store, key: bytes, row: bytes) -> None:
    batch = Batch()
    batch.put(key, row)
    store.index.kv.write(batch)
    # What was read from the old row is of no use to this test.
    store.index._refs.clear()


def test_flipped_bytes_of_units_and_regions_are_found_by_the_check(store: Store) -> None:
    put(store, STATE)
    Saver(store, host_id="").save(STATE)
    path, offset = store.files.path_of(0)
    with path.open("r+b") as file:
        file.seek(offset + 1_999)
        file.write(b"?")
    write(store, keys.unit_bytes_key(keys.DEFAULT_TENANT, hash128(b"unit a")), b"unit ?")
    found = [text for _, texts in verify_bytes(store) for text in texts]
    assert len(found) == 2 and all("is damaged" in text for text in found)


def spoil(store: Store, state: State) -> Region:
    """Changes a byte of the state's first region on the disk."""
    victim = Region(*state.region_chunks()[0][0])
    row = store.regions.locate([victim])[0]
    assert row is not None and row.slot is not None
    path, offset = store.files.path_of(row.slot)
    with path.open("r+b") as file:
        file.seek(offset + 7)
        file.write(b"\0")
    return victim


def test_damaged_region_that_comes_again_is_stored_anew_and_old_versions_are_whole_again(store: Store) -> None:
    put(store, STATE)
    saver = Saver(store, host_id="")
    saver.save(STATE)
    used_bytes = store.usage.used_bytes
    victim = spoil(store, STATE)
    for _ in range(2):
        with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH"):
            store.regions.get([victim])
    assert count_all(store).regions_damaged == 1
    assert any("is damaged on the disk" in text for text in verify_index(store.index))
    # The session goes on with the same region: what it saves is not said to be durable ...
    saver.save(make_state(["b"], ["a"], 2_000))
    assert not store.index.version("s1", 2).durable
    assert store.commits.mark_durable("s1", 2) == (False, [(victim.region_id, victim.length_bytes)])
    # ... until the host that has it was asked for it.
    put(store, STATE)
    assert store.commits.mark_durable("s1", 2) == (True, [])
    assert store.regions.get([victim]) == [STATE.regions["ra"]]
    assert store.sessions.manifest("s1", 1, 0).version == 1
    assert verify_index(store.index) == []
    assert (store.usage.used_bytes, count_all(store).regions_damaged) == (used_bytes + len(b"unit b"), 0)
    # The damaged slot is free again.
    assert {store.files.allocate() for _ in range(2)} == {0, 2}


@pytest.mark.parametrize("ends_by", ["finish", "abort", "abort twice", "abort, flush fails", "abort, write failed"])
def test_slot_of_a_damaged_region_that_was_stored_anew_is_freed_once_the_new_row_is_safe(
    store: Store, monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    put(store, STATE)
    victim = spoil(store, STATE)
    with pytest.raises(Corrupt):
        store.regions.get([victim])
    used_bytes = store.usage.used_bytes

    def fail(*_arguments: Any) -> None:
        raise Unavailable("KV_IO", "planted")

    monkeypatch.setattr("looseleaf.services.checkpoint_store.regions.UPLOAD_BATCH_REGIONS", 1)
    upload = store.regions.begin_upload()
    if ends_by == "abort, write failed":
        monkeypatch.setattr(store.index.kv, "write", fail)
    with pytest.raises(Unavailable) if ends_by == "abort, write failed" else nullcontext():
        upload.add([(victim, STATE.regions["ra"])])
    if ends_by == "abort, flush fails":
        monkeypatch.setattr(store.index.kv, "flush", fail)
    if ends_by == "finish":
        upload.finish()
    for _ in range(2 if ends_by == "abort twice" else 1):
        upload.abort()
    # Where it is not known which row a loss of power would leave, both slots stay taken until the next start.
    kept = "," in ends_by
    assert store.usage.used_bytes == used_bytes * (2 if kept else 1)
    assert store.files.allocate() == (2 if kept else 0)


@pytest.mark.parametrize("kind", [keys.UNIT, keys.UNIT_BYTES, keys.REGION])
def test_row_that_goes_while_bytes_are_read_is_damage_only_if_it_leaves_others_behind(
    store: Store, kind: bytes
) -> None:
    put(store, STATE)
    Saver(store, host_id="").save(STATE)
    parts = verify_bytes(store)
    lost = [key for key, _ in store.index.kv.scan(kind)]
    page = store.index.kv.scan

    def scan_then_lose(*arguments: Any, **named: Any) -> list[tuple[bytes, bytes]]:
        rows = page(*arguments, **named)
        batch = Batch()
        for key in lost:
            batch.delete(key)
        store.index.kv.write(batch)
        return rows

    store.index.kv.scan = scan_then_lose  # type: ignore[method-assign]
    found = [text for _, texts in parts for text in texts]
    assert len(found) == (kind == keys.UNIT_BYTES)
    assert all("no bytes" in text for text in found)


async def test_what_the_disk_does_not_give_is_told_and_no_damage_and_the_rest_is_read(tmp_path: Path) -> None:
    state = make_state(["a"], ["ra", "rb", "rc"])
    broken: set[int] = set()

    def pread(fd: int, size_bytes: int, offset: int) -> bytes:
        if offset in broken:
            raise OSError(errno.EIO, "Input/output error")
        return os.pread(fd, size_bytes, offset)

    kv = open_kv(tmp_path / "index", "memory")
    store = Store(kv, tmp_path, StoreLimits(), ManualClock(), Disk(pread=pread))
    put(store, state)
    Saver(store, host_id="").save(state)
    spoil(store, state)
    (row,) = store.regions.locate([Region(*state.region_chunks()[1][0])])
    assert row is not None and row.slot is not None
    broken.add(store.files.path_of(row.slot)[1])

    async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    found = [text for _, texts in verify_bytes(store) for text in texts]
    assert sorted("cannot be read" in text for text in found) == [False, True]
    assert await scrub(store, at_once, 0) == (4, 2)
    assert count_all(store).regions_damaged == 1, "the disk may give the other one later"
    broken.clear()
    assert await scrub(store, at_once, 0) == (4, 1)
    store.close()


def test_error_that_says_nothing_about_the_bytes_ends_the_reading(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, STATE)

    def fail(*_arguments: Any) -> None:
        raise Unavailable("STORE_CLOSED", "planted")

    monkeypatch.setattr(store.files, "read", fail)
    with pytest.raises(Unavailable):
        list(verify_bytes(store))
    assert count_all(store).regions_damaged == 0


async def test_time_between_two_readings_of_all_bytes_goes_on_over_restarts(store: Store, clock: SetClock) -> None:
    async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def left_s() -> float:
        """As at a start."""
        return StoreIndex(store.index.kv, clock).scrub_left_s(100.0)

    assert left_s() == 100
    clock.advance(70)
    assert left_s() == 30
    clock.advance(70)
    assert left_s() == 0
    await scrub(store, at_once, 0)
    assert left_s() == 100
    clock.set_by_s = -900_000.0
    assert left_s() == 100


async def test_scrubbing_finds_and_marks_what_is_damaged(store: Store) -> None:
    put(store, STATE)
    Saver(store, host_id="").save(STATE)

    async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    assert await scrub(store, at_once, 0) == (2, 0)
    spoil(store, STATE)
    assert await scrub(store, at_once, 0) == (2, 1)
    assert count_all(store).regions_damaged == 1
    registry = CollectorRegistry()
    StoreMetrics(registry, store)
    assert registry.get_sample_value("looseleaf_store_damaged_regions") == 1


def test_host_lost_after_its_region_was_damaged_on_the_disk_takes_the_staged_version(store: Store) -> None:
    saver = Saver(store)
    saver.save(make_state(["a"]))
    saver.save(STATE)
    put(store, STATE)
    spoil(store, STATE)
    assert [text for _, texts in verify_bytes(store) for text in texts]
    (fell,) = store.hosts.forget("h1", [], everything=True, request_id="r-1")
    assert (fell.fallback.lost_version, fell.fallback.version) == (2, 1)
    assert verify_index(store.index) == []


def test_damage_is_remembered_over_a_restart_and_forgotten_with_its_region(tmp_path: Path, clock: SetClock) -> None:
    limits = StoreLimits(orphan_grace_s=0)
    store = open_store(tmp_path, limits, clock=clock)
    put(store, STATE)
    Saver(store, host_id="").save(STATE)
    spoil(store, STATE)
    assert [text for _, texts in verify_bytes(store) for text in texts]
    store.close()
    store = open_store(tmp_path, limits, clock=clock)
    saver = Saver(store)
    saver.save(make_state(["b"], ["a"], 2_000))
    assert not store.index.version("s1", 2).durable
    with pytest.raises(LooseLeafError, match="REGIONS_UNKNOWN"):
        Saver(store, "s2", host_id="").save(make_state([], ["a"], 2_000))
    for name in ("s1", "s2"):
        store.sessions.delete(name, "r-1")
    store.collector.collect()
    assert (store.usage.used_bytes, store.index.damaged) == (0, set())
    assert verify_index(store.index) == []
    store.close()


@pytest.mark.parametrize("at", [4, 20, 60])
def test_manifest_of_another_format_or_with_a_wrong_byte_is_refused_by_reason(store: Store, at: int) -> None:
    saver = Saver(store, host_id="")
    put(store, STATE)
    store.units.put(STATE.unit_pairs())
    manifest = bytearray(STATE.manifest("s1", 0, saver.epoch, "x1"))
    manifest[at] = 99 if at == 4 else manifest[at] ^ 1
    with pytest.raises(LooseLeafError, match="MANIFEST_FORMAT" if at == 4 else "MANIFEST_CHECKSUM"):
        store.commits.commit(
            "s1", epoch=saver.epoch, parent=0, execution_id="x1", manifest=bytes(manifest), host_id=""
        )
    assert store.sessions.manifest("s1", 0, 0).version == 0


class SetClock(ManualClock):
    """A machine whose date can be set; its monotonic clock goes on regardless."""

    set_by_s = 0.0

    def unix_ms(self) -> int:
        return super().unix_ms() + int(self.set_by_s * 1000)


@pytest.fixture
def clock() -> SetClock:
    return SetClock(1_000_000)


@pytest.mark.parametrize("set_by_s", [-900_000.0, 900_000.0])
def test_date_that_is_set_loses_no_version_and_frees_garbage_all_the_same(
    store: Store, clock: SetClock, set_by_s: float
) -> None:
    saver = Saver(store, host_id="")
    put(store, STATE)
    saver.save(STATE)
    store.units.put([(hash128(b"garbage"), b"garbage")])
    clock.set_by_s = set_by_s
    store.collector.collect()
    restore(store)
    # Put before the date was set back, it is due one grace after the collector has seen that.
    clock.advance(61)
    store.collector.collect()
    with pytest.raises(LooseLeafError, match="UNITS_UNKNOWN"):
        store.units.get([hash128(b"garbage")])
    restore(store)
    saver.save(make_state(["b"]))
    assert [entry.version for entry in store.sessions.versions("s1", 9)] == [2, 1]
    assert verify_index(store.index) == []


def test_date_that_is_set_ends_no_lease_of_a_reader(store: Store, clock: SetClock) -> None:
    uses = store.collector._uses
    uses._use_s = 100.0
    saver = Saver(store)
    for name in "abcde":
        saver.save(make_state([name]))
    store.sessions.manifest("s1", 1, 0)
    clock.advance(50)
    clock.set_by_s = 900_000.0
    store.collector.collect()
    assert 1 in [entry.version for entry in store.sessions.versions("s1", 9)]
    clock.set_by_s = -900_000.0
    clock.advance(51)
    store.collector.collect()
    assert [entry.version for entry in store.sessions.versions("s1", 9)] == [5, 4, 3]


def test_upload_whose_regions_a_jump_of_the_date_freed_says_send_again(store: Store, clock: SetClock) -> None:
    put(store, STATE)
    saver = Saver(store, host_id="")
    store.units.put(STATE.unit_pairs())
    clock.set_by_s = 900_000.0
    store.collector.collect()
    with pytest.raises(LooseLeafError, match="UNITS_MISSING|REGIONS_UNKNOWN"):
        store.commits.commit(
            "s1", epoch=saver.epoch, parent=0, execution_id="x1", host_id="",
            manifest=STATE.manifest("s1", 0, saver.epoch, "x1"),
        )  # fmt: skip
    put(store, STATE)
    assert saver.save(STATE) == 1
    restore(store)


def second_saver(store: Store) -> None:
    saver = Saver(store, host_id="")
    saver.save(make_state(["a"]))
    saver.version = 0
    saver.save(make_state(["b"]))


def wrong_name(store: Store) -> None:
    store.regions.begin_upload().add([(Region(hash128(b"this"), 4), b"that")])


@pytest.mark.parametrize(("fault", "error"), [(second_saver, Conflict), (wrong_name, Corrupt)])
def test_fault_of_a_client_changes_nothing(
    store: Store, fault: Callable[[Store], None], error: type[LooseLeafError]
) -> None:
    with pytest.raises(error):
        fault(store)
    assert verify_index(store.index) == []
