"""Payloads whose bytes the session's kernel has kept to itself for now (design §3).

A GPU cell waits for the commit of what it needs. Large memory that it does not need is entered in the manifest without
its bytes: it is *lazy*, and the kernel is the only process that has it. The kernel keeps that memory alive even where
its own variable became a stub, and puts the bytes with its next full commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from looseleaf.checkpoint.components import closed_under
from looseleaf.checkpoint.manifest import Manifest, PayloadEntry, UnitEntry, Unsaved
from looseleaf.ids import PayloadId, UnitId
from looseleaf.units import MIB

# What a cell waits for although it needs none of it: some 10 ms of hashing and some 30 ms of copying.
LAZY_HASH_BYTES_MAX: Final = 256 * MIB
LAZY_MOVE_BYTES_MAX: Final = 64 * MIB

NOT_COMMITTED: Final = "NOT_COMMITTED"


@dataclass
class Budget:
    """How many bytes that nobody needs now may still be hashed and moved."""

    hash_bytes: int = LAZY_HASH_BYTES_MAX
    move_bytes: int = LAZY_MOVE_BYTES_MAX

    def may_hash(self, size_bytes: int) -> bool:
        """Whether so many more fit; if they do they are taken off."""
        fits = size_bytes <= self.hash_bytes
        self.hash_bytes -= size_bytes if fits else 0
        return fits

    def may_move(self, size_bytes: int) -> bool:
        """As `may_hash`."""
        fits = size_bytes <= self.move_bytes
        self.move_bytes -= size_bytes if fits else 0
        return fits


def not_committed(name: str, since_version: int = 0) -> Unsaved:
    """The entry of a variable whose lazy bytes nobody has any more."""
    text = (
        "its bytes were in the memory of the session's kernel alone, which ended or went to another version before it "
        "committed them; an earlier version may have an earlier value"
    )
    return Unsaved(name, NOT_COMMITTED, name, text, since_version)


def names_reaching(
    roots: Mapping[str, UnitId], units: Mapping[UnitId, UnitEntry], payload_ids: Collection[PayloadId]
) -> list[str]:
    """The variables whose value refers to one of these payloads, in the order of `roots`."""
    wanted = set(payload_ids)
    origins = {unit_id: unit_id for unit_id, entry in units.items() if not wanted.isdisjoint(entry.header.payloads)}
    reached = closed_under(origins, units, lambda unit_id: units[unit_id].header.refs)
    return [name for name, unit_id in roots.items() if unit_id in reached]


def lazy_names(manifest: Manifest) -> list[str]:
    """The variables of which bytes are lazy."""
    lazy = [payload_id for payload_id, entry in manifest.payloads.items() if entry.is_lazy]
    return names_reaching(manifest.roots, manifest.units, lazy) if lazy else []


def without_lost(manifest: Manifest, kept: Mapping[PayloadId, PayloadEntry]) -> Manifest:
    """`manifest` where nobody has its lazy bytes, except those that `kept` lists alike.

    Variables that lack bytes are unsaved in it.
    """
    lost = [i for i, entry in manifest.payloads.items() if entry.is_lazy and kept.get(i) != entry]
    names = names_reaching(manifest.roots, manifest.units, lost) if lost else []
    if not names:
        return manifest
    roots = {name: unit_id for name, unit_id in manifest.roots.items() if name not in names}
    heads = list(roots.values()) + ([] if manifest.process_state is None else [manifest.process_state])
    units = {unit_id: manifest.units[unit_id] for unit_id in sorted(manifest.reachable_units(heads))}
    return replace(
        manifest, roots=roots, units=units, payloads=_payloads_of(manifest, units.values()),
        unsaved=(*manifest.unsaved, *(not_committed(name, manifest.version) for name in names)),
    )  # fmt: skip


def _payloads_of(manifest: Manifest, units: Iterable[UnitEntry]) -> dict[PayloadId, PayloadEntry]:
    named = {payload_id for entry in units for payload_id in entry.header.payloads}
    return {payload_id: manifest.payloads[payload_id] for payload_id in sorted(named)}
