"""Which versions somebody may be working with: those that were read a short time ago. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

# Versions whose use is remembered; each is some hundred bytes.
USES_MAX: Final = 100_000


class VersionUses:
    """A read lease: who reads a version holds it for `use_s`, as a worker that loads it or a checkout of it.

    Times are monotonic: setting the machine's clock ends no lease. After a start nobody knows what was read before it,
    so that for `use_s` every version counts as used.
    """

    def __init__(self, use_s: float, started_s: float) -> None:
        self._use_s = use_s
        self._started_s = started_s
        self._read_s: OrderedDict[tuple[str, int], float] = OrderedDict()

    def read(self, session_id: str, version: int, now_s: float) -> None:
        """A version was read."""
        self._read_s[session_id, version] = now_s
        self._read_s.move_to_end((session_id, version))
        if len(self._read_s) > USES_MAX:
            self._read_s.popitem(last=False)

    def of(self, session_id: str, versions: list[int], now_s: float) -> frozenset[int]:
        """Those of `versions` that are in use."""
        if now_s - self._started_s < self._use_s:
            return frozenset(versions)
        used = (version for version in versions if self._is_fresh((session_id, version), now_s))
        return frozenset(used)

    def _is_fresh(self, key: tuple[str, int], now_s: float) -> bool:
        return key in self._read_s and now_s - self._read_s[key] < self._use_s
