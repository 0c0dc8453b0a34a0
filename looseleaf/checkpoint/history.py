"""Versions of a session side by side: what changed between two, what a version holds, an old one made the newest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from looseleaf.checkpoint.lazy import without_lost
from looseleaf.checkpoint.manifest import Manifest, UnitHeader, Unsaved
from looseleaf.ids import Epoch, ExecutionId, PayloadId, SessionId, UnitId, Version

_CHECKOUT: Final = "checkout of "


@dataclass(frozen=True, slots=True)
class Change:
    """One variable that two versions tell differently. `before`, `after`: what can be told of its value, if any.

    `moved_bytes`: bytes of the later value that the earlier version did not hold; of memory, whole regions.
    """

    name: str
    kind: Literal["added", "removed", "changed", "unsaved", "saved again"]
    before: UnitHeader | None
    after: UnitHeader | None
    moved_bytes: int = 0
    why_unsaved: Unsaved | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes that a variable reaches, and of those the ones that no other variable of the version reaches."""

    name: str
    header: UnitHeader
    reached_bytes: int
    own_bytes: int


def changes(old: Manifest, new: Manifest) -> list[Change]:
    """What `new` tells differently, by name. A variable has changed if anything that it reaches has."""
    unsaved_old = {entry.name: entry for entry in old.unsaved if not entry.is_place}
    unsaved_new = {entry.name: entry for entry in new.unsaved if not entry.is_place}
    known = _content_ids(old)
    found = []
    for name in sorted({*old.roots, *new.roots, *unsaved_old, *unsaved_new}):
        before, after = _header(old, name), _header(new, name)
        if name in unsaved_new:
            if name not in unsaved_old:
                found.append(Change(name, "unsaved", before, None, why_unsaved=unsaved_new[name]))
        elif name in unsaved_old:
            kind: Literal["removed", "saved again"] = "removed" if after is None else "saved again"
            found.append(Change(name, kind, None, after, _moved_bytes(new, name, known)))
        elif before is None:
            found.append(Change(name, "added", None, after, _moved_bytes(new, name, known)))
        elif after is None:
            found.append(Change(name, "removed", before, None))
        elif differ(old, new, name):
            found.append(Change(name, "changed", before, after, _moved_bytes(new, name, known)))
    return found


def usage(manifest: Manifest) -> list[Usage]:
    """Every saved variable, the largest first. Shared memory counts for each variable that reaches it."""
    reached = {name: _pieces(manifest, name) for name in manifest.roots}
    users: dict[tuple[str, int], int] = {}
    for pieces in reached.values():
        for piece in pieces:
            users[piece] = users.get(piece, 0) + 1
    found = [
        Usage(
            name, manifest.units[manifest.roots[name]].header, sum(pieces.values()),
            sum(size for piece, size in pieces.items() if users[piece] == 1),
        )
        for name, pieces in reached.items()
    ]  # fmt: skip
    return sorted(found, key=lambda entry: (-entry.reached_bytes, entry.name))


def made_newest(
    old: Manifest, head: Manifest, *, session_id: SessionId, epoch: Epoch, execution_id: ExecutionId, now_unix_ms: int
) -> Manifest:
    """The content of `old`, of this or another session, as the version after `head`.

    What `head` has and `old` lacks is deleted by it. Variables of which `old` lacks bytes are unsaved in it, unless
    `head` lacks the very same ones. Ids stay as they were: each names what `old` says it is.
    """
    gone = [*head.tombstones, *(name for name in head.roots if name not in old.roots)]
    here = head.payloads if old.session_id == session_id else {}
    old = without_lost(old, here)
    unsaved = {entry.name for entry in old.unsaved}
    return replace(
        old,
        session_id=session_id, version=Version(head.version + 1), parent=head.version, epoch=epoch,
        execution_id=execution_id, created_unix_ms=now_unix_ms, next_id=max(old.next_id, head.next_id),
        label=f"{_CHECKOUT}{old.session_id}@{old.version}",
        tombstones=tuple(name for name in dict.fromkeys(gone) if name not in old.roots and name not in unsaved),
    )  # fmt: skip


def checked_out_version(manifest: Manifest) -> int:
    """The version of its own session that it makes the newest again; 0 if it was not made so."""
    made_from, _at, version = manifest.label.removeprefix(_CHECKOUT).rpartition("@")
    is_own = manifest.label.startswith(_CHECKOUT) and made_from == manifest.session_id
    return int(version) if is_own and version.isdecimal() else 0


def _header(manifest: Manifest, name: str) -> UnitHeader | None:
    unit_id = manifest.roots.get(name)
    return None if unit_id is None else manifest.units[unit_id].header


def content_of(manifest: Manifest, head: UnitId) -> tuple[object, ...]:
    """Equal in two versions if and only if the unit `head` and all that it reaches are."""
    units, payloads = _reached(manifest, head)
    return (
        head,
        {unit_id: manifest.units[unit_id].hash for unit_id in units},
        {payload_id: manifest.payloads[payload_id] for payload_id in payloads},
    )


def differ(old: Manifest, new: Manifest, name: str) -> bool:
    """Whether a variable of `old` is another in `new`, or none."""
    return name not in new.roots or content_of(old, old.roots[name]) != content_of(new, new.roots[name])


def _reached(manifest: Manifest, head: UnitId) -> tuple[set[UnitId], set[PayloadId]]:
    units = manifest.reachable_units([head])
    return units, {payload_id for unit_id in units for payload_id in manifest.units[unit_id].header.payloads}


def _pieces(manifest: Manifest, name: str) -> Mapping[tuple[str, int], int]:
    """Bytes of each unit and payload that a variable reaches."""
    units, payloads = _reached(manifest, manifest.roots[name])
    sizes = {("unit", int(unit_id)): manifest.units[unit_id].size_bytes for unit_id in units}
    sizes.update({("payload", int(some_id)): manifest.payloads[some_id].size_bytes for some_id in payloads})
    return sizes


def _content_ids(manifest: Manifest) -> set[bytes]:
    return {ref.region_id for ref in manifest.region_refs()} | {entry.hash for entry in manifest.units.values()}


def _moved_bytes(manifest: Manifest, name: str, known: set[bytes]) -> int:
    if name not in manifest.roots:
        return 0
    units, payloads = _reached(manifest, manifest.roots[name])
    fresh: dict[bytes, int] = {}
    for unit_id in units:
        entry = manifest.units[unit_id]
        if entry.hash not in known and not entry.regions:
            fresh[entry.hash] = entry.size_bytes
    lists = [manifest.units[unit_id].regions for unit_id in units] + [manifest.payloads[p].regions for p in payloads]
    for regions in lists:
        fresh.update({ref.region_id: ref.length_bytes for ref in regions if ref.region_id not in known})
    return sum(fresh.values())
