"""The seam between a session's state and whatever carries its bytes: a host's daemon, or files in tests.

`StateTracker` calls it; `looseleaf.protocol.state_io.LinkStateIO` implements it over the worker protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from looseleaf.checkpoint.manifest import RegionRef
from looseleaf.ids import Epoch, ExecutionId, Version

if TYPE_CHECKING:
    from typing_extensions import Buffer


class MappedBuffer(Protocol):
    """One payload's bytes: contiguous, private to this process, writable, of exactly the payload's size.

    It has the buffer protocol; the memory lives as long as any view of it.
    """

    def __buffer__(self, flags: int, /) -> memoryview: ...


class StateIO(Protocol):
    """Every call blocks; every failure is a LooseLeafError. Safe for use by one thread at a time."""

    def have_regions(self, refs: Sequence[RegionRef], session_bytes: int = 0) -> list[int]:
        """Indices into `refs` of the regions that must be put because nobody holds them yet, ascending.

        `session_bytes`: of all variables of the version to come, 0 if that is not known. Raises CapacityExceeded if it
        would not fit: `ARENA_FULL`, `SESSION_FULL`, `TENANT_FULL`, `STORE_FULL`; before any byte is read.
        """

    def put_regions(self, items: Iterable[tuple[RegionRef, memoryview]]) -> None:
        """Stores the bytes; each view has `length_bytes` bytes and is read before the next item is asked for.

        Raises CapacityExceeded `ARENA_FULL`: then nothing may be committed that needs them.
        """

    def put_units(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Stores small pickles by their XXH3-128; putting one twice does no harm."""

    def commit(self, manifest_bytes: bytes, parent: Version, epoch: Epoch, execution_id: ExecutionId) -> Version:
        """Makes the manifest the session's head if the head is `parent`; returns the version that it got.

        Raises Conflict `MANIFEST_MOVED`, PreconditionFailed `STALE_EPOCH`.
        """

    def manifest(self, version: Version) -> tuple[Mapping[str, Any], bytes | None]:
        """({version, epoch, durable_version}, the manifest of `version`); 0: the newest. None if there is none."""

    def fetch_units(self, hashes: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """The pickles by hash, all of them; raises NotFound `UNIT_UNKNOWN` otherwise."""

    def map_regions(self, refs: Sequence[RegionRef]) -> Buffer:
        """The regions one after the other as one MappedBuffer. Raises NotFound `REGION_UNKNOWN`."""

    def map_many(self, groups: Sequence[Sequence[RegionRef]]) -> Sequence[Buffer]:
        """As `map_regions` for each group, at the price of one; after an error none is mapped."""

    def unmap_regions(self, refs: Sequence[RegionRef]) -> None:
        """One mapping less of each region, which is as often in `refs` as it was mapped; it must be gone by then."""
