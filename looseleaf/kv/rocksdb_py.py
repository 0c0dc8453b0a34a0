"""The default engine: RocksDB by the `rocksdb-py` package.

The binding has no synced write and its own flush makes one table file per call, so power-loss safety comes from
syncing RocksDB's log files ourselves: a finished write is in the page cache of the newest log, and a sync of a file's
pages does not care who wrote them. It has no column families (services prefix their keys), and it must be closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from looseleaf.kv.backend import Batch, take_prefix
from looseleaf.kv.counted import CountedEngine
from looseleaf.kv.guarded import GuardedKv

_WRITE_BUFFER_BYTES: Final = 32 << 20
_OPEN_FILES_MAX: Final = 512


def open_rocksdb_py(path: Path, fdatasync: Callable[[int], None] = os.fdatasync) -> GuardedKv:
    """Opens or creates the database in folder `path`, whose logs are synced by `fdatasync`.

    Raises Unavailable `KV_LOCKED` if another process has it, Corrupt `KV_LOG_DAMAGED`.
    """
    return GuardedKv(str(path), lambda: CountedEngine(RocksdbPyEngine(path, fdatasync), path))


class RocksdbPyEngine:
    """See `Engine`."""

    def __init__(self, path: Path, fdatasync: Callable[[int], None]) -> None:
        import rocksdbpy

        self._batch_type: Any = rocksdbpy.WriteBatch
        options: Any = rocksdbpy.Option()
        options.create_if_missing(True)
        options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
        options.set_max_open_files(_OPEN_FILES_MAX)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._db: Any = rocksdbpy.open(str(path), options)
        self._logs = _LogFiles(path, fdatasync)

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._db.get(key)
        return value

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = self._db.multi_get(list(keys), False)
        return values

    def write(self, batch: Batch) -> None:
        native = self._batch_type()
        for key, value in batch.writes():
            if value is None:
                native.delete(key)
            else:
                native.add(key, value)
        self._db.write(native)

    def scan(self, prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        import rocksdbpy

        iterator = self._db.iterator(mode="from", key=start, direction=1)
        try:
            # Not list(iterator): that would ask for its length first, which exhausts it.
            return take_prefix(iterator, prefix, limit)
        except rocksdbpy.RocksDBException as error:
            # All that the binding tells of a scan that RocksDB broke off.
            raise OSError("the scan met a block that is damaged or cannot be read") from error
        finally:
            iterator.close()

    def sync(self) -> None:
        self._logs.sync()

    def rewrite(self) -> None:
        self._db.flush()

    def close(self) -> None:
        self._logs.close()
        self._db.close()


class _LogFiles:
    """RocksDB's live log files; `sync` puts all that was written to them on the disk."""

    def __init__(self, path: Path, fdatasync: Callable[[int], None]) -> None:
        self._path = path
        self._fdatasync = fdatasync
        self._fds: dict[str, int] = {}

    def sync(self) -> None:
        names = {entry.name for entry in self._path.iterdir() if entry.suffix == ".log"}
        for gone in self._fds.keys() - names:
            os.close(self._fds.pop(gone))
        fresh = names - self._fds.keys()
        for name in fresh:
            try:
                self._fds[name] = os.open(self._path / name, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                # RocksDB deletes a log once its writes are in synced tables: nothing is left to do for it.
                continue
        for fd in self._fds.values():
            self._fdatasync(fd)
        if fresh:
            self._sync_folder()

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _sync_folder(self) -> None:
        # Without it a log file's name, and so all of it, may be gone after a loss of power.
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
