"""Makes a `KvBackend` of an engine: one lock, our errors, and a database that is opened again after a failed write.

RocksDB refuses every write after one that failed (a full disk, an I/O error), even when the disk works again, until it
is opened anew. Closing and opening replays its log, so nothing acknowledged is lost.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from looseleaf.errors import CapacityExceeded, Corrupt, LooseLeafError, Unavailable
from looseleaf.kv.backend import SCAN_LIMIT_MAX, Batch, check_scan_limit
from looseleaf.kv.engine import Engine
from looseleaf.logs import get_logger

log = get_logger()
_T = TypeVar("_T")


class GuardedKv:
    """A `KvBackend` over the engine that `open_engine()` opens; see there for the promises."""

    def __init__(self, name: str, open_engine: Callable[[], Engine]) -> None:
        self._name = name
        self._open_engine = open_engine
        # Lock order: _sync_lock before _lock. Only with both is the engine opened or closed.
        self._sync_lock = threading.Lock()
        self._lock = threading.Lock()
        self._closed = False
        # The engine refused a write or a flush: it must be opened anew before the next one.
        self._failed = False
        self._writes_done = 0
        self._writes_synced = 0
        self._engine: Engine | None = self._call("open", open_engine)
        # An interpreter that exits with an open database aborts instead of reporting why it exits.
        self._at_exit = _close_at_exit(weakref.WeakMethod(self.close))
        atexit.register(self._at_exit)

    def get(self, key: bytes) -> bytes | None:
        """See `KvBackend.get`."""
        self._recover_if_needed(for_write=False)
        with self._lock:
            return self._call("get", self._opened().get, key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `KvBackend.multi_get`."""
        self._recover_if_needed(for_write=False)
        with self._lock:
            engine = self._opened()
            return self._call("multi_get", engine.multi_get, keys) if keys else []

    def scan(self, prefix: bytes, start: bytes = b"", limit: int = SCAN_LIMIT_MAX) -> list[tuple[bytes, bytes]]:
        """See `KvBackend.scan`."""
        check_scan_limit(limit)
        self._recover_if_needed(for_write=False)
        with self._lock:
            return self._call("scan", self._opened().scan, prefix, max(prefix, start), limit)

    def write(self, batch: Batch, *, durable: bool = False) -> None:
        """See `KvBackend.write`."""
        if len(batch):
            self._recover_if_needed(for_write=True)
            with self._lock:
                engine = self._opened()
                try:
                    self._call("write", engine.write, batch)
                except LooseLeafError:
                    self._failed = True
                    raise
                self._writes_done += 1
        if durable:
            self.flush()

    def flush(self) -> None:
        """See `KvBackend.flush`."""
        with self._lock:
            self._check_open()
            target = self._writes_done
        with self._sync_lock:
            if self._writes_synced >= target:
                return
            self._reopen_if_failed()
            with self._lock:
                engine = self._opened()
                covered = self._writes_done
            try:
                engine.sync()
            except Exception as error:
                log.warning("kv_sync_failed", database=self._name, cause=str(error))
                self._rewrite_after_failed_sync(engine)
            self._writes_synced = covered

    def close(self) -> None:
        """See `KvBackend.close`."""
        with self._sync_lock, self._lock:
            self._closed = True
            atexit.unregister(self._at_exit)
            engine, self._engine = self._engine, None
            if engine is not None:
                self._call("close", engine.close)

    def _rewrite_after_failed_sync(self, engine: Engine) -> None:
        # After a failed fsync the kernel calls the lost pages clean, so asking for it again would lie. If this fails
        # too, only opening anew, which reads the log and writes what it holds to a table, makes the next flush true.
        with self._lock:
            try:
                self._call("flush", engine.rewrite)
            except LooseLeafError:
                self._failed = True
                raise

    def _recover_if_needed(self, *, for_write: bool) -> None:
        """Opens the database anew if it must be; cheap and without a lock when all is well."""
        if self._closed or (self._engine is not None and not (for_write and self._failed)):
            return
        with self._sync_lock:
            self._reopen_if_failed()

    def _reopen_if_failed(self) -> None:
        """The caller holds _sync_lock."""
        with self._lock:
            if self._closed or (self._engine is not None and not self._failed):
                return
            engine, self._engine = self._engine, None
            if engine is not None:
                self._call("close", engine.close)
            self._engine = self._call("reopen", self._open_engine)
            self._failed = False
        log.warning("kv_reopened", database=self._name)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("KV_CLOSED", f"{self._name} is closed: its service is stopping", database=self._name)

    def _opened(self) -> Engine:
        """The engine; the caller holds _lock."""
        self._check_open()
        if self._engine is None:
            text = f"{self._name} could not be opened again; nothing was done, retry"
            raise Unavailable("KV_IO", text, database=self._name)
        return self._engine

    def _call(self, action: str, function: Callable[..., _T], *args: Any) -> _T:
        try:
            return function(*args)
        except LooseLeafError:
            raise
        except Exception as error:
            raise as_kv_error(error, self._name, action) from error


class _close_at_exit:  # noqa: N801 - used as a function; a class so that atexit can find it again
    def __init__(self, close: weakref.WeakMethod[Callable[[], None]]) -> None:
        self._close = close

    def __call__(self) -> None:
        close = self._close()
        if close is not None:
            close()


_AFTER: Final = "What was saved before is safe; whether this change was made is not known. Retry, and"


def as_kv_error(error: Exception, database: str, action: str) -> LooseLeafError:
    """The error of ours that a library's error stands for; the bindings tell kinds apart by their text only."""
    text = str(error)
    lowered = text.lower()
    fields = {"database": database, "action": action, "cause": text[:500]}
    if "no space left" in lowered or "disk quota exceeded" in lowered:
        return CapacityExceeded("DISK_FULL", f"the disk of {database} is full. {_AFTER} free space", **fields)
    if "corruption:" in lowered:
        return Corrupt("KV_CORRUPT", f"the database {database} holds damaged blocks; restore it from a copy", **fields)
    if "while lock file" in lowered or "lock hold by" in lowered:
        return Unavailable("KV_LOCKED", f"another process has {database} open; stop it first", **fields)
    failed = f"the database {database} could not {action}: {text[:200]}. {_AFTER} check the disk"
    return Unavailable("KV_IO", failed, **fields)
