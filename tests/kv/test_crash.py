"""Processes killed while they write: every acknowledged batch is there, and no part of another one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from looseleaf.kv import open_kv

KILLS = 3
BATCH_KEYS = 25
# Writes batches of BATCH_KEYS keys for ever and prints each one's number once it was acknowledged.
WRITER = """
import sys
from pathlib import Path
from looseleaf.kv import Batch, open_kv
kv = open_kv(Path(sys.argv[1]), sys.argv[2])
number = int(sys.argv[3])
while True:
    batch = Batch()
    for key in range(int(sys.argv[4])):
        batch.put(b"%08d-%04d" % (number, key), b"%d" % number * 64)
    kv.write(batch, durable=number % 3 == 0)
    sys.stdout.write("%d\\n" % number)
    sys.stdout.flush()
    number += 1
"""


@pytest.mark.parametrize("kind", ["rocksdb-py", "rocksdict"])
def test_killed_writer_loses_no_acknowledged_batch_and_tears_none(kind: str, tmp_path: Path) -> None:
    if kind == "rocksdict":
        pytest.importorskip("rocksdict", reason="the optional package rocksdict is not installed")
    rng = random.Random(20)
    acknowledged: set[int] = set()
    first = 0
    for _ in range(KILLS):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "kv"), kind, str(first), str(BATCH_KEYS)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(rng.randint(1, 60)):
                acknowledged.add(int(writer.stdout.readline()))
            writer.kill()
            acknowledged.update(int(line) for line in writer.stdout.read().split("\n")[:-1] if line)
        assert writer.returncode == -signal.SIGKILL
        first = max(acknowledged) + 2
    kv = open_kv(tmp_path / "kv", kind)
    counts: dict[int, int] = {}
    for key, value in kv.scan(b""):
        number = int(key[:8])
        assert value == b"%d" % number * 64
        counts[number] = counts.get(number, 0) + 1
    kv.close()
    assert acknowledged <= counts.keys()
    assert set(counts.values()) == {BATCH_KEYS}
    # At most the one batch that each kill interrupted may be there unacknowledged.
    assert len(counts) <= len(acknowledged) + KILLS


def test_durable_write_is_in_the_files_synced_so_far(tmp_path: Path) -> None:
    """Imitates a loss of power: what was not synced is cut off a copy of the folder."""
    from looseleaf.kv import Batch
    from looseleaf.kv.guarded import GuardedKv
    from looseleaf.kv.rocksdb_py import RocksdbPyEngine

    synced_bytes: dict[str, int] = {}

    def record_sync(fd: int) -> None:
        os.fdatasync(fd)
        synced_bytes[Path(f"/proc/self/fd/{fd}").readlink().name] = os.fstat(fd).st_size

    kv = GuardedKv("test", lambda: RocksdbPyEngine(tmp_path / "kv", record_sync))
    for number in range(40):
        batch = Batch()
        batch.put(b"k%02d" % number, os.urandom(50_000))
        kv.write(batch, durable=number in (10, 29))
    copy = shutil.copytree(tmp_path / "kv", tmp_path / "copy")
    for log in copy.glob("*.log"):
        os.truncate(log, synced_bytes.get(log.name, 0))
    kv.close()
    after = open_kv(copy)
    keys = [key for key, _ in after.scan(b"k")]
    after.close()
    assert keys == [b"k%02d" % number for number in range(30)]
