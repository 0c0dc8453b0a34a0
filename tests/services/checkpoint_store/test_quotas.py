"""Quotas: refused before a byte is kept, with both numbers and with what to delete."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from looseleaf.checkpoint.manifest import (
    ALGORITHM_XXH3,
    Manifest,
    PayloadEntry,
    RegionRef,
    UnitEntry,
    UnitHeader,
    encode_manifest,
)
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import CapacityExceeded, NotFound, Unavailable
from looseleaf.ids import Epoch, ExecutionId, PayloadId, SessionId, UnitId, Version
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.store import Store, StoreLimits, open_store
from looseleaf.services.checkpoint_store.turns import Turns
from looseleaf.services.checkpoint_store.usage import Usage, UsageLimits
from looseleaf.services.checkpoint_store.verifier import verify_index
from looseleaf.units import MIB, REGION_BYTES

from .conftest import Saver, make_state


def region(number: int) -> tuple[Region, bytes]:
    data = bytes([number]) * REGION_BYTES
    return Region(hash128(data), len(data)), data


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path, StoreLimits(stored_bytes_max=8 * MIB, tenant_bytes_max=4 * MIB), kind="memory")
    yield store
    store.close()


def test_upload_that_does_not_fit_is_refused_before_its_first_region(small: Store) -> None:
    with pytest.raises(CapacityExceeded, match="TENANT_FULL.*raise tenant_bytes_max") as caught:
        small.regions.begin_upload(size_bytes=3 * REGION_BYTES)
    assert (caught.value.fields["needed_bytes"], caught.value.fields["available_bytes"]) == (6 * MIB, 4 * MIB)
    assert small.usage.used_bytes == 0
    assert list(small.files.path_of(0)[0].parent.iterdir()) == []


def test_room_that_an_upload_was_promised_is_nobody_elses(small: Store) -> None:
    first = small.regions.begin_upload(size_bytes=2 * REGION_BYTES)
    first.add([region(1)])
    with pytest.raises(CapacityExceeded, match="TENANT_FULL"):
        small.regions.begin_upload(size_bytes=1)
    first.add([region(2)])
    assert first.finish() == 2
    assert small.usage.used_bytes == 4 * MIB
    second = small.regions.begin_upload()
    # What is there needs no room.
    second.add([region(1)])
    second.finish()
    assert small.usage.used_bytes == 4 * MIB


def test_room_of_the_disk_is_not_promised_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = Usage(tmp_path, UsageLimits(100 * MIB), {})
    room = SimpleNamespace(f_bavail=10, f_frsize=MIB)
    monkeypatch.setattr("looseleaf.services.checkpoint_store.usage.os.statvfs", lambda folder: room)
    usage.reserve(b"a", 6 * MIB, later=True)
    with pytest.raises(CapacityExceeded, match="STORE_FULL.*free space on the disk") as caught:
        usage.reserve(b"b", 5 * MIB, later=True)
    assert caught.value.fields["available_bytes"] == 4 * MIB
    # Now the disk itself tells of these.
    usage.arrived(6 * MIB)
    room.f_bavail = 4
    usage.reserve(b"b", 4 * MIB)
    assert usage.used_bytes == 10 * MIB


def test_room_of_the_disk_is_asked_for_while_nothing_can_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = Usage(tmp_path, UsageLimits(100 * MIB), {})

    def statvfs(folder: Path) -> SimpleNamespace:
        assert usage._lock.locked()
        return SimpleNamespace(f_bavail=10, f_frsize=MIB)

    monkeypatch.setattr("looseleaf.services.checkpoint_store.usage.os.statvfs", statvfs)
    usage.reserve(b"a", MIB)
    assert usage.used_bytes == MIB


@pytest.mark.parametrize("promised_bytes", [0, REGION_BYTES])
@pytest.mark.parametrize("fails", [False, True])
def test_room_of_a_region_is_promised_until_it_is_written(
    small: Store, monkeypatch: pytest.MonkeyPatch, promised_bytes: int, fails: bool
) -> None:
    room = SimpleNamespace(f_bavail=3, f_frsize=MIB)
    monkeypatch.setattr("looseleaf.services.checkpoint_store.usage.os.statvfs", lambda folder: room)
    write = small.files.write
    refused = []

    def write_late(slot: int, data: bytes) -> None:
        with pytest.raises(CapacityExceeded, match="STORE_FULL") as caught:
            small.usage.reserve(b"b", 2 * MIB)
        refused.append(caught.value.fields["available_bytes"])
        if fails:
            raise Unavailable("STORE_IO", "planted")
        write(slot, data)

    monkeypatch.setattr(small.files, "write", write_late)
    upload = small.regions.begin_upload(size_bytes=promised_bytes)
    with pytest.raises(Unavailable) if fails else nullcontext():
        upload.add([region(1)])
    upload.abort()
    assert refused == [MIB]
    # Nothing is promised any more.
    small.usage.reserve(b"b", 3 * MIB)
    assert small.usage.used_bytes == 3 * MIB


def test_room_is_not_made_for_an_upload_that_has_ended(small: Store) -> None:
    upload = small.regions.begin_upload()
    upload.abort()
    upload.reserve(MIB)
    assert small.usage.used_bytes == 0


@pytest.mark.parametrize("ends_by", ["finish", "abort", "both"])
def test_room_that_was_promised_and_not_used_is_given_back_once(small: Store, ends_by: str) -> None:
    upload = small.regions.begin_upload(size_bytes=2 * REGION_BYTES)
    upload.add([region(1)])
    if ends_by != "abort":
        upload.finish()
    if ends_by != "finish":
        upload.abort()
    assert small.usage.used_bytes == (0 if ends_by == "abort" else 2 * MIB)


def test_tenants_share_the_stores_room_and_each_has_its_own(small: Store) -> None:
    for name in ("a", "b"):
        small.sessions.open(f"s-{name}", create=True, raise_epoch=False, title=f"{name}.ipynb", tenant=name)
    for name, reason, cure in (
        ("a", "TENANT_FULL", "tenant_bytes_max"), ("b", "STORE_FULL", "stored_bytes_max"),
    ):  # fmt: skip
        upload = small.regions.begin_upload(small.tenants.key(name))
        upload.add([region(1), region(2)])
        upload.finish()
        with pytest.raises(CapacityExceeded, match=f"{reason}.*raise {cure}"):
            small.units.put([(hash128(b"x"), b"x")], small.tenants.key(name))


def test_full_store_names_the_tenants_largest_sessions(small: Store) -> None:
    for number in range(5):
        small.sessions.open(f"s-{number}", create=True, raise_epoch=False, title=f"{number}.ipynb")
        state = make_state(regions=["x"], region_bytes=1_000 * (number + 1))
        Saver(small, f"s-{number}").save(state)
    small.sessions.open("s-other", create=True, raise_epoch=False, title="theirs.ipynb", tenant="b")
    with pytest.raises(CapacityExceeded, match=r"the largest: s-4 \(4.ipynb, ") as caught:
        small.regions.begin_upload(size_bytes=5 * MIB)
    assert [text.split()[0] for text in caught.value.fields["largest_sessions"]] == ["s-4", "s-3", "s-2"]
    assert "theirs" not in caught.value.message


def manifest_of(sizes: dict[str, int]) -> bytes:
    """Variables with a payload of one region each."""
    units, payloads = {}, {}
    for number, size_bytes in enumerate(sizes.values()):
        unit_id, payload_id = UnitId(2 * number + 1), PayloadId(2 * number + 2)
        units[unit_id] = UnitEntry(hash128(b"u"), 1, (), UnitHeader(payloads=(payload_id,)))
        ref = RegionRef(hash128(bytes([number])), size_bytes)
        payloads[payload_id] = PayloadEntry("memory", "cpu", size_bytes, ALGORITHM_XXH3, REGION_BYTES, (ref,))
    return encode_manifest(Manifest(
        SessionId("s1"), Version(1), Version(0), Epoch(1), ExecutionId("x1"), next_id=99,
        roots={name: UnitId(2 * number + 1) for number, name in enumerate(sizes)}, units=units, payloads=payloads,
    ))  # fmt: skip


def test_session_beyond_its_size_is_refused_with_its_largest_variables(tmp_path: Path) -> None:
    store = open_store(tmp_path, StoreLimits(session_bytes_max=3 * MIB), kind="memory")
    Saver(store)
    store.units.put([(hash128(b"u"), b"u")])
    request = {"epoch": 1, "parent": 0, "execution_id": "x1", "host_id": "h1"}
    large = manifest_of({"small": 10, "weights": 2 * MIB, "batch": MIB})
    with pytest.raises(CapacityExceeded, match=r"SESSION_FULL.*last version is valid.*weights \(2.0 MiB\)") as caught:
        store.commits.commit("s1", manifest=large, **request)  # type: ignore[arg-type]
    fields = caught.value.fields
    assert (fields["needed_bytes"], fields["available_bytes"]) == (3 * MIB + 13, 3 * MIB)
    assert fields["largest_variables"] == ["weights", "batch", "small"]
    assert store.sessions.manifest("s1", 0, 0).version == 0
    assert verify_index(store.index) == []
    fits = manifest_of({"weights": 2 * MIB})
    assert store.commits.commit("s1", manifest=fits, **request).version == 1  # type: ignore[arg-type]
    store.close()


async def test_turns_run_some_let_some_wait_and_refuse_the_rest() -> None:
    turns = Turns("uploads", 1, 2)
    entered: list[int] = []
    go_on = asyncio.Event()

    async def work(number: int) -> None:
        async with turns:
            entered.append(number)
            await go_on.wait()

    tasks = [asyncio.create_task(work(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert (entered, turns.waiting) == ([0], 2)
    with pytest.raises(CapacityExceeded, match="STORE_BUSY") as caught:
        await work(9)
    assert caught.value.fields["waiting_max"] == 2
    # Who gives up while waiting takes no turn from the others.
    tasks[1].cancel()
    go_on.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (entered, turns.waiting) == ([0, 2], 0)


def test_save_is_admitted_only_within_the_room_of_its_tenant(small: Store) -> None:
    Saver(small)
    upload = small.regions.begin_upload()
    upload.add([region(1)])
    upload.finish()
    small.admission.check("s1", 10 * MIB, [region(2)[0]])
    # What is on the disk already needs no room.
    small.admission.check("s1", 10 * MIB, [region(1)[0], region(2)[0]])
    with pytest.raises(CapacityExceeded, match="TENANT_FULL") as caught:
        small.admission.check("s1", 10 * MIB, [region(number)[0] for number in (1, 2, 3)])
    assert (caught.value.fields["needed_bytes"], caught.value.fields["available_bytes"]) == (4 * MIB, 2 * MIB)
    small.admission.check("s1", 0, [])
    assert small.usage.used_bytes == REGION_BYTES, "an ask takes no room"


def test_parts_of_a_save_are_admitted_only_together(small: Store) -> None:
    Saver(small)
    upload = small.regions.begin_upload()
    upload.add([region(1)])
    upload.finish()
    first = small.admission.check("s1", 0, [region(2)[0]])
    assert first == REGION_BYTES
    assert small.admission.check("s1", 0, [region(1)[0]], first) == 0, "what is on the disk already"
    with pytest.raises(CapacityExceeded, match="TENANT_FULL") as caught:
        small.admission.check("s1", 0, [region(3)[0]], first)
    assert (caught.value.fields["needed_bytes"], caught.value.fields["available_bytes"]) == (4 * MIB, 2 * MIB)


def test_large_part_of_a_save_takes_only_what_is_not_on_the_disk(
    small: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looseleaf.services.checkpoint_store.admission.LOOKED_UP_MIN", 2)
    Saver(small)
    upload = small.regions.begin_upload()
    upload.add([region(1)])
    upload.finish()
    assert small.admission.check("s1", 0, [region(1)[0], region(2)[0]]) == REGION_BYTES


def test_save_of_too_large_a_session_is_not_admitted(tmp_path: Path) -> None:
    store = open_store(tmp_path, StoreLimits(session_bytes_max=3 * MIB), kind="memory")
    Saver(store)
    store.admission.check("s1", 3 * MIB, [])
    with pytest.raises(CapacityExceeded, match="SESSION_FULL") as caught:
        store.admission.check("s1", 3 * MIB + 1, [])
    assert (caught.value.fields["needed_bytes"], caught.value.fields["available_bytes"]) == (3 * MIB + 1, 3 * MIB)
    with pytest.raises(NotFound, match="SESSION_UNKNOWN"):
        store.admission.check("s2", 0, [])
    store.close()
