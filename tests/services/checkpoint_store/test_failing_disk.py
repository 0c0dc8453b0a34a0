"""A disk that fails, and bytes that change on it: an error of ours, nothing half stored, and a store that goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from looseleaf.clock import ManualClock
from looseleaf.errors import CapacityExceeded, Corrupt, LooseLeafError, Unavailable
from looseleaf.kv.memory import MemoryKv
from looseleaf.services.checkpoint_store.disk import Disk
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.store import Store, StoreLimits
from looseleaf.services.checkpoint_store.usage import blocks_of
from looseleaf.services.checkpoint_store.verifier import verify_index

from .conftest import Saver, State, make_state

STATE = make_state(["a"], ["a", "b", "c", "d"], 3_000)
ERRORS = [
    (errno.ENOSPC, CapacityExceeded, "DISK_FULL"),
    (errno.EDQUOT, CapacityExceeded, "DISK_FULL"),
    (errno.EIO, Unavailable, "STORE_IO"),
]


class FailingDisk:
    """The real disk; call number `fails_at` of `call` raises the error."""

    def __init__(self, call: str = "", fails_at: int = 0, number: int = 0) -> None:
        self.call, self.left, self.number = call, fails_at, number

    def _pass(self, call: str) -> None:
        if call == self.call:
            self.left -= 1
            if self.left == 0:
                raise OSError(self.number, os.strerror(self.number))

    def disk(self) -> Disk:
        def pwrite(fd: int, data: memoryview, offset: int) -> int:
            self._pass("pwrite")
            # Never all at once.
            return os.pwrite(fd, data[: len(data) // 2 + 1], offset)

        def pread(fd: int, length: int, offset: int) -> bytes:
            self._pass("pread")
            return os.pread(fd, length // 2 + 1, offset)

        def fdatasync(fd: int) -> None:
            self._pass("fdatasync")
            os.fdatasync(fd)

        return Disk(pwrite, pread, fdatasync)


@pytest.fixture
def failing() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def on_failing(tmp_path: Path, failing: FailingDisk) -> Iterator[Store]:
    store = Store(MemoryKv(), tmp_path, StoreLimits(), ManualClock(1_000_000), failing.disk())
    yield store
    store.close()


def upload(store: Store, state: State) -> None:
    transfer = store.regions.begin_upload()
    try:
        for key, data in state.region_chunks():
            transfer.add([(Region(*key), data)])
        transfer.finish()
    except BaseException:
        transfer.abort()
        raise


def read(store: Store, state: State) -> list[bytes]:
    return store.regions.get([Region(*key) for key, _ in state.region_chunks()])


@pytest.mark.parametrize(("number", "error", "reason"), ERRORS)
@pytest.mark.parametrize(("call", "fails_at"), [("pwrite", 1), ("pwrite", 2), ("pwrite", 5), ("fdatasync", 1)])
def test_failed_upload_stores_nothing_and_the_next_one_works(
    on_failing: Store, failing: FailingDisk, call: str, fails_at: int, number: int, error: Any, reason: str
) -> None:
    saver = Saver(on_failing, host_id="")
    failing.call, failing.left, failing.number = call, fails_at, number
    with pytest.raises(error, match=reason):
        upload(on_failing, STATE)
    assert on_failing.usage.used_bytes == 0
    assert all(row is None for row in on_failing.regions.locate([Region(*key) for key, _ in STATE.region_chunks()]))
    with pytest.raises(LooseLeafError, match="REGIONS_UNKNOWN"):
        saver.save(STATE)
    upload(on_failing, STATE)
    assert saver.save(STATE) == 1
    assert read(on_failing, STATE) == list(STATE.regions.values())
    assert verify_index(on_failing.index) == []
    assert on_failing.usage.used_bytes == used_by(STATE)


def used_by(state: State) -> int:
    return sum(blocks_of(len(data)) for data in state.regions.values()) + sum(map(len, state.units.values()))


def test_failed_read_is_an_error_and_the_next_one_works(on_failing: Store, failing: FailingDisk) -> None:
    upload(on_failing, STATE)
    failing.call, failing.left, failing.number = "pread", 3, errno.EIO
    with pytest.raises(Unavailable, match="STORE_IO"):
        read(on_failing, STATE)
    assert read(on_failing, STATE) == list(STATE.regions.values())


@pytest.mark.parametrize("place", ["first", "middle", "last", "cut"])
def test_damaged_region_is_named_and_others_are_read(on_failing: Store, place: str) -> None:
    saver = Saver(on_failing, host_id="")
    upload(on_failing, STATE)
    saver.save(STATE)
    victim, *others = [Region(*key) for key, _ in STATE.region_chunks()]
    row = on_failing.regions.locate([victim])[0]
    assert row is not None and row.slot is not None
    path, offset = on_failing.files.path_of(row.slot)
    with path.open("r+b") as file:
        if place == "cut":
            file.truncate(offset + 10)
        else:
            at = offset + {"first": 0, "middle": victim.length_bytes // 2, "last": victim.length_bytes - 1}[place]
            file.seek(at)
            old = file.read(1)
            file.seek(at)
            file.write(bytes([old[0] ^ 1]))
    with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH") as caught:
        on_failing.regions.get([victim])
    assert caught.value.fields["region"] == victim.region_id.hex()
    if place != "cut":
        assert on_failing.regions.get(others) == list(STATE.regions.values())[1:]
