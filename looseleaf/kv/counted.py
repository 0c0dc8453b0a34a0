"""Tells a database that lost acknowledged writes from one that lost none: RocksDB itself cannot.

When it is opened after a crash it replays its log up to the first damaged record and drops the rest, whether that was
cut off by a loss of power, as it may be, or lies before what a sync had put on the disk, as it may not. So each batch
carries a row with its number, and a small file beside the database says how many batches were synced.

The file itself is not synced: a kill leaves it in the page cache, and after a loss of power it may say less than is
true, never more.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from looseleaf.errors import Corrupt
from looseleaf.kv.backend import Batch
from looseleaf.kv.engine import Engine
from looseleaf.logs import get_logger

log = get_logger()

# No service's rows begin with NUL; scans do not show it.
COUNT_KEY: Final = b"\0\0kv-batches"
COUNT_BYTES: Final = 8
SYNCED_FILE: Final = "SYNCED"


class CountedEngine:
    """An engine over another one, of the database in `folder`; see `Engine`. The row of the count is in no answer.

    Raises Corrupt `KV_LOG_DAMAGED`, with the other engine closed, if batches that were synced are gone.
    """

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        with ExitStack() as undo:
            undo.callback(engine.close)
            self._synced = SyncedFile(folder / SYNCED_FILE)
            undo.callback(self._synced.close)
            found = engine.get(COUNT_KEY)
            self._count = int.from_bytes(found, "big") if found is not None else 0
            synced = self._synced.read()
            if self._count < synced:
                lost = synced - self._count
                text = (
                    f"the database {folder} is damaged: of {synced} batches that were safe on the disk the last {lost} "
                    "are gone, what was before them is whole. Restore a copy; or, to go on without them, remove the "
                    f"file {SYNCED_FILE} in there"
                )
                raise Corrupt("KV_LOG_DAMAGED", text, database=str(folder), lost_batches=lost)
            undo.pop_all()

    def get(self, key: bytes) -> bytes | None:
        return self._engine.get(key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._engine.multi_get(keys)

    def write(self, batch: Batch) -> None:
        self._engine.write(batch.with_row(COUNT_KEY, (self._count + 1).to_bytes(COUNT_BYTES, "big")))
        self._count += 1

    def scan(self, prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        if not COUNT_KEY.startswith(prefix) or start > COUNT_KEY:
            return self._engine.scan(prefix, start, limit)
        entries = self._engine.scan(prefix, start, limit + 1)
        return [entry for entry in entries if entry[0] != COUNT_KEY][:limit]

    def sync(self) -> None:
        # Read before: a batch that is written meanwhile may not be covered.
        count = self._count
        self._engine.sync()
        self._synced.write(count)

    def rewrite(self) -> None:
        count = self._count
        self._engine.rewrite()
        self._synced.write(count)

    def close(self) -> None:
        self._synced.close()
        self._engine.close()


class SyncedFile:
    """A number with its CRC-32, in a file of its own."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def read(self) -> int:
        """The number; 0 if there is none, or if what is there was torn or damaged."""
        data = os.pread(self._fd, COUNT_BYTES + 4, 0)
        number, check = data[:COUNT_BYTES], data[COUNT_BYTES:]
        return int.from_bytes(number, "big") if check == _check(number) else 0

    def write(self, number: int) -> None:
        """Never raises: a number that is too small only hides what nobody may have lost."""
        data = number.to_bytes(COUNT_BYTES, "big")
        try:
            os.pwrite(self._fd, data + _check(data), 0)
        except OSError as error:
            log.warning("kv_synced_file_not_written", cause=str(error))

    def close(self) -> None:
        """Once."""
        os.close(self._fd)


def _check(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "big")
