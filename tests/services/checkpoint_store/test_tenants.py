"""Tenants share nothing: neither bytes nor their sessions, and each has room of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from looseleaf.clock import ManualClock
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import CapacityExceeded, Forbidden, InvalidArgument, NotFound, PreconditionFailed, Unavailable
from looseleaf.kv import Batch
from looseleaf.services.checkpoint_store.copying import copy_durable
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.stats import count_all
from looseleaf.services.checkpoint_store.store import Store, StoreLimits, open_store
from looseleaf.services.checkpoint_store.tenants import Tenants
from looseleaf.services.checkpoint_store.verifier import verify_index

from .conftest import Saver, State, make_state

STATE = make_state(["a", "b"], ["a", "b"], 2_000)
REGIONS = [Region(*key) for key, _ in STATE.region_chunks()]
HASHES = [key for key, _ in STATE.unit_pairs()]
BYTES_OF_ONE = 2 * 4096 + sum(map(len, STATE.units.values()))


def put(store: Store, state: State, tenant: str) -> None:
    upload = store.regions.begin_upload(store.tenants.key(tenant))
    upload.add([(Region(*key), data) for key, data in state.region_chunks()])
    upload.finish()


def save(store: Store, session_id: str, tenant: str, state: State = STATE) -> Saver:
    """One durable version of a session of the tenant."""
    store.sessions.open(session_id, create=True, raise_epoch=False, title="", tenant=tenant)
    put(store, state, tenant)
    saver = Saver(store, session_id, host_id="")
    saver.save(state)
    return saver


def test_equal_contents_of_two_tenants_are_two_copies_and_go_one_by_one(store: Store, clock: ManualClock) -> None:
    save(store, "s-a", "team-a")
    assert store.usage.used_bytes == BYTES_OF_ONE
    save(store, "s-a2", "team-a")
    assert store.usage.used_bytes == BYTES_OF_ONE
    save(store, "s-b", "team-b")
    assert store.usage.used_bytes == 2 * BYTES_OF_ONE
    assert count_all(store).regions_on_disk == 4
    for name in ("s-a", "s-a2"):
        store.sessions.delete(name, f"r-{name}")
    store.collector.collect()
    clock.advance(1_000)
    store.collector.collect()
    assert store.usage.used_bytes == store.usage.of_tenant(store.tenants.key("team-b")) == BYTES_OF_ONE
    assert store.regions.get(REGIONS, store.tenants.key("team-b")) == list(STATE.regions.values())
    assert verify_index(store.index) == []


def test_key_of_a_tenant_whose_entry_failed_after_it_happened_goes_to_nobody_else(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.index.kv.write

    def write_and_fail(batch: Batch) -> None:
        write(batch)
        raise Unavailable("KV_IO", "planted")

    monkeypatch.setattr(store.index.kv, "write", write_and_fail)
    with pytest.raises(Unavailable):
        store.tenants.make("team-a")
    monkeypatch.undo()
    made = store.tenants.make("team-b")
    reopened = Tenants(store.index.kv, 9)
    known = dict(reopened.all())
    assert known["team-b"] == made
    assert len({keys.DEFAULT_TENANT, known["team-a"], made, reopened.make("team-c")}) == 4


def test_tenant_neither_reads_nor_commits_what_is_another_ones(store: Store) -> None:
    save(store, "s-a", "team-a")
    store.sessions.open("s-b", create=True, raise_epoch=False, title="", tenant="team-b")
    other = store.tenants.key("team-b")
    with pytest.raises(NotFound, match="UNITS_UNKNOWN"):
        store.units.get(HASHES, other)
    with pytest.raises(NotFound, match="REGIONS_UNKNOWN"):
        store.regions.get(REGIONS, other)
    assert store.regions.locate(REGIONS, other) == [None, None]
    saver = Saver(store, "s-b", host_id="")
    manifest = STATE.manifest("s-b", 0, saver.epoch, "x-1")
    with pytest.raises(PreconditionFailed, match="UNITS_MISSING"):
        store.commits.commit(
            "s-b", epoch=saver.epoch, parent=0, execution_id="x-1", manifest=manifest, host_id=""
        )
    store.units.put(STATE.unit_pairs(), other)
    with pytest.raises(PreconditionFailed, match="REGIONS_UNKNOWN"):
        store.commits.commit(
            "s-b", epoch=saver.epoch, parent=0, execution_id="x-1", manifest=manifest, host_id=""
        )
    assert verify_index(store.index) == []


def test_session_stays_with_its_tenant_and_unknown_tenants_have_nothing(store: Store) -> None:
    store.sessions.open("s-a", create=True, raise_epoch=False, title="", tenant="team-a")
    with pytest.raises(Forbidden, match="TENANT_MISMATCH"):
        store.sessions.open("s-a", create=True, raise_epoch=True, title="", tenant="team-b")
    assert store.sessions.open("s-a", create=False, raise_epoch=False, title="").epoch == 1
    with pytest.raises(NotFound, match="TENANT_UNKNOWN"):
        store.tenants.key("team-b")
    with pytest.raises(InvalidArgument, match="ID_MALFORMED"):
        store.sessions.open("s-c", create=True, raise_epoch=False, title="", tenant="a b")
    assert store.sessions.count == 1


def test_lost_host_takes_only_the_tenants_whose_regions_it_held(store: Store) -> None:
    for name, host in (("team-a", "h-a"), ("team-b", "h-b")):
        store.sessions.open(f"s-{name}", create=True, raise_epoch=False, title="", tenant=name)
        saver = Saver(store, f"s-{name}", host)
        saver.save(make_state(regions=["a", "b"], region_bytes=2_000))
    region_ids = [region.region_id for region in REGIONS]
    wrong = store.tenants.key("team-b")
    assert store.hosts.forget("h-a", region_ids, everything=False, request_id="r-1", tenant=wrong) == []
    fell = store.hosts.forget("h-a", [], everything=True, request_id="r-2")
    assert [item.session_id for item in fell] == ["s-team-a"]
    assert verify_index(store.index) == []


def test_tenants_and_what_they_hold_survive_a_restart_and_a_copy(tmp_path: Path, clock: ManualClock) -> None:
    store = open_store(tmp_path / "store", clock=clock)
    for number in range(3):
        save(store, f"s-{number}", f"team-{number}")
    store.sessions.delete("s-0", "r-1")
    store.close()
    store = open_store(tmp_path / "store", clock=clock)
    save(store, "s-3", "team-3")
    held = {row.tenant: row.used_bytes for row in count_all(store).tenants}
    assert held == {f"team-{number}": BYTES_OF_ONE for number in range(4)}
    copy = open_store(tmp_path / "copy", kind="memory", clock=clock)
    # Its numbers are its own.
    save(copy, "s-9", "team-9")
    copy.sessions.delete("s-9", "r-9")
    copy_durable(store, copy)
    for number in (1, 2, 3):
        assert copy.tenants.name(copy.index.session(f"s-{number}").tenant) == f"team-{number}"
        assert copy.regions.get(REGIONS, copy.tenants.key(f"team-{number}")) == list(STATE.regions.values())
    assert verify_index(copy.index) == [] == verify_index(store.index)
    store.close()
    copy.close()


def test_number_of_tenants_is_limited(tmp_path: Path) -> None:
    store = open_store(tmp_path, StoreLimits(tenants_max=1), kind="memory")
    save(store, "s-a", "team-a")
    with pytest.raises(CapacityExceeded, match="TENANTS_FULL"):
        save(store, "s-b", "team-b")
    save(store, "s-c", "")
    assert [row.tenant for row in count_all(store).tenants] == ["default", "team-a"]
    store.close()


def test_format_without_tenants_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    from looseleaf.kv import Batch, open_kv
    from looseleaf.services.checkpoint_store.core import keys

    kv = open_kv(tmp_path / "index")
    batch = Batch()
    batch.put(keys.FORMAT_KEY, (1).to_bytes(8, "big"))
    batch.put(b"u" + hash128(b"x"), b"a unit of before")
    kv.write(batch)
    kv.close()
    with pytest.raises(PreconditionFailed, match="STORE_FORMAT"):
        open_store(tmp_path)
    kv = open_kv(tmp_path / "index")
    assert len(kv.scan(b"")) == 2
    kv.close()
