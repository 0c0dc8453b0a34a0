"""From captured state to a committed version: hash, compare, move what is new, commit (design §3: Save)."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from looseleaf.checkpoint.capture import Captured
from looseleaf.checkpoint.code_names import names_read_by
from looseleaf.checkpoint.drafts import Draft, header_of
from looseleaf.checkpoint.lazy import Budget
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
from looseleaf.checkpoint.memory import CPU, Block
from looseleaf.checkpoint.state_io import StateIO
from looseleaf.dirty_tracker import HASH_THREADS_MAX, dirty_regions, hash128, region_hashes, restored_at
from looseleaf.errors import Corrupt, Timeout, Unavailable
from looseleaf.ids import PayloadId, UnitId, Version
from looseleaf.units import INLINE_UNIT_BYTES_MAX, MIB, REGION_BYTES

# Below this, starting threads costs more than they save.
_THREADED_HASH_BYTES_MIN: Final = 64 * MIB
# No cell that arrives waits for more than one such part to be hashed: some 3 ms.
_HASH_PART_BYTES: Final = 32 * REGION_BYTES


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
        self._blocks = {block.payload_id: block for block in captured.payloads if block.payload_id is not None}
        self._payload_ids = self._blocks.keys() | base.payloads.keys()
        self.moves = Moves()
        self.units: dict[UnitId, UnitEntry] = {}
        self.payloads: dict[PayloadId, PayloadEntry] = {}

    def build(self, heads: Iterable[UnitId], needed: Container[PayloadId] | None, budget: Budget) -> None:
        """Fills `units`, `payloads` and `moves` with all that `heads` reach.

        `needed`: payloads that must be complete, None for all. Of the others those beyond `budget` become lazy.
        """
        reached = self._reached(heads)
        self._add_payloads(sorted(self._payloads_of(reached)), needed, budget)
        for unit_id in sorted(reached):
            draft = self._captured.drafts.get(unit_id)
            self.units[unit_id] = self._base.units[unit_id] if draft is None else self._unit(unit_id, draft)

    def needed_payloads(
        self, names: Iterable[str], roots: Mapping[str, UnitId], also: Iterable[UnitId]
    ) -> set[PayloadId]:
        """Payloads in the closure of `names` and of the units `also`, names that their code reads included."""
        units = self._reached(also)
        seen: set[str] = set()
        todo = [*names, *(name for unit_id in units for name in self._global_names(unit_id))]
        while todo:
            name = todo.pop()
            if name in seen or name not in roots:
                continue
            seen.add(name)
            fresh = self._reached([roots[name]]) - units
            units |= fresh
            for unit_id in fresh:
                todo.extend(self._global_names(unit_id))
        return self._payloads_of(units)

    def _global_names(self, unit_id: UnitId) -> Iterable[str]:
        draft = self._captured.drafts.get(unit_id)
        if draft is None:
            return self._base.units[unit_id].header.global_names
        return [name for code in (draft.pickler.code if draft.pickler else ()) for name in names_read_by(code)]

    def _reached(self, heads: Iterable[UnitId]) -> set[UnitId]:
        seen: set[UnitId] = set()
        todo = list(heads)
        while todo:
            unit_id = todo.pop()
            if unit_id in seen:
                continue
            seen.add(unit_id)
            draft = self._captured.drafts.get(unit_id)
            refs: Iterable[Any] = self._base.units[unit_id].header.refs if draft is None else draft.refs
            todo.extend(UnitId(ref) for ref in refs if draft is None or ref not in self._payload_ids)
        return seen

    def _payloads_of(self, reached: Iterable[UnitId]) -> set[PayloadId]:
        found: set[PayloadId] = set()
        for unit_id in reached:
            draft = self._captured.drafts.get(unit_id)
            if draft is None:
                found.update(self._base.units[unit_id].header.payloads)
            else:
                found.update(PayloadId(ref) for ref in draft.refs if ref in self._payload_ids)
        return found

    def _add_payloads(
        self, payload_ids: list[PayloadId], needed: Container[PayloadId] | None, budget: Budget
    ) -> None:
        found: dict[PayloadId, PayloadEntry] = {}
        others = []
        for payload_id in payload_ids:
            block = self._blocks.get(payload_id)
            if block is None:
                found[payload_id] = self._base.payloads[payload_id]
            # Memory that pickling itself makes cannot be kept: with the pickler it is gone.
            elif needed is None or payload_id in needed or block.is_late:
                found[payload_id] = self._payload(payload_id, block)
            else:
                others.append((payload_id, block))
        # Small ones first: as many as can be are complete.
        for payload_id, block in sorted(others, key=lambda other: other[1].size_bytes):
            found[payload_id] = self._payload_within(budget, payload_id, block)
        self.payloads = {payload_id: found[payload_id] for payload_id in payload_ids}

    def _payload_within(self, budget: Budget, payload_id: PayloadId, block: Block) -> PayloadEntry:
        """The complete entry if that fits into the budget, else a lazy one."""
        is_new = not self._comparable_ids(payload_id, block)
        fits = budget.may_hash(block.size_bytes) and (not is_new or budget.may_move(block.size_bytes))
        if fits:
            hashed = self._hash(payload_id, block)
            if is_new or budget.may_move(len(hashed.dirty) * REGION_BYTES):
                return self._complete(payload_id, block, hashed)
        version = Version(self._base.version + 1)
        return PayloadEntry(block.kind, block.device, block.size_bytes, ALGORITHM_XXH3, REGION_BYTES, (), version)

    def _payload(self, payload_id: PayloadId, block: Block) -> PayloadEntry:
        return self._complete(payload_id, block, self._hash(payload_id, block))

    def _comparable_ids(self, payload_id: PayloadId, block: Block) -> bytes:
        """Ids of the regions that the base has of this payload, cut as they are now; else none."""
        old = self._base.payloads.get(payload_id)
        comparable = old is not None and old.size_bytes == block.size_bytes and old.region_bytes == REGION_BYTES
        return _ids_of(old.regions) if old is not None and comparable else b""

    def _hash(self, payload_id: PayloadId, block: Block) -> _Hashed:
        data = block.read()
        ids = _ids_of_block(block, data)
        dirty = dirty_regions(ids, self._comparable_ids(payload_id, block))
        copies: dict[int, bytes] = {}
        if self._copy_dirty:
            ids, copies = _stable(data, ids, dirty)
        return _Hashed(data, ids, dirty, copies)

    def _complete(self, payload_id: PayloadId, block: Block, hashed: _Hashed) -> PayloadEntry:
        refs = region_refs_of(hashed.ids, len(hashed.data), REGION_BYTES)
        self.moves.total_regions += len(refs)
        self.moves.dirty_regions += len(hashed.dirty)
        self._move_regions(refs, hashed)
        old = self._base.payloads.get(payload_id)
        made = PayloadEntry(block.kind, block.device, len(hashed.data), ALGORITHM_XXH3, REGION_BYTES, refs)
        return old if old == made else made

    def _unit(self, unit_id: UnitId, draft: Draft) -> UnitEntry:
        header = header_of(draft, self.payloads)
        old = self._base.units.get(unit_id)
        unit_hash = hash128(draft.data)
        if old is not None and old.hash == unit_hash and old.size_bytes == len(draft.data):
            return old if old.header == header else replace(old, header=header)
        self.moves.units_written += 1
        regions: tuple[RegionRef, ...] = ()
        if len(draft.data) >= INLINE_UNIT_BYTES_MAX:
            data = memoryview(draft.data)
            ids = _hash_interruptibly(data)
            regions = region_refs_of(ids, len(data), REGION_BYTES)
            old_ids = _ids_of(old.regions) if old is not None else b""
            self._move_regions(regions, _Hashed(data, ids, dirty_regions(ids, old_ids), {}))
        elif unit_hash not in self._known_hashes:
            self.moves.units[unit_hash] = draft.data
        return UnitEntry(unit_hash, len(draft.data), regions, header)

    def _move_regions(self, refs: tuple[RegionRef, ...], hashed: _Hashed) -> None:
        for index in hashed.dirty:
            ref = refs[index]
            self.moves.regions.setdefault(ref.region_id, (ref, hashed.region(index)))


@dataclass
class _Hashed:
    """Memory, the ids of its regions in one row, and which of them are dirty. `copies`: regions as they were hashed."""

    data: memoryview
    ids: bytes
    dirty: list[int]
    copies: Mapping[int, bytes]

    def region(self, index: int) -> memoryview:
        """The bytes to move."""
        copy = self.copies.get(index)
        return _region(self.data, index) if copy is None else memoryview(copy)


def _region(data: memoryview, index: int) -> memoryview:
    return data[index * REGION_BYTES : (index + 1) * REGION_BYTES]


def _ids_of(regions: tuple[RegionRef, ...]) -> bytes:
    return b"".join(ref.region_id for ref in regions)


def _ids_of_block(block: Block, data: memoryview) -> bytes:
    """Ids of the regions. Of restored memory only what was written since is hashed: the rest shows its slots still."""
    restored = restored_at(block.address, block.size_bytes) if (block.device, block.kind) == (CPU, "memory") else None
    written = None if restored is None else restored.written()
    if restored is None or written is None:
        return _hash_interruptibly(data)
    ids = bytearray(restored.table)
    for first, stop in _runs(written):
        ids[first * HASH_BYTES : stop * HASH_BYTES] = _hash_interruptibly(
            data[first * REGION_BYTES : stop * REGION_BYTES]
        )
    return bytes(ids)


def _runs(indices: list[int]) -> Iterator[tuple[int, int]]:
    """Ascending indices as pairs of a first one and the one behind the last of a run."""
    for position, index in enumerate(indices):
        if position == 0 or indices[position - 1] + 1 != index:
            first = index
        if position + 1 == len(indices) or indices[position + 1] != index + 1:
            yield first, index + 1


def _hash_interruptibly(data: memoryview) -> bytes:
    """Ids of the regions; between the parts a commit can be broken off."""
    threads = min(HASH_THREADS_MAX, os.cpu_count() or 1) if len(data) >= _THREADED_HASH_BYTES_MIN else 1
    parts = [data[start : start + _HASH_PART_BYTES] for start in range(0, len(data), _HASH_PART_BYTES)]
    return b"".join([region_hashes(part, region_bytes=REGION_BYTES, threads=threads) for part in parts])


def _stable(data: memoryview, ids: bytes, dirty: list[int]) -> tuple[bytes, dict[int, bytes]]:
    """Copies of the dirty regions, hashed again: somebody writes to this memory while it is saved."""
    fresh = bytearray(ids)
    copies = {}
    for index in dirty:
        copies[index] = bytes(_region(data, index))
        fresh[index * HASH_BYTES : (index + 1) * HASH_BYTES] = hash128(copies[index])
    return bytes(fresh), copies


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
