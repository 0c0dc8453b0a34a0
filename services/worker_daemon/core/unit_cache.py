"""Units that passed through this host lately, so that a worker here needs no way to the store for them (design §7).

A session sees only what it saved or fetched on this host: the store names units within a tenant, and a daemon does not
know who belongs to which.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from looseleaf.ids import SessionId
from looseleaf.units import MIB

# Bytes of all units that one daemon keeps; larger ones than the second are not kept.
UNIT_CACHE_BYTES_MAX: Final = 128 * MIB
UNIT_BYTES_MAX: Final = 2 * MIB
# What an entry takes beside its bytes, roughly: small units must not be without limit.
ENTRY_BYTES: Final = 256


class UnitCache:
    """The least recently used go first."""

    def __init__(self, bytes_max: int = UNIT_CACHE_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self._units: OrderedDict[tuple[SessionId, bytes], bytes] = OrderedDict()

    def keep(self, session_id: SessionId, units: Iterable[tuple[bytes, bytes]]) -> None:
        """Remembers (hash, bytes) of units that the store has taken or given, and so has checked."""
        for unit_hash, data in units:
            if len(data) > UNIT_BYTES_MAX:
                continue
            key = (session_id, unit_hash)
            if key not in self._units:
                self.size_bytes += len(data) + ENTRY_BYTES
            self._units[key] = data
            self._units.move_to_end(key)
        while self.size_bytes > self.bytes_max:
            _, dropped = self._units.popitem(last=False)
            self.size_bytes -= len(dropped) + ENTRY_BYTES

    def find(self, session_id: SessionId, hashes: Iterable[bytes]) -> dict[bytes, bytes]:
        """Those of `hashes` that are here."""
        found = {}
        for unit_hash in hashes:
            data = self._units.get((session_id, unit_hash))
            if data is not None:
                self._units.move_to_end((session_id, unit_hash))
                found[unit_hash] = data
        return found
