"""Failing disks, by an engine that fails on demand and by a real one under a file size limit."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from looseleaf.errors import CapacityExceeded, Corrupt, Unavailable
from looseleaf.kv.backend import Batch
from looseleaf.kv.guarded import GuardedKv, as_kv_error


class Disk:
    """What engines of one test share: the data and how the next calls fail."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.opened = 0
        self.fail_open = self.fail_write = self.fail_sync = self.fail_rewrite = ""
        self.rewrites = 0


class FailingEngine:
    """Refuses all writes after one that failed, as RocksDB does."""

    def __init__(self, disk: Disk) -> None:
        if disk.fail_open:
            raise OSError(disk.fail_open)
        disk.opened += 1
        self.disk = disk
        self.broken = ""

    def get(self, key: bytes) -> bytes | None:
        return self.disk.data.get(key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.disk.data.get(key) for key in keys]

    def write(self, batch: Batch) -> None:
        self.broken = self.broken or self.disk.fail_write
        if self.broken:
            raise OSError(self.broken)
        self.disk.data.update({key: value for key, value in batch.writes() if value is not None})

    def scan(self, prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return sorted(self.disk.data.items())[:limit]

    def sync(self) -> None:
        if self.disk.fail_sync:
            raise OSError(self.disk.fail_sync)

    def rewrite(self) -> None:
        self.disk.rewrites += 1
        if self.disk.fail_rewrite:
            raise OSError(self.disk.fail_rewrite)

    def close(self) -> None:
        self.broken = "closed"


def put(key: bytes) -> Batch:
    batch = Batch()
    batch.put(key, b"v")
    return batch


def test_write_after_full_disk_works_once_there_is_room() -> None:
    disk = Disk()
    kv = GuardedKv("t", lambda: FailingEngine(disk))
    disk.fail_write = "No space left on device"
    with pytest.raises(CapacityExceeded, match="DISK_FULL"):
        kv.write(put(b"a"))
    assert kv.get(b"a") is None
    disk.fail_write = ""
    kv.write(put(b"b"), durable=True)
    assert kv.get(b"b") == b"v"
    assert disk.opened == 2
    kv.close()


def test_database_that_cannot_reopen_refuses_until_it_can() -> None:
    disk = Disk()
    kv = GuardedKv("t", lambda: FailingEngine(disk))
    disk.fail_write = disk.fail_open = "Input/output error"
    for _ in range(3):
        with pytest.raises(Unavailable, match="KV_IO"):
            kv.write(put(b"a"))
    with pytest.raises(Unavailable, match="KV_IO"):
        kv.get(b"a")
    disk.fail_write = disk.fail_open = ""
    assert kv.get(b"a") is None
    kv.write(put(b"a"))
    kv.close()


def test_failed_sync_rewrites_instead_of_asking_again() -> None:
    disk = Disk()
    kv = GuardedKv("t", lambda: FailingEngine(disk))
    disk.fail_sync = "Input/output error"
    kv.write(put(b"a"), durable=True)
    assert disk.rewrites == 1
    disk.fail_rewrite = "Input/output error"
    with pytest.raises(Unavailable, match="KV_IO"):
        kv.write(put(b"b"), durable=True)
    kv.close()


def test_sync_that_works_after_one_that_failed_is_not_believed() -> None:
    disk = Disk()
    kv = GuardedKv("t", lambda: FailingEngine(disk))
    kv.write(put(b"a"))
    disk.fail_sync = disk.fail_rewrite = "Input/output error"
    with pytest.raises(Unavailable, match="KV_IO"):
        kv.flush()
    disk.fail_sync = disk.fail_rewrite = ""
    kv.flush()
    assert disk.opened == 2
    kv.close()


def test_flush_without_new_writes_syncs_nothing() -> None:
    disk = Disk()
    kv = GuardedKv("t", lambda: FailingEngine(disk))
    kv.write(put(b"a"), durable=True)
    disk.fail_sync = disk.fail_rewrite = "Input/output error"
    kv.flush()
    kv.close()


def test_flushes_that_come_while_one_runs_share_the_next_one() -> None:
    disk = Disk()
    syncing, go_on = threading.Event(), threading.Event()
    syncs = []

    class SlowEngine(FailingEngine):
        def sync(self) -> None:
            syncs.append(len(self.disk.data))
            syncing.set()
            assert go_on.wait(10)

    kv = GuardedKv("t", lambda: SlowEngine(disk))
    first = threading.Thread(target=lambda: kv.write(put(b"first"), durable=True))
    first.start()
    assert syncing.wait(10)
    # All of these are written before any of them may ask for its synchronisation.
    written = threading.Barrier(8)

    def commit(key: bytes) -> None:
        kv.write(put(key))
        written.wait(10)
        kv.flush()

    others = [threading.Thread(target=commit, args=(b"%d" % number,)) for number in range(7)]
    for thread in others:
        thread.start()
    written.wait(10)
    go_on.set()
    for thread in (first, *others):
        thread.join(10)
    assert syncs == [1, 8]
    kv.close()


def test_library_errors_map_to_ours_by_their_text() -> None:
    assert isinstance(as_kv_error(OSError("Corruption: block checksum mismatch"), "t", "get"), Corrupt)
    assert as_kv_error(OSError("IO error: While lock file: /x/LOCK"), "t", "open").reason == "KV_LOCKED"
    assert as_kv_error(OSError("IO error: No such file: /blocks/corruption/x.sst"), "t", "open").reason == "KV_IO"


# A file size limit is the one way to make a real write fail that needs no privileges and no small disk.
LIMITED = """
import os, resource, signal, sys
from pathlib import Path
from looseleaf.errors import LooseLeafError
from looseleaf.kv import Batch, open_kv
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
kv = open_kv(Path(sys.argv[1]))
def put(key):
    batch = Batch()
    batch.put(key, os.urandom(100_000))
    kv.write(batch, durable=True)
put(b"before")
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
failed = 0
for number in range(8):
    try:
        put(b"k%d" % number)
    except LooseLeafError as error:
        failed += 1
        assert error.reason == "KV_IO", error
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
put(b"after")
assert failed and kv.get(b"before") and kv.get(b"after")
print("lived on")
# Exits without close(): the backend closes itself, where a bare binding would abort.
"""


def test_real_database_lives_on_after_a_failed_write_and_exits_cleanly(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "kv")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["lived on"]), done.stderr
