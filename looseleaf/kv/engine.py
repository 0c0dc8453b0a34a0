"""What one binding of RocksDB does, in as few methods as the layers above need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from looseleaf.kv.backend import Batch


class Engine(Protocol):
    """One open database; raises whatever its library raises. Called by one thread at a time, but for `sync`."""

    def get(self, key: bytes) -> bytes | None: ...

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def write(self, batch: Batch) -> None:
        """Applies the batch; it survives SIGKILL when this returns."""
        ...

    def scan(self, prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]: ...

    def sync(self) -> None:
        """Makes all finished writes survive a loss of power; may run beside every method but `close`."""
        ...

    def rewrite(self) -> None:
        """The same by a slower way that does not rely on pages that a failed `sync` may have dropped."""
        ...

    def close(self) -> None: ...
