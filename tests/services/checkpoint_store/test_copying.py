"""Backups: whole, sound, of durable versions only, and a store of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from looseleaf.clock import ManualClock
from looseleaf.errors import CapacityExceeded, Corrupt, InvalidArgument, PreconditionFailed
from looseleaf.services.checkpoint_store.copying import check_backup_folder, copy_durable
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.stats import count_all
from looseleaf.services.checkpoint_store.store import Store, StoreLimits, open_store
from looseleaf.services.checkpoint_store.verifier import verify_bytes, verify_index

from .conftest import Saver, State, make_state

OLD, NEW = make_state(["a", "b"], ["a", "c"], 2_000), make_state(["a", "c"], ["c", "d"], 2_000)


def put(store: Store, state: State) -> None:
    upload = store.regions.begin_upload()
    upload.add([(Region(*key), data) for key, data in state.region_chunks()])
    upload.finish()


def durable(saver: Saver, state: State) -> int:
    put(saver.store, state)
    return saver.save(state, host_id="")


def contents(store: Store) -> dict[tuple[str, int], bytes]:
    return {
        (session_id, entry.version): store.sessions.manifest(session_id, entry.version, 0).manifest
        for session_id, _ in store.index.sessions()
        for entry in store.index.chain(session_id)
    }


def problems(store: Store) -> list[str]:
    return [*verify_index(store.index), *(text for _, found in verify_bytes(store) for text in found)]


@pytest.fixture
def copy(tmp_path: Path, clock: ManualClock) -> Store:
    return open_store(tmp_path / "copy", StoreLimits(orphan_grace_s=60), kind="memory", clock=clock)


def test_copy_holds_durable_versions_whole_and_collects_on_its_own(
    store: Store, copy: Store, clock: ManualClock
) -> None:
    first, second, staged = Saver(store, "s-one"), Saver(store, "s-two"), Saver(store, "s-staged")
    durable(first, OLD)
    durable(first, NEW)
    durable(second, OLD)
    first.save(make_state(["e"], ["e"]))
    staged.save(make_state(["f"], ["f"]))
    copied = copy_durable(store, copy)
    assert (copied.sessions, copied.versions, copied.units, copied.regions) == (2, 3, 3, 3)
    assert copied.behind == [("s-one", 3, 2), ("s-staged", 1, 0)]
    assert problems(copy) == [] == problems(store)
    assert contents(copy) == {key: data for key, data in contents(store).items() if key in contents(copy)}
    assert sorted(contents(copy)) == [("s-one", 1), ("s-one", 2), ("s-two", 1)]
    clock.advance(1_000)
    assert copy.collector.collect().regions_deleted == 0
    copy.sessions.delete("s-one", "r-1")
    copy.collector.collect()
    clock.advance(1_000)
    assert copy.collector.collect().units_deleted == 1
    assert problems(copy) == []
    assert copy.regions.get([Region(*key) for key, _ in OLD.region_chunks()]) == list(OLD.regions.values())
    # What the source goes on with is its own affair.
    durable(second, NEW)
    assert problems(store) == []
    copy.close()


def test_restored_session_goes_on_in_a_new_epoch(store: Store, copy: Store) -> None:
    saver = Saver(store)
    durable(saver, OLD)
    saver.save(NEW)
    copy_durable(store, copy)
    row = copy.index.session("s1")
    assert (row.version, row.durable_version, row.epoch) == (1, 1, saver.epoch + 1)
    again = Saver(copy)
    assert durable(again, NEW) == 2
    assert problems(copy) == []
    copy.close()


def test_copy_into_a_store_with_sessions_is_refused(store: Store, copy: Store) -> None:
    durable(Saver(store), OLD)
    Saver(copy)
    with pytest.raises(PreconditionFailed, match="STORE_NOT_EMPTY"):
        copy_durable(store, copy)
    copy.close()


def test_copy_that_does_not_fit_leaves_no_session_and_its_bytes_are_collected(
    store: Store, tmp_path: Path, clock: ManualClock
) -> None:
    durable(Saver(store), OLD)
    small = open_store(tmp_path / "small", StoreLimits(stored_bytes_max=6_000), kind="memory", clock=clock)
    with pytest.raises(CapacityExceeded, match="STORE_FULL"):
        copy_durable(store, small)
    assert small.sessions.count == 0
    assert problems(small) == []
    clock.advance(1_000)
    small.collector.collect()
    assert small.usage.used_bytes == 0
    small.close()


def test_damaged_region_stops_the_copy_and_is_found_by_the_check(store: Store, copy: Store) -> None:
    durable(Saver(store), OLD)
    victim = Region(*OLD.region_chunks()[0][0])
    row = store.regions.locate([victim])[0]
    assert row is not None and row.slot is not None
    path, offset = store.files.path_of(row.slot)
    with path.open("r+b") as file:
        file.seek(offset + 7)
        file.write(b"\0")
    with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH"):
        copy_durable(store, copy)
    assert copy.sessions.count == 0
    found = problems(store)
    assert len(found) == 2 and all(victim.region_id.hex() in text for text in found)
    copy.close()


def test_nothing_is_collected_while_a_copy_is_made(store: Store, clock: ManualClock) -> None:
    saver = Saver(store)
    durable(saver, OLD)
    with store.collector.paused():
        store.sessions.delete("s1", "r-1")
        clock.advance(1_000)
        assert store.collector.collect().regions_deleted == 0
        assert store.regions.get([Region(*key) for key, _ in OLD.region_chunks()]) == list(OLD.regions.values())
    assert store.collector.collect().regions_deleted == 2


def test_stats_agree_with_what_was_saved(store: Store) -> None:
    saver = Saver(store)
    durable(saver, OLD)
    saver.save(make_state(["a", "e"], ["e"], 2_000))
    stats = count_all(store)
    assert (stats.sessions, stats.versions, stats.durable_versions) == (1, 2, 1)
    assert (stats.units, stats.regions, stats.regions_on_disk, stats.regions_staged) == (3, 3, 2, 1)
    assert stats.used_bytes == stats.unit_bytes + stats.region_bytes and stats.orphans == 0


def test_folder_of_a_backup_is_checked(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for folder, empty in (("relative", True), (str(tmp_path / "full"), True), (str(tmp_path / "none"), False)):
        with pytest.raises(InvalidArgument, match="BACKUP_FOLDER"):
            check_backup_folder(folder, empty=empty)
    assert check_backup_folder(str(tmp_path / "new"), empty=True) == tmp_path / "new"
