"""What versions keep alive, counted by runs.

An object (a unit or a region) has one reference for each *run*: a longest row of neighbouring kept versions of one
session that all name it. A commit therefore touches only the objects that its parent does not name, however large the
state is; dropping a version touches only the objects whose runs change by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from looseleaf.errors import Corrupt
from looseleaf.services.checkpoint_store.core.keys import HASH_BYTES, region_key, unit_key

if TYPE_CHECKING:
    from looseleaf.checkpoint.manifest import Manifest

_LENGTH_BYTES: Final = 4
_NOTHING: Final[frozenset[bytes]] = frozenset()


@dataclass(frozen=True, slots=True)
class VersionRefs:
    """What one version names: hashes of its inline units, and its regions with their lengths in bytes."""

    units: frozenset[bytes] = frozenset()
    regions: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def of(cls, manifest: Manifest) -> VersionRefs:
        """What a manifest names."""
        regions = {ref.region_id: ref.length_bytes for ref in manifest.region_refs()}
        return cls(frozenset(manifest.unit_hashes()), regions)

    def objects(self, tenant: bytes) -> frozenset[bytes]:
        """The keys of all that it names, as a tenant's version."""
        units = [unit_key(tenant, unit_hash) for unit_hash in self.units]
        return frozenset([*units, *(region_key(tenant, region_id) for region_id in self.regions)])

    def encode(self) -> bytes:
        """Number of units, their hashes, then each region's id and length; 16 to 20 bytes an object."""
        regions = b"".join([key + length.to_bytes(_LENGTH_BYTES, "big") for key, length in self.regions.items()])
        return len(self.units).to_bytes(4, "big") + b"".join(self.units) + regions

    @classmethod
    def decode(cls, data: bytes) -> VersionRefs:
        """Raises Corrupt `INDEX_CORRUPT` for bytes that `encode` did not make."""
        end = 4 + int.from_bytes(data[:4], "big") * HASH_BYTES
        step = HASH_BYTES + _LENGTH_BYTES
        if len(data) < max(4, end) or (len(data) - end) % step:
            raise Corrupt("INDEX_CORRUPT", "the list of what a version names cannot be read")
        units = frozenset(data[at : at + HASH_BYTES] for at in range(4, end, HASH_BYTES))
        regions = {
            data[at : at + HASH_BYTES]: int.from_bytes(data[at + HASH_BYTES : at + step], "big")
            for at in range(end, len(data), step)
        }
        return cls(units, regions)


def released_by_drop(
    before: AbstractSet[bytes], victim: AbstractSet[bytes], after: AbstractSet[bytes]
) -> AbstractSet[bytes]:
    """Objects that lose one reference when `victim`, between its kept neighbours (empty sets for none), is dropped.

    Those that only the victim names lose their run; those that both neighbours name but the victim does not have two
    runs that become one.
    """
    return (victim - before - after) | ((before & after) - victim)


def released_by_drops(chain: Sequence[tuple[int, AbstractSet[bytes]]], drops: AbstractSet[int]) -> Counter[bytes]:
    """References that objects lose when the versions `drops` leave `chain`.

    `chain`: the kept versions, ascending, each with what it names.
    """
    released: Counter[bytes] = Counter()
    kept = list(chain)
    for version in sorted(drops):
        at = next(index for index, (number, _) in enumerate(kept) if number == version)
        before = kept[at - 1][1] if at else _NOTHING
        after = kept[at + 1][1] if at + 1 < len(kept) else _NOTHING
        released.update(released_by_drop(before, kept[at][1], after))
        del kept[at]
    return released


def count_runs(chain: Iterable[AbstractSet[bytes]]) -> Counter[bytes]:
    """References of each object by one session's kept versions, counted afresh: what the index must agree with."""
    runs: Counter[bytes] = Counter()
    before: AbstractSet[bytes] = _NOTHING
    for objects in chain:
        runs.update(objects - before)
        before = objects
    return runs
