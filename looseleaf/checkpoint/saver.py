"""From captured state to a committed version: hash, compare, move what is new, commit (design §3: Save)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from looseleaf.checkpoint.capture import Captured
from looseleaf.checkpoint.code_names import names_read_by
from looseleaf.checkpoint.device_hashes import DeviceHashes
from looseleaf.checkpoint.drafts import Draft, header_of
from looseleaf.checkpoint.lazy import Budget
from looseleaf.checkpoint.manifest import (
    ALGORITHM_XXH3,
    Manifest,
    PayloadEntry,
    RegionList,
    RegionRef,
    UnitEntry,
    decode_manifest,
    encode_manifest,
    region_ids,
)
from looseleaf.checkpoint.memory import Block
from looseleaf.checkpoint.paranoid import Shadows
from looseleaf.checkpoint.payload_hashes import Hashed, hash_blocks, hash_bytes
from looseleaf.checkpoint.session_size import session_full
from looseleaf.checkpoint.state_io import StateIO
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import CapacityExceeded, Corrupt, Timeout, Unavailable
from looseleaf.ids import PayloadId, UnitId, Version
from looseleaf.units import INLINE_UNIT_BYTES_MAX, REGION_BYTES


@dataclass
class Moves:
    """What a version needs in the store that its parent did not have.

    What gives a region's bytes can be called while the capture lives; it may have to bring them from a GPU.
    """

    regions: dict[bytes, tuple[RegionRef, Callable[[], memoryview]]] = field(default_factory=dict)
    units: dict[bytes, bytes] = field(default_factory=dict)
    dirty_regions: int = 0
    total_regions: int = 0
    bytes_moved: int = 0
    units_written: int = 0


class VersionBuilder:
    """The unit and payload tables of a new version on top of `base`."""

    def __init__(
        self, base: Manifest, captured: Captured, device_hashes: DeviceHashes, *, copy_dirty: bool = False,
        shadows: Shadows | None = None,
    ) -> None:  # fmt: skip
        self._base = base
        self._shadows = shadows
        # Paranoid saves read all memory.
        on_device = partial(device_hashes.hashed, hold_all=copy_dirty)
        self._on_device = on_device if shadows is None else lambda blocks: [None] * len(blocks)
        self._captured = captured
        self._copy_dirty = copy_dirty
        self._known_hashes = {entry.hash for entry in base.units.values() if not entry.regions}
        self._blocks = {block.payload_id: block for block in captured.payloads if block.payload_id is not None}
        self._payload_ids = self._blocks.keys() | base.payloads.keys()
        self.moves = Moves()
        self.units: dict[UnitId, UnitEntry] = {}
        self.payloads: dict[PayloadId, PayloadEntry] = {}
        # For `Shadows.publish`, where there are some.
        self.checked: dict[PayloadId, Hashed] = {}

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
        wanted: dict[PayloadId, Block] = {}
        others: dict[PayloadId, Block] = {}
        for payload_id in payload_ids:
            block = self._blocks.get(payload_id)
            if block is None:
                found[payload_id] = self._base.payloads[payload_id]
            # Memory that pickling itself makes cannot be kept: with the pickler it is gone.
            elif needed is None or payload_id in needed or block.is_late:
                wanted[payload_id] = block
            else:
                others[payload_id] = block
        for payload_id, hashed in self._hash(wanted):
            found[payload_id] = self._complete(payload_id, wanted[payload_id], hashed)
        if others:
            found.update(self._payloads_within(budget, others))
        self.payloads = {payload_id: found[payload_id] for payload_id in payload_ids}

    def _payloads_within(self, budget: Budget, blocks: Mapping[PayloadId, Block]) -> dict[PayloadId, PayloadEntry]:
        """Complete entries of those that fit into the budget, lazy ones of the others."""
        found: dict[PayloadId, PayloadEntry] = {}
        to_hash: dict[PayloadId, Block] = {}
        # Small ones first: as many as can be are complete.
        for payload_id, block in sorted(blocks.items(), key=lambda item: item[1].size_bytes):
            is_new = not self._comparable_ids(payload_id, block)
            if budget.may_hash(block.size_bytes) and (not is_new or budget.may_move(block.size_bytes)):
                to_hash[payload_id] = block
            else:
                found[payload_id] = self._lazy(block)
        for payload_id, hashed in self._hash(to_hash):
            block = to_hash[payload_id]
            is_new = not self._comparable_ids(payload_id, block)
            if is_new or budget.may_move(len(hashed.dirty) * REGION_BYTES):
                found[payload_id] = self._complete(payload_id, block, hashed)
            else:
                found[payload_id] = self._lazy(block)
        return found

    def _lazy(self, block: Block) -> PayloadEntry:
        version = Version(self._base.version + 1)
        return PayloadEntry(block.kind, block.device, block.size_bytes, ALGORITHM_XXH3, REGION_BYTES, (), version)

    def _comparable_ids(self, payload_id: PayloadId, block: Block) -> bytes:
        """Ids of the regions that the base has of this payload, cut as they are now; else none."""
        old = self._base.payloads.get(payload_id)
        comparable = old is not None and old.size_bytes == block.size_bytes and old.region_bytes == REGION_BYTES
        return region_ids(old.regions) if old is not None and comparable else b""

    def _hash(self, blocks: Mapping[PayloadId, Block]) -> Iterator[tuple[PayloadId, Hashed]]:
        with_ids = [(block, self._comparable_ids(payload_id, block)) for payload_id, block in blocks.items()]
        all_found = hash_blocks(with_ids, self._on_device)
        for payload_id, (block, last), found in zip(blocks, with_ids, all_found, strict=True):
            hashed = found if self._shadows is None else self._shadows.checked(payload_id, block, found, last)
            hashed = hashed.with_copies() if self._copy_dirty else hashed
            if self._shadows is not None:
                self.checked[payload_id] = hashed
            yield payload_id, hashed

    def _complete(self, payload_id: PayloadId, block: Block, hashed: Hashed) -> PayloadEntry:
        refs = RegionList(hashed.ids, hashed.size_bytes, REGION_BYTES)
        self.moves.total_regions += len(refs)
        self.moves.dirty_regions += len(hashed.dirty)
        self._move_regions(refs, hashed)
        old = self._base.payloads.get(payload_id)
        made = PayloadEntry(block.kind, block.device, hashed.size_bytes, ALGORITHM_XXH3, REGION_BYTES, refs)
        return old if old == made else made

    def _unit(self, unit_id: UnitId, draft: Draft) -> UnitEntry:
        header = header_of(draft, self.payloads)
        old = self._base.units.get(unit_id)
        unit_hash = hash128(draft.data)
        if old is not None and old.hash == unit_hash and old.size_bytes == len(draft.data):
            return old if old.header == header else replace(old, header=header)
        self.moves.units_written += 1
        regions: Sequence[RegionRef] = ()
        if len(draft.data) >= INLINE_UNIT_BYTES_MAX:
            data = memoryview(draft.data)
            hashed = hash_bytes(data, region_ids(old.regions) if old is not None else b"")
            regions = RegionList(hashed.ids, len(data), REGION_BYTES)
            self._move_regions(regions, hashed)
        elif unit_hash not in self._known_hashes:
            self.moves.units[unit_hash] = draft.data
        return UnitEntry(unit_hash, len(draft.data), regions, header)

    def _move_regions(self, refs: RegionList, hashed: Hashed) -> None:
        for index in hashed.dirty:
            ref = refs[index]
            self.moves.regions.setdefault(ref.region_id, (ref, partial(hashed.region, index)))


def move(io: StateIO, moves: Moves, session_bytes: int) -> None:
    """Puts what the store lacks; counts the bytes. Raises what the StateIO raises, nothing is committed then."""
    items = list(moves.regions.values())
    missing = io.have_regions([ref for ref, _ in items], session_bytes) if items else []
    if missing:
        io.put_regions(_counted(moves, (items[index] for index in missing)))
    if moves.units:
        io.put_units(moves.units.items())
        moves.bytes_moved += sum(map(len, moves.units.values()))


def _counted(
    moves: Moves, items: Iterable[tuple[RegionRef, Callable[[], memoryview]]]
) -> Iterator[tuple[RegionRef, memoryview]]:
    for ref, read in items:
        data = read()
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


def with_retry(
    build: Callable[[bool], tuple[VersionBuilder, Manifest]], io: StateIO
) -> tuple[VersionBuilder, Manifest]:
    """Makes the moves of what `build(copy_dirty)` gives; with copies if memory changed meanwhile.

    Raises what the StateIO raises; `SESSION_FULL` with the largest variables.
    """
    builder, manifest = build(False)
    try:
        _move_or_explain(io, builder.moves, manifest)
    except Corrupt:
        builder, manifest = build(True)
        _move_or_explain(io, builder.moves, manifest)
    return builder, manifest


def _move_or_explain(io: StateIO, moves: Moves, manifest: Manifest) -> None:
    """As `move`; `SESSION_FULL` names the largest variables, which only the saver knows."""
    try:
        move(io, moves, manifest.logical_bytes())
    except CapacityExceeded as error:
        bytes_max = error.fields.get("available_bytes")
        if error.reason != "SESSION_FULL" or type(bytes_max) is not int:
            raise
        raise session_full(manifest.logical_bytes(), bytes_max, manifest) from None


def same_state(old: Manifest, new: Manifest) -> bool:
    """True if `new` would be `old` over again."""
    def content(m: Manifest) -> tuple[Any, ...]:
        plain: Mapping[str, UnitId] = dict(m.roots)
        return (list(plain.items()), dict(m.units), dict(m.payloads), m.process_state, m.tombstones, m.unsaved)

    return content(old) == content(new)
