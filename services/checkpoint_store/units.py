"""Units: stored pickles below 1 MiB, by content. The store never looks inside."""

from __future__ import annotations

from collections.abc import Sequence

from looseleaf.dirty_tracker import hash128
from looseleaf.errors import Corrupt, InvalidArgument, NotFound
from looseleaf.kv import Batch
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.rows import UnitRow, encode_number
from looseleaf.services.checkpoint_store.index import StoreIndex
from looseleaf.services.checkpoint_store.unit_codec import PLAIN, UnitCodec
from looseleaf.services.checkpoint_store.usage import Usage
from looseleaf.units import INLINE_UNIT_BYTES_MAX


class Units:
    """Puts and gets units; a put one stays at least the collector's grace, and as long as a kept version names it."""

    def __init__(self, index: StoreIndex, usage: Usage, codec: UnitCodec) -> None:
        self._index = index
        self._usage = usage
        self._codec = codec

    def put(self, units: Sequence[tuple[bytes, bytes]], tenant: bytes = keys.DEFAULT_TENANT) -> int:
        """Stores a tenant's (hash, bytes) pairs together and returns how many were new.

        They survive SIGKILL when this returns, and a loss of power once a commit that names them has.
        Raises InvalidArgument `HASH_MALFORMED` or `UNIT_TOO_LARGE`, Corrupt `CHECKSUM_MISMATCH`, CapacityExceeded
        `STORE_FULL` or `TENANT_FULL`; then none of them is stored.
        """
        wanted: dict[bytes, bytes] = {}
        for unit_hash, data in units:
            check_unit(unit_hash, data)
            wanted[unit_hash] = data
        known = self._index.unit_rows(tenant, list(wanted))
        # Without the lock: it is the slow part. A unit that is freed meanwhile is kept plain.
        encoded = {
            unit_hash: self._codec.encode(data) for unit_hash, data in wanted.items() if known[unit_hash] is None
        }
        batch = Batch()
        stamp = encode_number(self._index.clock.unix_ms())
        with self._index.lock:
            rows = self._index.unit_rows(tenant, list(wanted))
            new = [unit_hash for unit_hash, row in rows.items() if row is None]
            size_bytes = sum(len(wanted[unit_hash]) for unit_hash in new)
            self._usage.reserve(tenant, size_bytes)
            for unit_hash, row in rows.items():
                if row is None:
                    codec, kept = encoded.get(unit_hash, (PLAIN, wanted[unit_hash]))
                    batch.put(keys.unit_bytes_key(tenant, unit_hash), kept)
                    batch.put(keys.unit_key(tenant, unit_hash), UnitRow(0, len(wanted[unit_hash]), codec).encode())
                if row is None or row.refs == 0:
                    # A unit that nobody names yet gets its full grace again: its commit is on the way.
                    batch.put(keys.orphan_key(keys.unit_key(tenant, unit_hash)), stamp)
            try:
                self._index.kv.write(batch)
            except BaseException:
                self._usage.give_back(tenant, size_bytes)
                raise
        return len(new)

    def get(self, unit_hashes: Sequence[bytes], tenant: bytes = keys.DEFAULT_TENANT) -> list[bytes]:
        """A tenant's units' bytes, in order.

        Raises InvalidArgument `HASH_MALFORMED`, NotFound `UNITS_UNKNOWN` naming them, Corrupt `CHECKSUM_MISMATCH`,
        Unsupported `UNIT_CODEC`.
        """
        for unit_hash in unit_hashes:
            check_hash(unit_hash, "unit")
        rows = self._index.unit_rows(tenant, unit_hashes)
        found = self._index.kv.multi_get([keys.unit_bytes_key(tenant, unit_hash) for unit_hash in unit_hashes])
        kept = list(zip(unit_hashes, found, strict=True))
        missing = [unit_hash.hex() for unit_hash, data in kept if data is None or rows[unit_hash] is None]
        if missing:
            text = f"{len(missing)} units are not in the store, such as {missing[0]}: no kept version names them"
            raise NotFound("UNITS_UNKNOWN", text, missing=missing[:16], missing_count=len(missing))
        return [self._decoded(unit_hash, rows[unit_hash], data) for unit_hash, data in kept]

    def _decoded(self, unit_hash: bytes, row: UnitRow | None, kept: bytes | None) -> bytes:
        assert row is not None and kept is not None
        try:
            data = self._codec.decode(row.codec, kept, row.size_bytes)
        except Corrupt:
            data = b""
        if hash128(data) != unit_hash:
            text = f"unit {unit_hash.hex()} is damaged in the store; variables that need it cannot be restored"
            raise Corrupt("CHECKSUM_MISMATCH", text, unit=unit_hash.hex())
        return data


def check_hash(value: bytes, kind: str) -> None:
    """Raises InvalidArgument `HASH_MALFORMED` unless `value` has 16 bytes."""
    if len(value) != keys.HASH_BYTES:
        text = f"a {kind}'s name has {len(value)} bytes instead of {keys.HASH_BYTES}; nothing was stored"
        raise InvalidArgument("HASH_MALFORMED", text, kind=kind)


def check_unit(unit_hash: bytes, data: bytes) -> None:
    """Raises as `Units.put` unless `data` may be stored under `unit_hash`."""
    check_hash(unit_hash, "unit")
    if len(data) >= INLINE_UNIT_BYTES_MAX:
        text = f"a unit has {len(data)} bytes; from {INLINE_UNIT_BYTES_MAX} on it must be put as regions"
        raise InvalidArgument("UNIT_TOO_LARGE", text, size_bytes=len(data))
    if hash128(data) != unit_hash:
        text = f"the bytes of unit {unit_hash.hex()} were damaged on the way; nothing was stored, send them again"
        raise Corrupt("CHECKSUM_MISMATCH", text, unit=unit_hash.hex())
