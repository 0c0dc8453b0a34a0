"""From captured state to a committed version: hash, compare, move what is new, commit (design §3: Save)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from looseleaf.checkpoint.capture import Captured
from looseleaf.checkpoint.drafts import Draft, header_of
from looseleaf.checkpoint.manifest import (
    ALGORITHM_XXH3,
    HASH_BYTES,
    Manifest,
    PayloadEntry,
    RegionRef,
    UnitEntry,
    decode_manifest,
    encode_manifest,
    region_refs_of,
)
from looseleaf.checkpoint.memory import Block
from looseleaf.checkpoint.state_io import StateIO
from looseleaf.dirty_tracker import HASH_THREADS_MAX, dirty_regions, hash128, region_hashes
from looseleaf.errors import Corrupt, Timeout, Unavailable
from looseleaf.ids import PayloadId, UnitId, Version
from looseleaf.units import INLINE_UNIT_BYTES_MAX, MIB, REGION_BYTES

# Below this, starting threads costs more than they save.
_THREADED_HASH_BYTES_MIN: Final = 64 * MIB


@dataclass
class Moves:
    """What a version needs in the store that its parent did not have. Views stay valid while the capture lives."""

    regions: dict[bytes, tuple[RegionRef, memoryview]] = field(default_factory=dict)
    units: dict[bytes, bytes] = field(default_factory=dict)
    dirty_regions: int = 0
    total_regions: int = 0
    bytes_moved: int = 0
    units_written: int = 0


class VersionBuilder:
    """The unit and payload tables of a new version on top of `base`."""

    def __init__(self, base: Manifest, captured: Captured, *, copy_dirty: bool = False) -> None:
        self._base = base
        self._captured = captured
        self._copy_dirty = copy_dirty
        self._known_hashes = {entry.hash for entry in base.units.values() if not entry.regions}
        self.moves = Moves()
        self.units: dict[UnitId, UnitEntry] = {}
        self.payloads: dict[PayloadId, PayloadEntry] = {}

    def build(self, heads: Iterable[UnitId]) -> None:
        """Fills `units`, `payloads` and `moves` with all that `heads` reach."""
        reached = self._reached(heads)
        blocks = {block.payload_id: block for block in self._captured.payloads}
        for payload_id in sorted(self._payloads_of(reached)):
            block = blocks.get(payload_id)
            if block is None:
                self.payloads[payload_id] = self._base.payloads[payload_id]
            else:
                self.payloads[payload_id] = self._payload(payload_id, block)
        for unit_id in sorted(reached):
            draft = self._captured.drafts.get(unit_id)
            self.units[unit_id] = self._base.units[unit_id] if draft is None else self._unit(unit_id, draft)

    def _reached(self, heads: Iterable[UnitId]) -> set[UnitId]:
        payload_ids = {block.payload_id for block in self._captured.payloads} | self._base.payloads.keys()
        seen: set[UnitId] = set()
        todo = list(heads)
        while todo:
            unit_id = todo.pop()
            if unit_id in seen:
                continue
            seen.add(unit_id)
            draft = self._captured.drafts.get(unit_id)
            refs: Iterable[Any] = self._base.units[unit_id].header.refs if draft is None else draft.refs
            todo.extend(UnitId(ref) for ref in refs if draft is None or ref not in payload_ids)
        return seen

    def _payloads_of(self, reached: set[UnitId]) -> set[PayloadId]:
        payload_ids = {block.payload_id for block in self._captured.payloads} | self._base.payloads.keys()
        found: set[PayloadId] = set()
        for unit_id in reached:
            draft = self._captured.drafts.get(unit_id)
            if draft is None:
                found.update(self._base.units[unit_id].header.payloads)
            else:
                found.update(PayloadId(ref) for ref in draft.refs if ref in payload_ids)
        return found

    def _payload(self, payload_id: PayloadId, block: Block) -> PayloadEntry:
        data = block.read()
        threads = min(HASH_THREADS_MAX, os.cpu_count() or 1) if len(data) >= _THREADED_HASH_BYTES_MIN else 1
        old = self._base.payloads.get(payload_id)
        comparable = old is not None and old.size_bytes == len(data) and old.region_bytes == REGION_BYTES
        old_ids = _ids_of(old.regions) if old is not None and comparable else b""
        ids = region_hashes(data, region_bytes=REGION_BYTES, threads=threads)
        dirty = dirty_regions(ids, old_ids)
        if self._copy_dirty and dirty:
            data, ids = _stable(data, ids, dirty)
        refs = region_refs_of(ids, len(data), REGION_BYTES)
        self.moves.total_regions += len(refs)
        self.moves.dirty_regions += len(dirty)
        self._move_regions(refs, data, dirty)
        if old is not None and comparable and not dirty and (old.kind, old.device) == (block.kind, block.device):
            return old
        return PayloadEntry(block.kind, block.device, len(data), ALGORITHM_XXH3, REGION_BYTES, refs)

    def _unit(self, unit_id: UnitId, draft: Draft) -> UnitEntry:
        header = header_of(draft, self.payloads)
        old = self._base.units.get(unit_id)
        unit_hash = hash128(draft.data)
        if old is not None and old.hash == unit_hash and old.size_bytes == len(draft.data):
            return old if old.header == header else replace(old, header=header)
        self.moves.units_written += 1
        regions: tuple[RegionRef, ...] = ()
        if len(draft.data) >= INLINE_UNIT_BYTES_MAX:
            ids = region_hashes(draft.data, region_bytes=REGION_BYTES)
            regions = region_refs_of(ids, len(draft.data), REGION_BYTES)
            old_ids = _ids_of(old.regions) if old is not None else b""
            self._move_regions(regions, memoryview(draft.data), dirty_regions(ids, old_ids))
        elif unit_hash not in self._known_hashes:
            self.moves.units[unit_hash] = draft.data
        return UnitEntry(unit_hash, len(draft.data), regions, header)

    def _move_regions(self, refs: tuple[RegionRef, ...], data: memoryview, dirty: list[int]) -> None:
        for index in dirty:
            start = index * REGION_BYTES
            ref = refs[index]
            self.moves.regions.setdefault(ref.region_id, (ref, data[start : start + ref.length_bytes]))


def _ids_of(regions: tuple[RegionRef, ...]) -> bytes:
    return b"".join(ref.region_id for ref in regions)


def _stable(data: memoryview, ids: bytes, dirty: list[int]) -> tuple[memoryview, bytes]:
    """Copies of the dirty regions, hashed again: somebody writes to this memory while it is saved."""
    copy = bytearray(data)
    fresh = bytearray(ids)
    for index in dirty:
        region = memoryview(copy)[index * REGION_BYTES : (index + 1) * REGION_BYTES]
        fresh[index * HASH_BYTES : (index + 1) * HASH_BYTES] = hash128(region)
    return memoryview(copy), bytes(fresh)


def move(io: StateIO, moves: Moves) -> None:
    """Puts what the store lacks; counts the bytes. Raises what the StateIO raises, nothing is committed then."""
    items = list(moves.regions.values())
    missing = io.have_regions([ref for ref, _ in items]) if items else []
    if missing:
        io.put_regions(_counted(moves, (items[index] for index in missing)))
    if moves.units:
        io.put_units(moves.units.items())
        moves.bytes_moved += sum(map(len, moves.units.values()))


def _counted(
    moves: Moves, items: Iterable[tuple[RegionRef, memoryview]]
) -> Iterator[tuple[RegionRef, memoryview]]:
    for ref, data in items:
        moves.bytes_moved += ref.length_bytes
        yield ref, data


def commit(io: StateIO, manifest: Manifest) -> Manifest:
    """The manifest as committed, with the version that it got.

    If the answer is lost, the head tells: the commit happened exactly if the head is the work of this execution on the
    same parent. Raises Conflict `MANIFEST_MOVED`, PreconditionFailed `STALE_EPOCH`, Unavailable, Timeout.
    """
    data = encode_manifest(manifest)
    try:
        version = io.commit(data, manifest.parent, manifest.epoch, manifest.execution_id)
    except (Unavailable, Timeout):
        _, head = io.manifest(Version(0))
        if head is None or bytes(head) != data:
            raise
        return decode_manifest(head)
    return manifest if version == manifest.version else replace(manifest, version=version)


def with_retry(build: Any, io: StateIO) -> Any:
    """Makes the moves of the VersionBuilder that `build(copy_dirty)` gives; with copies if memory changed meanwhile."""
    builder = build(False)
    try:
        move(io, builder.moves)
    except Corrupt:
        builder = build(True)
        move(io, builder.moves)
    return builder


def same_state(old: Manifest, new: Manifest) -> bool:
    """True if `new` would be `old` over again."""
    def content(m: Manifest) -> tuple[Any, ...]:
        plain: Mapping[str, UnitId] = dict(m.roots)
        return (list(plain.items()), dict(m.units), dict(m.payloads), m.process_state, m.tombstones, m.unsaved)

    return content(old) == content(new)
