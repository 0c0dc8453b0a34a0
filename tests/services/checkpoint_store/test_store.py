"""The store without its server: commits, retention, fallback, collection, and a model that it must agree with."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from looseleaf.clock import ManualClock
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import (
    CapacityExceeded,
    Conflict,
    Corrupt,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from looseleaf.services.checkpoint_store import collector
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.references import VersionRefs
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.sessions import TITLE_CHARS_MAX
from looseleaf.services.checkpoint_store.store import Store, StoreLimits, open_store
from looseleaf.services.checkpoint_store.verifier import verify_index

from .conftest import Saver, State, make_state


def upload(store: Store, state: State) -> int:
    transfer = store.regions.begin_upload()
    transfer.add([(Region(*key), data) for key, data in state.region_chunks()])
    return transfer.finish()


def assert_sound(store: Store) -> None:
    assert verify_index(store.index) == []


def test_commit_without_its_units_is_refused_and_changes_nothing(store: Store, saver: Saver) -> None:
    state = make_state(units=["a"])
    manifest = state.manifest("s1", 0, saver.epoch, "x1")
    with pytest.raises(PreconditionFailed, match="UNITS_MISSING") as caught:
        store.commits.commit(
            "s1", epoch=saver.epoch, parent=0, execution_id="x1", manifest=manifest, host_id="h1"
        )
    assert caught.value.fields["missing"] == [hash128(b"unit a").hex()]
    assert store.sessions.manifest("s1", 0, 0).version == 0
    assert_sound(store)


def test_commit_without_host_needs_regions_on_disk(store: Store, saver: Saver) -> None:
    state = make_state(regions=["a"])
    with pytest.raises(PreconditionFailed, match="REGIONS_UNKNOWN"):
        saver.save(state, host_id="")
    assert upload(store, state) == 1
    assert saver.save(state, host_id="") == 1
    assert store.commits.mark_durable("s1", 1) == (True, [])
    assert store.sessions.open("s1", create=False, raise_epoch=False, title="").durable_version == 1
    assert_sound(store)


def test_commit_repeated_after_others_and_a_new_epoch_still_succeeds(store: Store, saver: Saver) -> None:
    state = make_state(units=["a"])
    saver.save(state)
    first = {"epoch": saver.epoch, "parent": 0, "execution_id": "x-s1-1-1", "host_id": "h1"}
    manifest = state.manifest("s1", 0, saver.epoch, "x-s1-1-1")
    saver.save(make_state(units=["b"]))
    store.sessions.open("s1", create=False, raise_epoch=True, title="")
    assert store.commits.commit("s1", manifest=manifest, **first).version == 1  # type: ignore[arg-type]
    other = make_state(units=["b"]).manifest("s1", 0, saver.epoch, "x-s1-1-1")
    with pytest.raises(PreconditionFailed, match="STALE_EPOCH"):
        store.commits.commit("s1", manifest=other, **first)  # type: ignore[arg-type]


def test_second_saver_on_one_parent_has_moved(store: Store, saver: Saver) -> None:
    saver.save(make_state(units=["a"]))
    saver.version = 0
    with pytest.raises(Conflict, match="MANIFEST_MOVED"):
        saver.save(make_state(units=["b"]))
    assert_sound(store)


def test_old_epoch_is_fenced(store: Store, saver: Saver) -> None:
    newer = Saver(store)
    assert newer.epoch == saver.epoch + 1
    with pytest.raises(PreconditionFailed, match="STALE_EPOCH"):
        saver.save(make_state(units=["a"]))
    newer.save(make_state(units=["a"]))


def test_manifest_that_contradicts_its_request_is_refused(store: Store, saver: Saver) -> None:
    state = make_state()
    manifest = state.manifest("s1", 0, saver.epoch, "x1")
    wrong = {"epoch": saver.epoch, "parent": 0, "execution_id": "x1"}
    for field, value in (("epoch", saver.epoch + 1), ("parent", 1), ("execution_id", "x2")):
        with pytest.raises(InvalidArgument, match="MANIFEST_MISMATCH"):
            store.commits.commit("s1", manifest=manifest, host_id="h1", **{**wrong, field: value})  # type: ignore[arg-type]
    Saver(store, "s2")
    with pytest.raises(InvalidArgument, match="MANIFEST_MISMATCH"):
        store.commits.commit("s2", manifest=manifest, host_id="h1", **wrong)  # type: ignore[arg-type]


def test_unknown_session_and_version_are_not_found(store: Store, saver: Saver) -> None:
    with pytest.raises(NotFound, match="SESSION_UNKNOWN"):
        store.sessions.open("s9", create=False, raise_epoch=True, title="")
    with pytest.raises(NotFound, match="SESSION_UNKNOWN"):
        store.commits.mark_durable("s9", 1)
    with pytest.raises(NotFound, match="VERSION_UNKNOWN"):
        store.sessions.manifest("s1", 7, 0)
    with pytest.raises(InvalidArgument, match="ID_MALFORMED"):
        store.sessions.open("../x", create=True, raise_epoch=False, title="")


def test_known_manifest_is_answered_without_bytes(store: Store, saver: Saver) -> None:
    saver.save(make_state(units=["a"]))
    assert store.sessions.manifest("s1", 0, 1).manifest == b""
    assert store.sessions.manifest("s1", 0, 0).manifest != b""


def test_deleted_session_frees_everything_and_returns_with_a_higher_epoch(
    store: Store, saver: Saver, clock: ManualClock
) -> None:
    state = make_state(units=["a", "b"], regions=["r"])
    upload(store, state)
    saver.save(state)
    saver.save(make_state(units=["a"], regions=["r", "q"]))
    store.sessions.delete("s1", "r1")
    store.sessions.delete("s1", "r1")
    with pytest.raises(NotFound, match="SESSION_UNKNOWN"):
        store.sessions.delete("s1", "r2")
    assert_sound(store)
    freed = store.collector.collect()
    assert (freed.units_deleted, freed.regions_deleted) == (0, 2)
    clock.advance(60)
    assert store.collector.collect().units_deleted == 2
    assert store.usage.used_bytes == 0
    assert Saver(store).epoch > saver.epoch
    assert_sound(store)


def test_collector_drops_old_versions_and_only_what_they_alone_named(
    store: Store, saver: Saver, clock: ManualClock
) -> None:
    for number in range(6):
        saver.save(make_state(units=["shared", f"own{number}"], regions=["shared", f"own{number}"]))
        assert_sound(store)
    freed = store.collector.collect()
    assert (freed.versions_dropped, freed.units_deleted, freed.regions_deleted) == (3, 0, 3)
    clock.advance(60)
    assert store.collector.collect().units_deleted == 3
    assert [entry.version for entry in store.sessions.versions("s1", 10)] == [6, 5, 4]
    store.units.get([hash128(b"unit shared"), hash128(b"unit own3")])
    with pytest.raises(NotFound, match="UNITS_UNKNOWN"):
        store.units.get([hash128(b"unit own2")])
    assert_sound(store)


def test_collector_drops_from_the_middle_and_counts_runs_that_meet(store: Store, saver: Saver) -> None:
    upload(store, make_state(regions=["kept", "again"]))
    saver.save(make_state(units=["kept", "again"], regions=["kept", "again"]))
    saver.save(make_state(units=["kept"], regions=["kept", "middle"]))
    for _ in range(3):
        saver.save(make_state(units=["kept", "again"], regions=["kept", "again", "staged"]))
    assert store.collector.collect().versions_dropped == 1
    assert [entry.version for entry in store.sessions.versions("s1", 10)] == [5, 4, 3, 1]
    assert_sound(store)


def test_unit_put_again_while_its_last_version_is_dropped_stays_for_the_commit(
    store: Store, saver: Saver, clock: ManualClock
) -> None:
    for number in range(4):
        saver.save(make_state(units=[f"{number}"]))
    clock.advance(1000)
    state = make_state(units=["0"])
    assert store.units.put(state.unit_pairs()) == 0
    assert store.collector.collect().versions_dropped == 1
    assert saver.save(state) == 5
    assert_sound(store)


def test_put_units_live_through_their_grace_and_no_longer(store: Store, clock: ManualClock) -> None:
    pairs = make_state(units=["a"]).unit_pairs()
    assert store.units.put(pairs) == 1
    clock.advance(59)
    assert store.units.put(pairs) == 0
    clock.advance(59)
    assert store.collector.collect().units_deleted == 0
    clock.advance(2)
    assert store.collector.collect().units_deleted == 1
    assert_sound(store)


def test_full_store_refuses_before_it_writes_and_says_both_numbers(tmp_path: Path) -> None:
    store = open_store(tmp_path, StoreLimits(stored_bytes_max=4 << 20), kind="memory")
    transfer = store.regions.begin_upload()
    data = bytes([9]) * (2 << 20)
    transfer.add([(Region(hash128(data), len(data)), data)])
    more = [bytes([n]) * (2 << 20) for n in (1, 2)]
    with pytest.raises(CapacityExceeded, match="STORE_FULL.*raise stored_bytes_max") as caught:
        transfer.add([(Region(hash128(item), len(item)), item) for item in more])
    assert caught.value.fields["needed_bytes"] == 4 << 20
    assert caught.value.fields["available_bytes"] == 2 << 20
    transfer.abort()
    assert store.usage.used_bytes == 0
    with pytest.raises(CapacityExceeded, match="STORE_FULL"):
        store.units.put([(hash128(item), item) for item in (bytes([n]) * (1 << 19) for n in range(9))])
    store.close()


def test_lost_host_takes_staged_versions_and_names_their_executions(store: Store, saver: Saver) -> None:
    state = make_state(units=["a"], regions=["a"])
    upload(store, state)
    saver.save(state)
    for number in range(5):
        saver.save(make_state(units=["a"], regions=["a", f"dirty{number}"]))
    # Retention has dropped versions 2 and 3 by now; their executions are lost all the same.
    assert store.collector.collect().versions_dropped == 2
    fell = store.hosts.forget("h1", [], everything=True, request_id="r1")
    assert [(item.session_id, item.fallback.lost_version, item.fallback.version) for item in fell] == [("s1", 6, 1)]
    assert fell[0].fallback.lost_execution_ids == tuple(f"x-s1-1-{number}" for number in range(2, 7))
    assert store.hosts.forget("h1", [], everything=True, request_id="r1") == fell
    assert store.hosts.forget("h1", [], everything=True, request_id="r2") == []
    head = store.sessions.open("s1", create=False, raise_epoch=False, title="")
    assert (head.version, head.durable_version, head.epoch) == (1, 1, saver.epoch + 1)
    assert_sound(store)
    with pytest.raises(PreconditionFailed, match="STALE_EPOCH"):
        saver.save(make_state())
    Saver(store).save(make_state(units=["a"], regions=["a", "new"]))
    store.collector.collect()
    assert_sound(store)


def test_lost_host_spares_what_another_host_or_the_disk_holds(store: Store, saver: Saver) -> None:
    state = make_state(regions=["a", "b"])
    saver.save(state)
    other = Saver(store, "s2", "h2")
    other.save(make_state(regions=["a"]))
    upload(store, make_state(regions=["b"]))
    assert store.hosts.forget("h1", [], everything=True, request_id="r1") == []
    assert store.sessions.manifest("s1", 0, 0).version == 1
    assert [item.session_id for item in store.hosts.forget("h2", [], everything=True, request_id="r2")] == ["s1", "s2"]
    assert_sound(store)


def test_forgetting_single_regions_of_a_durable_version_loses_nothing(store: Store, saver: Saver) -> None:
    state = make_state(regions=["a", "b"])
    saver.save(state)
    upload(store, state)
    assert store.commits.mark_durable("s1", 1) == (True, [])
    (region_id, length), _ = state.region_chunks()[0]
    assert store.hosts.forget("h1", [region_id], everything=False, request_id="r1") == []
    row = store.regions.locate([Region(region_id, length)])[0]
    assert row is not None
    assert row.hosts == ()
    assert row.slot is not None
    assert_sound(store)


def test_versions_go_by_age_but_not_while_somebody_uses_them(tmp_path: Path, clock: ManualClock) -> None:
    limits = StoreLimits(versions_kept_max=9, versions_kept_s=1_000, version_use_s=100, orphan_grace_s=0)
    store = open_store(tmp_path, limits, kind="memory", clock=clock)
    saver = Saver(store)
    for name in "abc":
        saver.save(make_state(units=[name], regions=[name]))
        clock.advance(500)
    # Version 1 was replaced 1,000 s ago.
    store.sessions.manifest("s1", 1, 0)
    assert store.collector.collect().versions_dropped == 0
    clock.advance(100)
    freed = store.collector.collect()
    assert (freed.versions_dropped, freed.units_deleted, freed.regions_deleted) == (1, 1, 1)
    assert [entry.version for entry in store.sessions.versions("s1", 9)] == [3, 2]
    assert_sound(store)
    store.close()
    store = open_store(tmp_path / "new", limits, kind="memory", clock=clock)
    # Who read what before a start is not known: nothing goes for a while.
    saver = Saver(store)
    saver.save(make_state(units=["a"]))
    saver.save(make_state(units=["b"]))
    store.collector._retention = replace(store.collector._retention, keep_last=1)
    assert store.collector.collect().versions_dropped == 0
    clock.advance(100)
    assert store.collector.collect().versions_dropped == 1
    store.close()


def test_one_run_drops_a_bounded_number_of_versions(
    store: Store, saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        saver.save(make_state(units=[str(number)]))
    monkeypatch.setattr(collector, "DROPS_PER_RUN_MAX", 2)
    assert [store.collector.collect().versions_dropped for _ in range(4)] == [2, 2, 1, 0]
    assert_sound(store)


def test_mark_durable_names_what_is_missing(store: Store, saver: Saver) -> None:
    state = make_state(regions=["a", "b"])
    saver.save(state)
    upload(store, make_state(regions=["a"]))
    key = state.region_chunks()[1][0]
    assert store.commits.mark_durable("s1", 1) == (False, [key])


def test_session_limit_refuses_new_sessions_only(tmp_path: Path) -> None:
    store = open_store(tmp_path, StoreLimits(sessions_max=1), kind="memory")
    Saver(store, "s1")
    with pytest.raises(CapacityExceeded, match="SESSIONS_FULL"):
        Saver(store, "s2")
    Saver(store, "s1")
    store.sessions.delete("s1", "r1")
    Saver(store, "s2")
    store.close()


def test_long_title_keeps_its_end_and_never_keeps_a_person_from_the_session(store: Store) -> None:
    row = store.sessions.open("s1", create=True, raise_epoch=False, title="/home/" + "x" * 5_000 + "/a.ipynb")
    assert len(row.title) == TITLE_CHARS_MAX
    assert row.title.endswith("/a.ipynb")


@pytest.mark.parametrize("call", ["open", "delete"])
def test_repeat_of_a_change_whose_flush_failed_flushes_again(
    store: Store, saver: Saver, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    flushes: list[str] = []

    def change() -> None:
        if call == "open":
            store.sessions.open("s1", create=True, raise_epoch=False, title="new")
        else:
            store.sessions.delete("s1", "r1")

    def fail() -> None:
        flushes.append("failed")
        raise Unavailable("KV_IO", "the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(store.index.kv, "flush", fail)
        with pytest.raises(Unavailable, match="KV_IO"):
            change()
    monkeypatch.setattr(store.index.kv, "flush", lambda: flushes.append("done"))
    change()
    assert flushes == ["failed", "done"]


NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=4)
SESSIONS = st.sampled_from(["s1", "s2"])
HOSTS = st.sampled_from(["h1", "h2"])


class StoreMachine(RuleBasedStateMachine):
    """Saves, uploads, losses, deletions and collections in any order; kept state stays whole, and counts stay right."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = ManualClock(10_000)
        limits = StoreLimits(versions_kept_max=2, orphan_grace_s=0)
        self.store = open_store(self.folder, limits, kind="memory", clock=self.clock)
        self.savers: dict[str, Saver] = {}
        # (session, version) -> what was saved: the versions that must be whole while they are listed.
        self.saved: dict[tuple[str, int], State] = {}

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @rule(session_id=SESSIONS, host_id=HOSTS, units=NAMES, regions=NAMES)
    def save(self, session_id: str, host_id: str, units: list[str], regions: list[str]) -> None:
        if session_id not in self.savers:
            self.savers[session_id] = Saver(self.store, session_id)
        saver = self.savers[session_id]
        state = make_state(units, regions)
        try:
            version = saver.save(state, host_id)
        except PreconditionFailed as error:
            if error.reason != "STALE_EPOCH":
                raise
            # The host that held it was lost meanwhile: the owner opens the session again.
            del self.savers[session_id]
            return
        self.saved[session_id, version] = state

    @rule(regions=NAMES)
    def upload(self, regions: list[str]) -> None:
        upload(self.store, make_state(regions=regions))

    @rule(session_id=SESSIONS, units=NAMES, regions=NAMES)
    def save_durably(self, session_id: str, units: list[str], regions: list[str]) -> None:
        upload(self.store, make_state(regions=regions))
        self.save(session_id, "", units, regions)

    @precondition(lambda self: self.savers)
    @rule(session_id=SESSIONS)
    def mark_newest_durable(self, session_id: str) -> None:
        if session_id in self.savers and self.store.sessions.versions(session_id, 1):
            newest = self.store.sessions.versions(session_id, 1)[0].version
            durable, missing = self.store.commits.mark_durable(session_id, newest)
            assert durable == (not missing)

    @rule(host_id=HOSTS)
    def lose_host(self, host_id: str) -> None:
        self.clock.advance(1)
        durable = {session_id: row.durable_version for session_id, row in self.store.index.sessions()}
        fell = self.store.hosts.forget(host_id, [], everything=True, request_id=f"r{self.clock.now_s}")
        for item in fell:
            assert item.fallback.version >= durable[item.session_id]
            assert item.fallback.lost_execution_ids

    @rule(session_id=SESSIONS, wanted=st.integers(0, 4))
    def delete(self, session_id: str, wanted: int) -> None:
        if wanted == 0 and self.savers.pop(session_id, None) is not None:
            self.store.sessions.delete(session_id, "r")

    @rule(name=st.sampled_from("abcdefgh"))
    def damage(self, name: str) -> None:
        """The disk changes a region, and somebody reads it."""
        (key, _), *_ = make_state(regions=[name]).region_chunks()
        row = self.store.regions.locate([Region(*key)])[0]
        if row is not None and row.slot is not None and row.on_disk:
            path, offset = self.store.files.path_of(row.slot)
            with path.open("r+b") as file:
                file.seek(offset)
                file.write(b"!")
            with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH"):
                self.store.regions.get([Region(*key)])

    @rule()
    def collect(self) -> None:
        self.store.collector.collect()
        assert not self.store.index.kv.scan(b"x")

    @invariant()
    def index_is_sound_and_kept_versions_are_whole(self) -> None:
        problems = verify_index(self.store.index)
        assert [text for text in problems if "is damaged on the disk" not in text] == []
        damaged = {keys.hash_of(key) for key in self.store.index.damaged}
        for session_id, _ in self.store.index.sessions():
            for entry in self.store.sessions.versions(session_id, 10):
                refs = self.store.index.refs(session_id, entry.version, entry.row)
                state = self.saved[session_id, entry.version]
                assert refs == VersionRefs(
                    frozenset(unit_hash for unit_hash, _ in state.unit_pairs()),
                    dict(key for key, _ in state.region_chunks()),
                )
                self.store.units.get([unit_hash for unit_hash, _ in state.unit_pairs()])
                for key, data in state.region_chunks():
                    if entry.row.durable and key[0] not in damaged:
                        assert self.store.regions.get([Region(*key)]) == [data]


StoreMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=25)
test_store_agrees_with_its_model_whatever_happens = StoreMachine.TestCase


class LongStoreMachine(StoreMachine):
    """The same for longer."""


LongStoreMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=50)
for mark in (pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(3_600)):
    mark(LongStoreMachine.TestCase)
test_store_agrees_with_its_model_for_long = LongStoreMachine.TestCase
