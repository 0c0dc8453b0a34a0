from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from looseleaf.errors import CapacityExceeded, Unavailable
from looseleaf.services.checkpoint_store import region_files
from looseleaf.services.checkpoint_store.disk import Disk
from looseleaf.services.checkpoint_store.region_files import SLOT_BYTES, SLOTS_PER_FILE, RegionFiles


def test_written_slot_reads_back_and_short_read_is_short(tmp_path: Path) -> None:
    files = RegionFiles(tmp_path, [])
    slot = files.allocate()
    files.write(slot, b"abc")
    files.sync([slot])
    assert files.read(slot, 3) == b"abc"
    assert len(files.read(slot, SLOT_BYTES)) == 3
    assert oct(files.path_of(slot)[0].stat().st_mode & 0o777) == "0o600"
    files.close()


def test_free_list_is_what_the_index_does_not_name(tmp_path: Path) -> None:
    files = RegionFiles(tmp_path, [0, 2, 5])
    assert [files.allocate() for _ in range(5)] == [1, 3, 4, 6, 7]
    files.free([3])
    assert files.allocate() == 3
    files.close()


def test_slots_spread_over_files_and_sync_touches_each_once(tmp_path: Path) -> None:
    synced: list[int] = []
    files = RegionFiles(tmp_path, [SLOTS_PER_FILE], Disk(fdatasync=synced.append))
    files.write(0, b"a")
    files.write(1, b"b")
    files.write(SLOTS_PER_FILE, b"c")
    files.sync([0, 1, SLOTS_PER_FILE])
    assert len(synced) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["regions-0000.bin", "regions-0001.bin"]
    files.close()


def test_freed_slot_is_reused_only_after_its_readers(tmp_path: Path) -> None:
    files = RegionFiles(tmp_path, [])
    slot = files.allocate()
    files.write(slot, b"old")
    with files.pinned([slot]):
        with files.pinned([slot]):
            files.free([slot])
            assert files.allocate() != slot
        assert files.allocate() != slot
        assert files.read(slot, 3) == b"old"
    assert files.allocate() == slot
    files.close()


def test_freed_slot_gives_its_room_back(tmp_path: Path) -> None:
    files = RegionFiles(tmp_path, [])
    slot = files.allocate()
    files.write(slot, os.urandom(SLOT_BYTES))
    files.sync([slot])
    path, _ = files.path_of(slot)
    with path.open("r+b") as file:
        if not region_files.punch_hole(file.fileno(), SLOT_BYTES * 2, 4096):
            pytest.skip("the file system of the temporary folder cannot punch holes")
    files.free([slot])
    assert path.stat().st_blocks * 512 < SLOT_BYTES // 2
    files.close()


def test_leftovers_of_a_crash_give_their_room_back_at_the_start(tmp_path: Path) -> None:
    files = RegionFiles(tmp_path, [])
    for _ in range(3):
        files.write(files.allocate(), b"x" * SLOT_BYTES)
    files.close()
    again = RegionFiles(tmp_path, [1])
    path, offset = again.path_of(1)
    assert path.stat().st_size == 2 * SLOT_BYTES
    assert again.read(1, 4) == b"xxxx"
    assert again.read(0, 4) == b"\0\0\0\0"
    assert offset == SLOT_BYTES
    assert again.allocate() == 0
    again.close()


@pytest.mark.parametrize(
    ("number", "error", "reason"),
    [(errno.ENOSPC, CapacityExceeded, "DISK_FULL"), (errno.EDQUOT, CapacityExceeded, "DISK_FULL"),
     (errno.EIO, Unavailable, "STORE_IO")],
)  # fmt: skip
def test_disk_errors_are_ours_and_the_files_live_on(
    tmp_path: Path, number: int, error: type[Exception], reason: str
) -> None:
    fail = True

    def fdatasync(fd: int) -> None:
        if fail:
            raise OSError(number, os.strerror(number))

    files = RegionFiles(tmp_path, [], Disk(fdatasync=fdatasync))
    slot, other = files.allocate(), files.allocate()
    files.write(slot, b"x")
    files.write(other, b"y")
    with pytest.raises(error, match=reason):
        files.sync([slot])
    fail = False
    # The kernel reports lost pages to one fdatasync of a file only; they may be those of either slot.
    for unsafe in (slot, other):
        with pytest.raises(Unavailable, match="STORE_IO"):
            files.sync([unsafe])
    files.write(slot, b"x")
    files.sync([slot])
    files.free([other])
    assert files.allocate() == other
    files.write(other, b"z")
    files.sync([slot, other])
    files.close()


def test_slot_whose_file_cannot_be_opened_is_free_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RegionFiles(tmp_path, [])
    slot = files.allocate()
    with monkeypatch.context() as patch:
        patch.setattr(region_files, "sync_folder", refuse)
        with pytest.raises(Unavailable, match="STORE_IO"):
            files.write(slot, b"x")
        files.free([slot])
    assert files.allocate() == slot
    files.write(slot, b"x")
    files.close()


def refuse(_folder: Path) -> None:
    raise OSError(errno.EIO, "refused")


def test_write_that_fails_is_an_error_of_ours(tmp_path: Path) -> None:
    files = RegionFiles(tmp_path, [])
    read_end, write_end = os.pipe()
    files._fds[0] = write_end  # a pipe cannot be written at an offset: ESPIPE
    with pytest.raises(Unavailable, match="STORE_IO"):
        files.write(0, b"x")
    os.close(read_end)
    files.close()


def test_close_waits_for_running_calls_and_refuses_new_ones(tmp_path: Path) -> None:
    entered, release = threading.Event(), threading.Event()

    def fdatasync(fd: int) -> None:
        entered.set()
        release.wait(10)
        os.fstat(fd)

    files = RegionFiles(tmp_path, [], Disk(fdatasync=fdatasync))
    files.write(files.allocate(), b"x")
    syncing = threading.Thread(target=files.sync, args=([0],))
    syncing.start()
    assert entered.wait(10)
    closing = threading.Thread(target=files.close)
    closing.start()
    release.set()
    closing.join(10)
    syncing.join(10)
    with pytest.raises(Unavailable, match="STORE_CLOSED"):
        files.read(0, 1)
    files.close()
