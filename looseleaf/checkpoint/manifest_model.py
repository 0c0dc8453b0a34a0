"""The immutable index of one version of a session's state (§3.2), as plain values.

A manifest maps variables to units (stored pickles), units to the units and payloads that they refer to, and payloads to
the regions that hold their bytes. Nothing here needs torch, numpy or the user's classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, overload

from looseleaf.ids import CellId, Epoch, ExecutionId, PayloadId, SessionId, UnitId, Version
from looseleaf.units import KIB, MIB

# A frame of the worker protocol holds 32 MiB; a manifest must fit in one with room for the request around it.
MANIFEST_BYTES_MAX: Final = 16 * MIB
# Variables of one session.
NAMES_MAX: Final = 100_000
# Objects shared between variables, and the variables' own values: more than there may be variables.
UNITS_MAX: Final = 120_000
# Memory blocks of at least 64 KiB.
PAYLOADS_MAX: Final = 100_000
# Regions over all payloads and units: 1 TiB of state.
REGIONS_MAX: Final = 512 * KIB
# One stored pickle.
UNIT_BYTES_MAX: Final = 512 * MIB
# What a person sees of a value that is not loaded.
PREVIEW_CHARS_MAX: Final = 200
# Any single text inside a manifest.
TEXT_CHARS_MAX: Final = 4 * KIB

HASH_BYTES: Final = 16
# Region and unit hashes: XXH3-128, seed 0. Device payloads of a CUDA build use "nh4" (design §7).
ALGORITHM_XXH3: Final = "xxh3-128"

Flag = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class RegionRef:
    """Names the bytes of one region by content: 16 bytes XXH3-128 and the length in bytes (at most 2 MiB)."""

    region_id: bytes
    length_bytes: int


class RegionList(Sequence[RegionRef]):
    """RegionRefs from their concatenated 16-byte ids; each is made when it is asked for.

    Region i covers bytes [i * region_bytes, min((i + 1) * region_bytes, size_bytes)). A state has hundreds of them, and
    most saves and restores need no more of them than the ids in a row.
    """

    __slots__ = ("ids", "region_bytes", "size_bytes")

    def __init__(self, ids: bytes, size_bytes: int, region_bytes: int) -> None:
        count = -(-size_bytes // region_bytes)
        if len(ids) != count * HASH_BYTES:
            raise ValueError(f"{len(ids)} bytes of ids for {count} regions")
        self.ids = ids
        self.size_bytes = size_bytes
        self.region_bytes = region_bytes

    def __len__(self) -> int:
        return len(self.ids) // HASH_BYTES

    @overload
    def __getitem__(self, index: int) -> RegionRef: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RegionRef, ...]: ...
    def __getitem__(self, index: int | slice) -> RegionRef | tuple[RegionRef, ...]:
        """One RegionRef, or a tuple of some."""
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        place = range(len(self))[index]
        start = place * self.region_bytes
        length = min(self.region_bytes, self.size_bytes - start)
        return RegionRef(self.ids[place * HASH_BYTES : (place + 1) * HASH_BYTES], length)

    def __iter__(self) -> Iterator[RegionRef]:
        return (RegionRef(region_id, length) for region_id, length in self.rows())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RegionList):
            mine = (self.ids, self.size_bytes, self.region_bytes)
            return mine == (other.ids, other.size_bytes, other.region_bytes)
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def rows(self) -> list[tuple[bytes, int]]:
        """(id, length in bytes) of each, as messages name regions."""
        ids, full = self.ids, self.region_bytes
        found = [(ids[at : at + HASH_BYTES], full) for at in range(0, len(ids), HASH_BYTES)]
        if found:
            found[-1] = (found[-1][0], self.size_bytes - (len(found) - 1) * full)
        return found


def region_ids(regions: Sequence[RegionRef]) -> bytes:
    """The ids in a row."""
    return regions.ids if isinstance(regions, RegionList) else b"".join(ref.region_id for ref in regions)


@dataclass(frozen=True, slots=True)
class UnitHeader:
    """What can be told of a unit without unpickling it (design §3).

    `refs`, `payloads`: ids of units and payloads that this unit's pickle itself names (not transitively), ascending.
    `modules`: modules of the classes and functions of every object in the unit, and modules that it imports.
    `global_names`: session variables that code in the unit reads by name when it is called.
    `device_bytes`: bytes of `payloads` and of memory inside the pickle, by device: {"cpu": 4096, "cuda:0": 1 << 30}.
    `flag`: the value if it is a plain one, for recipes that evaluate `if use_cuda:`; `has_flag`: it is one.
    `session_classes`: names of classes defined in the session that objects of this unit belong to.
    `notes`: what was kept only in part, as "REASON path", such as "GRAPH_NOT_CARRIED loss".
    """

    refs: tuple[UnitId, ...] = ()
    payloads: tuple[PayloadId, ...] = ()
    modules: tuple[str, ...] = ()
    global_names: tuple[str, ...] = ()
    kind: str = "value"
    type_name: str = ""
    type_module: str = ""
    preview: str = ""
    length: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    device: str | None = None
    device_bytes: Mapping[str, int] = field(default_factory=dict)
    flag: Flag = None
    has_flag: bool = False
    session_classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitEntry:
    """One stored pickle: XXH3-128 of its bytes, their number, and its regions (empty: stored inline, below 1 MiB)."""

    hash: bytes
    size_bytes: int
    regions: Sequence[RegionRef]
    header: UnitHeader


@dataclass(frozen=True, slots=True)
class PayloadEntry:
    """One block of memory outside the object graph.

    `kind`: "memory" (tensors, arrays), "bytes" or "bytearray". `device`: where it lived, such as "cpu" or "cuda:0".
    Region i covers bytes [i * region_bytes, min((i + 1) * region_bytes, size_bytes)).
    `lazy_at`: 0, or the version at which the session's kernel kept the bytes to itself; then there are no regions.
    """

    kind: str
    device: str
    size_bytes: int
    algorithm: str
    region_bytes: int
    regions: Sequence[RegionRef]
    lazy_at: Version = Version(0)

    @property
    def is_lazy(self) -> bool:
        """True if the store does not have its bytes."""
        return self.lazy_at > 0


@dataclass(frozen=True, slots=True)
class Unsaved:
    """A variable whose value stayed where it is: `reason` is a stable UPPER_SNAKE word, `path` leads to the culprit.

    `detail` is the sentence for the person. `since_version`: the first version that lacks the value; a holder that has
    the live value of an entry with another number has an older one. A secret of the environment, or the process state,
    has a name that no variable can have.
    """

    name: str
    reason: str
    path: str
    detail: str = ""
    since_version: int = 0

    @property
    def is_place(self) -> bool:
        """True if this is no variable."""
        return not self.name.isidentifier()


@dataclass(frozen=True, slots=True)
class Closure:
    """What some variables need: `names` (with those that their code reads), units and payloads, ascending.

    `missing`: asked names that this version does not know. `unsaved`: needed names whose value was never saved.
    """

    names: tuple[str, ...]
    units: tuple[UnitId, ...]
    payloads: tuple[PayloadId, ...]
    missing: tuple[str, ...]
    unsaved: tuple[Unsaved, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a session's state. `next_id` exceeds every unit and payload id ever given out in the session."""

    session_id: SessionId
    version: Version = Version(0)
    parent: Version = Version(0)
    epoch: Epoch = Epoch(0)
    execution_id: ExecutionId = ExecutionId("")
    created_unix_ms: int = 0
    label: str = ""
    next_id: int = 1
    roots: Mapping[str, UnitId] = field(default_factory=dict)
    units: Mapping[UnitId, UnitEntry] = field(default_factory=dict)
    payloads: Mapping[PayloadId, PayloadEntry] = field(default_factory=dict)
    process_state: UnitId | None = None
    tombstones: tuple[str, ...] = ()
    unsaved: tuple[Unsaved, ...] = ()
    cell_source_hash: bytes = b""
    cell_id: CellId = CellId("")

    def reachable_units(self, heads: Iterable[UnitId]) -> set[UnitId]:
        """Ids of the units that `heads` reach by reference, themselves included."""
        seen: set[UnitId] = set()
        todo = list(heads)
        while todo:
            unit_id = todo.pop()
            if unit_id not in seen:
                seen.add(unit_id)
                todo.extend(self.units[unit_id].header.refs)
        return seen

    def closure(self, names: Iterable[str], *, follow_globals: bool = True) -> Closure:
        """All that `names` need in order to be used: references, payloads and, transitively, globals of their code."""
        asked = list(dict.fromkeys(names))
        unsaved_by_name = {entry.name: entry for entry in self.unsaved}
        found: dict[str, None] = {}
        unsaved: dict[str, Unsaved] = {}
        units: set[UnitId] = set()
        todo = list(reversed(asked))
        while todo:
            name = todo.pop()
            if name in unsaved_by_name:
                unsaved[name] = unsaved_by_name[name]
            if name in found or name not in self.roots:
                continue
            found[name] = None
            for unit_id in sorted(self.reachable_units([self.roots[name]]) - units):
                units.add(unit_id)
                if follow_globals:
                    todo.extend(reversed(self.units[unit_id].header.global_names))
        payloads = {payload_id for unit_id in units for payload_id in self.units[unit_id].header.payloads}
        missing = tuple(name for name in asked if name not in self.roots)
        return Closure(tuple(found), tuple(sorted(units)), tuple(sorted(payloads)), missing, tuple(unsaved.values()))

    def names_of_process(self, *, with_devices: bool) -> list[str]:
        """Variables that code of the process state, such as a function set in a module, reads when it is called."""
        if self.process_state is None:
            return []
        units = self.reachable_units([self.process_state])
        found = sorted({n for u in units for n in self.units[u].header.global_names if n in self.roots})
        return [name for name in found if with_devices or not self.lives_on_device([name])]

    def lives_on_device(self, names: Iterable[str]) -> bool:
        """Whether `names`, in order to be used, need memory of a device."""
        return any(self.payloads[payload_id].device != "cpu" for payload_id in self.closure(names).payloads)

    def region_refs(self) -> Iterator[RegionRef]:
        """Every region that this version needs, each distinct one once."""
        seen: set[bytes] = set()
        lists = [entry.regions for entry in self.payloads.values()] + [entry.regions for entry in self.units.values()]
        for regions in lists:
            for ref in regions:
                if ref.region_id not in seen:
                    seen.add(ref.region_id)
                    yield ref

    def unit_hashes(self) -> Iterator[bytes]:
        """Hashes of the units stored inline, each distinct one once."""
        seen: set[bytes] = set()
        for entry in self.units.values():
            if not entry.regions and entry.hash not in seen:
                seen.add(entry.hash)
                yield entry.hash

    def logical_bytes(self) -> int:
        """Bytes of all payloads and units that the store holds, as if nothing were shared with other versions."""
        payload_bytes = sum(entry.size_bytes for entry in self.payloads.values() if not entry.is_lazy)
        return payload_bytes + sum(entry.size_bytes for entry in self.units.values())

    def lazy_bytes(self) -> int:
        """Bytes that only the session's kernel holds."""
        return sum(entry.size_bytes for entry in self.payloads.values() if entry.is_lazy)

    def lacks_bytes_of(self, names: Iterable[str] | None) -> bool:
        """Whether `names` (None: all) need, in order to be used, bytes that only the session's kernel holds."""
        if names is None or not self.lazy_bytes():
            return self.lazy_bytes() > 0
        return any(self.payloads[payload_id].is_lazy for payload_id in self.closure(names).payloads)
