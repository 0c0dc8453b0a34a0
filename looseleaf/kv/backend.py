"""What an ordered key-value store promises to the services that sit on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from looseleaf.errors import InvalidArgument
from looseleaf.units import KIB, MIB

KEY_BYTES_MAX: Final = 1 * KIB
VALUE_BYTES_MAX: Final = 64 * MIB
BATCH_BYTES_MAX: Final = 512 * MIB
SCAN_LIMIT_MAX: Final = 100_000


class Batch:
    """Puts and deletes that become visible together or not at all; the last one on a key wins."""

    __slots__ = ("_writes", "size_bytes")

    def __init__(self) -> None:
        self._writes: dict[bytes, bytes | None] = {}
        # Bytes of all keys and values ever added; an upper bound once a key was written twice.
        self.size_bytes = 0

    def put(self, key: bytes, value: bytes) -> None:
        """Raises InvalidArgument `KV_KEY_SIZE`, `KV_VALUE_SIZE` or `KV_BATCH_SIZE` beyond the limits above."""
        self._admit(key, len(value))
        if len(value) > VALUE_BYTES_MAX:
            raise InvalidArgument("KV_VALUE_SIZE", f"a value has {len(value)} bytes; at most {VALUE_BYTES_MAX} fit")
        self._writes[key] = value

    def delete(self, key: bytes) -> None:
        """A key that does not exist is no error. Raises as `put`."""
        self._admit(key, 0)
        self._writes[key] = None

    def with_row(self, key: bytes, value: bytes) -> Batch:
        """A copy that puts one more row."""
        copy = Batch()
        copy._writes = {**self._writes, key: value}
        copy.size_bytes = self.size_bytes + len(key) + len(value)
        return copy

    def __len__(self) -> int:
        return len(self._writes)

    def writes(self) -> Iterator[tuple[bytes, bytes | None]]:
        """(key, value) of each put and (key, None) of each delete, one per key."""
        return iter(self._writes.items())

    def _admit(self, key: bytes, value_bytes: int) -> None:
        if not 1 <= len(key) <= KEY_BYTES_MAX:
            raise InvalidArgument("KV_KEY_SIZE", f"a key has {len(key)} bytes; 1 to {KEY_BYTES_MAX} are allowed")
        self.size_bytes += len(key) + value_bytes
        if self.size_bytes > BATCH_BYTES_MAX:
            raise InvalidArgument("KV_BATCH_SIZE", f"a batch has more than {BATCH_BYTES_MAX} bytes")


class KvBackend(Protocol):
    """Bytes to bytes, ordered by key bytewise, owned by one process at a time, usable from any of its threads.

    Every method blocks: event loops call it on a thread of a bounded executor (`Service.run_blocking`).
    Opening one that lost batches which a flush had made safe raises Corrupt `KV_LOG_DAMAGED` instead of hiding it.
    Raises, from every method: Unavailable `KV_CLOSED` after `close`, Unavailable `KV_IO` for an error of the disk,
    CapacityExceeded `DISK_FULL`, Corrupt `KV_CORRUPT`. After any of them but the first the backend goes on serving:
    a later write works as soon as the disk does.
    """

    def get(self, key: bytes) -> bytes | None:
        """The newest value of `key`, None if it has none. A thread sees its own finished writes."""
        ...

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """`get` of each key, in order; other threads' writes may fall between two of them."""
        ...

    def write(self, batch: Batch, *, durable: bool = False) -> None:
        """Applies the whole batch or, on any error, an unknown "all or nothing" of it.

        When it returns the batch survives SIGKILL of this process at any moment; with `durable` also a loss of power.
        An empty batch writes nothing (but `durable` still does what `flush` does).
        """
        ...

    def scan(self, prefix: bytes, start: bytes = b"", limit: int = SCAN_LIMIT_MAX) -> list[tuple[bytes, bytes]]:
        """At most `limit` entries whose key has `prefix` and is >= `start`, ascending, all of one moment.

        Raises InvalidArgument `KV_SCAN_LIMIT` unless 1 <= limit <= SCAN_LIMIT_MAX.
        """
        ...

    def flush(self) -> None:
        """Every write that returned before this call survives a loss of power when it returns.

        Callers that come together share one synchronisation of the disk.
        """
        ...

    def close(self) -> None:
        """Closes cleanly; a second call does nothing. Must be called before the interpreter exits."""
        ...


def scan_all(kv: KvBackend, prefix: bytes, page: int = 4096) -> Iterator[tuple[bytes, bytes]]:
    """Every entry with `prefix`, ascending, read in pages; entries written meanwhile may or may not appear."""
    start = prefix
    while True:
        entries = kv.scan(prefix, start, page)
        yield from entries
        if len(entries) < page:
            return
        start = entries[-1][0] + b"\0"


def take_prefix(entries: Iterable[tuple[bytes, bytes]], prefix: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    """The first `limit` (>= 1) of ascending `entries`, up to the first whose key has not `prefix`."""
    taken: list[tuple[bytes, bytes]] = []
    for key, value in entries:
        if not key.startswith(prefix):
            break
        taken.append((key, value))
        if len(taken) == limit:
            break
    return taken


def check_scan_limit(limit: int) -> None:
    """Raises InvalidArgument `KV_SCAN_LIMIT` unless 1 <= limit <= SCAN_LIMIT_MAX."""
    if not 1 <= limit <= SCAN_LIMIT_MAX:
        raise InvalidArgument("KV_SCAN_LIMIT", f"a scan asks for {limit} entries; 1 to {SCAN_LIMIT_MAX} are allowed")
