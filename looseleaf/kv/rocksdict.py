"""An optional engine: RocksDB by the `rocksdict` package (extra `rocksdict`), whose log is synced by RocksDB itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from looseleaf.errors import Unsupported
from looseleaf.kv.backend import Batch, take_prefix
from looseleaf.kv.counted import CountedEngine
from looseleaf.kv.guarded import GuardedKv

_WRITE_BUFFER_BYTES: Final = 32 << 20
_OPEN_FILES_MAX: Final = 512


def open_rocksdict(path: Path) -> GuardedKv:
    """Opens or creates the database in folder `path`.

    Raises Unsupported `KV_KIND_MISSING` without the package, Unavailable `KV_LOCKED` if another process has it open,
    Corrupt `KV_LOG_DAMAGED`.
    """
    return GuardedKv(str(path), lambda: CountedEngine(RocksdictEngine(path), path))


class RocksdictEngine:
    """See `Engine`."""

    def __init__(self, path: Path) -> None:
        try:
            import rocksdict
        except ImportError as error:
            text = "the rocksdict package is not installed: pip install 'looseleaf[rocksdict]'"
            raise Unsupported("KV_KIND_MISSING", text) from error
        self._batch_type: Any = rocksdict.WriteBatch
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
        options.set_max_open_files(_OPEN_FILES_MAX)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._db: Any = rocksdict.Rdict(str(path), options)

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._db.get(key)
        return value

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = self._db.get(list(keys))
        return values

    def write(self, batch: Batch) -> None:
        native = self._batch_type(raw_mode=True)
        for key, value in batch.writes():
            if value is None:
                native.delete(key)
            else:
                native.put(key, value)
        self._db.write(native)

    def scan(self, prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        iterator = self._db.iter()
        iterator.seek(start)
        return take_prefix(_entries(iterator), prefix, limit)

    def sync(self) -> None:
        self._db.flush_wal(True)

    def rewrite(self) -> None:
        self._db.flush()

    def close(self) -> None:
        self._db.close()


def _entries(iterator: Any) -> Iterator[tuple[bytes, bytes]]:
    """What is left of a scan. Unlike `items()`, which ends there as if all were read, it raises at a damaged block."""
    while iterator.valid():
        yield iterator.key(), iterator.value()
        iterator.next()
    iterator.status()
