"""A `KvBackend` in memory, for the simulator and for tests of what sits above; nothing survives the process."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence

from looseleaf.errors import Unavailable
from looseleaf.kv.backend import SCAN_LIMIT_MAX, Batch, check_scan_limit


class MemoryKv:
    """See `KvBackend`; `durable` and `flush` promise nothing here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        with self._lock:
            self._check_open()
            return self._values.get(key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            self._check_open()
            return [self._values.get(key) for key in keys]

    def write(self, batch: Batch, *, durable: bool = False) -> None:
        with self._lock:
            self._check_open()
            for key, value in batch.writes():
                if value is not None:
                    if key not in self._values:
                        bisect.insort(self._keys, key)
                    self._values[key] = bytes(value)
                elif self._values.pop(key, None) is not None:
                    del self._keys[bisect.bisect_left(self._keys, key)]

    def scan(self, prefix: bytes, start: bytes = b"", limit: int = SCAN_LIMIT_MAX) -> list[tuple[bytes, bytes]]:
        check_scan_limit(limit)
        with self._lock:
            self._check_open()
            found: list[tuple[bytes, bytes]] = []
            for index in range(bisect.bisect_left(self._keys, max(prefix, start)), len(self._keys)):
                key = self._keys[index]
                if len(found) == limit or not key.startswith(prefix):
                    break
                found.append((key, self._values[key]))
            return found

    def flush(self) -> None:
        with self._lock:
            self._check_open()

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("KV_CLOSED", "the database in memory is closed", database="memory")
