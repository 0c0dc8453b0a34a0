"""Which versions somebody may be working with: those that were read a short time ago. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

# Versions whose use is remembered; each is some hundred bytes.
USES_MAX: Final = 100_000


class VersionUses:
    """Who reads a version holds it for `use_ms`: a worker loads it, a checkout makes it the newest.

    After a start nobody knows what was read before it, so that for `use_ms` every version counts as used.
    """

    def __init__(self, use_ms: int, started_unix_ms: int) -> None:
        self._use_ms = use_ms
        self._started_unix_ms = started_unix_ms
        self._read_unix_ms: OrderedDict[tuple[str, int], int] = OrderedDict()

    def read(self, session_id: str, version: int, now_unix_ms: int) -> None:
        """A version was read."""
        self._read_unix_ms[session_id, version] = now_unix_ms
        self._read_unix_ms.move_to_end((session_id, version))
        if len(self._read_unix_ms) > USES_MAX:
            self._read_unix_ms.popitem(last=False)

    def of(self, session_id: str, versions: list[int], now_unix_ms: int) -> frozenset[int]:
        """Those of `versions` that are in use."""
        if now_unix_ms - self._started_unix_ms < self._use_ms:
            return frozenset(versions)
        used = (version for version in versions if self._is_fresh((session_id, version), now_unix_ms))
        return frozenset(used)

    def _is_fresh(self, key: tuple[str, int], now_unix_ms: int) -> bool:
        return key in self._read_unix_ms and now_unix_ms - self._read_unix_ms[key] < self._use_ms
