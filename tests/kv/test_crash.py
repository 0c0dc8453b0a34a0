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

from looseleaf.errors import Corrupt, Unavailable
from looseleaf.kv import Batch, open_kv
from looseleaf.kv.counted import SYNCED_FILE
from looseleaf.kv.rocksdb_py import open_rocksdb_py

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
    synced_bytes: dict[str, int] = {}

    def record_sync(fd: int) -> None:
        os.fdatasync(fd)
        synced_bytes[Path(f"/proc/self/fd/{fd}").readlink().name] = os.fstat(fd).st_size

    kv = open_rocksdb_py(tmp_path / "kv", record_sync)
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


SYNCED_BATCHES, BATCHES = 12, 16


@pytest.fixture(scope="module", params=["rocksdb-py", "rocksdict"])
def crashed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The kind and the folder of a database as a crash leaves it, with SYNCED_BATCHES of BATCHES batches synced."""
    kind = str(request.param)
    if kind == "rocksdict":
        pytest.importorskip("rocksdict", reason="the optional package rocksdict is not installed")
    folder = tmp_path_factory.mktemp("crashed")
    kv = open_kv(folder / "kv", kind)
    for number in range(BATCHES):
        batch = Batch()
        batch.put(b"k%02d" % number, os.urandom(2_000))
        kv.write(batch, durable=number < SYNCED_BATCHES)
    shutil.copytree(folder / "kv", folder / "copy")
    kv.close()
    return kind, folder / "copy"


def damaged(source: Path, target: Path, at: float, *, cut: bool) -> Path:
    """A copy with one byte of its log changed, or with all from there on cut off."""
    copy = shutil.copytree(source, target)
    log = max(copy.glob("*.log"), key=lambda path: path.stat().st_size)
    data = log.read_bytes()
    # What lies behind is room for more.
    place = int(len(data.rstrip(b"\0")) * at)
    log.write_bytes(data[:place] if cut else data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    return copy


@pytest.mark.parametrize("cut", [False, True], ids=["flipped", "cut"])
@pytest.mark.parametrize("at", [0.01, 0.3, 0.7, 0.72, 0.78, 0.9, 0.99])
def test_damaged_log_loses_nothing_that_was_synced_or_says_so(
    crashed: tuple[str, Path], tmp_path: Path, at: float, cut: bool
) -> None:
    kind, source = crashed
    folder = damaged(source, tmp_path / "kv", at, cut=cut)
    expected = [b"k%02d" % number for number in range(BATCHES)]
    if at < SYNCED_BATCHES / BATCHES:
        for _ in range(2):
            # Not only once: the first look has already made the database forget.
            with pytest.raises(Corrupt, match="KV_LOG_DAMAGED") as caught:
                open_kv(folder, kind)
        assert 1 <= caught.value.fields["lost_batches"] <= SYNCED_BATCHES
        (folder / SYNCED_FILE).unlink()
    kv = open_kv(folder, kind)
    keys = [key for key, _ in kv.scan(b"")]
    assert keys == expected[: len(keys)]
    assert at < 0.75 or len(keys) >= SYNCED_BATCHES
    batch = Batch()
    batch.put(b"new", b"")
    kv.write(batch, durable=True)
    kv.close()
    kv = open_kv(folder, kind)
    assert len(kv.scan(b"")) == len(keys) + 1
    kv.close()


@pytest.mark.parametrize("data", [b"", b"\xff" * 5, b"\xff" * 12])
def test_damaged_count_of_what_was_synced_accuses_nobody(
    crashed: tuple[str, Path], tmp_path: Path, data: bytes
) -> None:
    kind, source = crashed
    folder = shutil.copytree(source, tmp_path / "kv")
    (folder / SYNCED_FILE).write_bytes(data)
    kv = open_kv(folder, kind)
    assert len(kv.scan(b"")) == BATCHES
    kv.close()


def test_table_with_a_flipped_byte_is_an_error_by_name(crashed: tuple[str, Path], tmp_path: Path) -> None:
    kind, source = crashed
    folder = shutil.copytree(source, tmp_path / "kv")
    # What was replayed when it was opened is in a table now.
    open_kv(folder, kind).close()
    (table,) = folder.glob("*.sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 4] ^= 1
    table.write_bytes(bytes(data))
    kv = open_kv(folder, kind)
    # Of a scan that breaks off one binding does not tell why.
    with pytest.raises((Corrupt, Unavailable), match="KV_CORRUPT|KV_IO.*damaged"):
        kv.scan(b"k")
    with pytest.raises(Corrupt, match="KV_CORRUPT"):
        kv.multi_get([b"k%02d" % number for number in range(BATCHES)])
    kv.close()


def test_database_whose_counts_cannot_be_kept_is_closed_again(tmp_path: Path) -> None:
    open_kv(tmp_path / "kv").close()
    (tmp_path / "kv" / SYNCED_FILE).unlink()
    (tmp_path / "kv" / SYNCED_FILE).mkdir()
    with pytest.raises(Unavailable, match="KV_IO"):
        open_kv(tmp_path / "kv")
    (tmp_path / "kv" / SYNCED_FILE).rmdir()
    # It would be locked if it were still open.
    open_kv(tmp_path / "kv").close()
