"""The rows of the index and their bytes. Reading one checks its shape; a wrong one is Corrupt `INDEX_CORRUPT`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from looseleaf.errors import Corrupt
from looseleaf.services.checkpoint_store.core.keys import DEFAULT_TENANT

FORMAT_VERSION: Final = 2
# The slot of a region of zeros: nothing of it is written anywhere.
ZERO_SLOT: Final = -1


@dataclass(frozen=True, slots=True)
class LastFallback:
    """A session's newest fall to an older version after the loss of a host; kept so that a repeated call can tell."""

    request_id: str
    lost_version: int
    version: int
    lost_execution_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session's head. `version` and `durable_version` are 0 before the first; times are for people.

    `tenant`: the key of its owner, for good.
    """

    epoch: int
    version: int
    durable_version: int
    created_unix_ms: int
    updated_unix_ms: int
    title: str
    fallback: LastFallback | None = None
    tenant: bytes = DEFAULT_TENANT

    def encode(self) -> bytes:
        last = self.fallback
        fallback = last and [last.request_id, last.lost_version, last.version, list(last.lost_execution_ids)]
        return _pack([
            self.epoch, self.version, self.durable_version, self.created_unix_ms, self.updated_unix_ms, self.title,
            fallback, self.tenant,
        ])

    @classmethod
    def decode(cls, data: bytes) -> SessionRow:
        shape = (int, int, int, int, int, str, (list, type(None)), bytes)
        epoch, version, durable_version, created, updated, title, fallback, tenant = _unpack(data, shape, "session")
        last = None
        if fallback is not None:
            request_id, lost_version, fell_to, execution_ids = _shaped(fallback, (str, int, int, list), "session")
            last = LastFallback(request_id, lost_version, fell_to, tuple(map(str, execution_ids)))
        return cls(epoch, version, durable_version, created, updated, title, last, tenant)


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One committed version, without its contents. `host_id`: whose arena held what was not durable at the commit.

    `lazy_bytes`: those that the session's kernel kept to itself; they are in no store.
    """

    parent: int
    epoch: int
    execution_id: str
    created_unix_ms: int
    durable: bool
    logical_bytes: int
    roots: int
    host_id: str
    manifest_hash: bytes
    lazy_bytes: int = 0

    def encode(self) -> bytes:
        return _pack([
            self.parent, self.epoch, self.execution_id, self.created_unix_ms, self.durable, self.logical_bytes,
            self.roots, self.host_id, self.manifest_hash, self.lazy_bytes,
        ])

    @classmethod
    def decode(cls, data: bytes) -> VersionRow:
        return cls(*_unpack(data, (int, int, str, int, bool, int, int, str, bytes, int), "version"))


@dataclass(frozen=True, slots=True)
class TombstoneRow:
    """A deleted session: which request deleted it, when, and the epoch above which a new one of that name begins."""

    request_id: str
    deleted_unix_ms: int
    epoch: int

    def encode(self) -> bytes:
        return _pack([self.request_id, self.deleted_unix_ms, self.epoch])

    @classmethod
    def decode(cls, data: bytes) -> TombstoneRow:
        return cls(*_unpack(data, (str, int, int), "tombstone"))


@dataclass(frozen=True, slots=True)
class UnitRow:
    """A stored unit: how many runs of kept versions name it (see `references.py`), its size, how its bytes are kept.

    `codec`: see `unit_codec.py`.
    """

    refs: int
    size_bytes: int
    codec: int = 0

    def encode(self) -> bytes:
        return _pack([self.refs, self.size_bytes, self.codec])

    @classmethod
    def decode(cls, data: bytes) -> UnitRow:
        return cls(*_unpack(data, (int, int, int), "unit"))


@dataclass(frozen=True, slots=True)
class RegionRow:
    """A known region: references as in UnitRow, length, slot on the store's disk, hosts with it.

    `slot`: None if the store does not have its bytes, ZERO_SLOT if they are zeros and so need no place. `damaged`: the
    slot was found to hold other bytes, so that they are taken again from whoever has them.
    """

    refs: int
    length_bytes: int
    slot: int | None
    hosts: tuple[str, ...]
    damaged: bool = False

    def encode(self) -> bytes:
        return _pack([self.refs, self.length_bytes, self.slot, list(self.hosts), self.damaged])

    @classmethod
    def decode(cls, data: bytes) -> RegionRow:
        shape = (int, int, (int, type(None)), list, bool)
        refs, length_bytes, slot, hosts, damaged = _unpack(data, shape, "region")
        if slot is not None and slot < ZERO_SLOT:
            raise Corrupt("INDEX_CORRUPT", "a region row of the store's index names an impossible slot", kind="region")
        return cls(refs, length_bytes, slot, tuple(map(str, hosts)), damaged)

    @property
    def located(self) -> bool:
        """Whether its bytes can be had anywhere."""
        return self.on_disk or bool(self.hosts)

    @property
    def on_disk(self) -> bool:
        """Whether the store has its bytes, as far as is known."""
        return self.slot is not None and not self.damaged

    @property
    def written_slot(self) -> int | None:
        """The slot of the region files that holds its bytes, None if none does."""
        return None if self.slot == ZERO_SLOT else self.slot


def decode_optional_region(data: bytes | None) -> RegionRow | None:
    """The row, None for none."""
    return None if data is None else RegionRow.decode(data)


def decode_optional_unit(data: bytes | None) -> UnitRow | None:
    """The row, None for none."""
    return None if data is None else UnitRow.decode(data)


def encode_number(number: int) -> bytes:
    """A number >= 0 as a row of its own."""
    return number.to_bytes(8, "big")


def decode_number(data: bytes) -> int:
    """See `encode_number`."""
    if len(data) != 8:
        raise Corrupt("INDEX_CORRUPT", "a number in the store's index is malformed")
    return int.from_bytes(data, "big")


def _pack(fields: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return packed


def _unpack(data: bytes, types: Sequence[type | tuple[type, ...]], kind: str) -> list[Any]:
    try:
        fields = msgpack.unpackb(data, raw=False)
    except Exception as error:
        raise Corrupt("INDEX_CORRUPT", f"a {kind} row of the store's index cannot be read", kind=kind) from error
    return _shaped(fields, types, kind)


def _shaped(fields: Any, types: Sequence[type | tuple[type, ...]], kind: str) -> list[Any]:
    if not isinstance(fields, list) or len(fields) != len(types) or not all(map(isinstance, fields, types)):
        raise Corrupt("INDEX_CORRUPT", f"a {kind} row of the store's index has a wrong shape", kind=kind)
    return fields
