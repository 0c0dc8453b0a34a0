"""The rules of a commit: who may, on what, and what it changes in the index. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from looseleaf.errors import Conflict, InvalidArgument, PreconditionFailed
from looseleaf.services.checkpoint_store.core.rows import RegionRow, SessionRow, VersionRow

if TYPE_CHECKING:
    from looseleaf.checkpoint.manifest import Manifest

# How many missing objects an error names; the count is always exact.
NAMED_IN_ERROR_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """One asked-for commit. `manifest_hash` is XXH3-128 of the manifest's bytes; `host_id` may be empty."""

    session_id: str
    epoch: int
    parent: int
    execution_id: str
    host_id: str
    manifest_hash: bytes

    @property
    def version(self) -> int:
        """The number that the new version gets."""
        return self.parent + 1


def check_manifest(manifest: Manifest, request: CommitRequest) -> None:
    """Raises InvalidArgument `MANIFEST_MISMATCH` unless the manifest says the same as the request around it."""
    pairs = {
        "session_id": (manifest.session_id, request.session_id),
        "version": (manifest.version, request.version),
        "parent": (manifest.parent, request.parent),
        "epoch": (manifest.epoch, request.epoch),
        "execution_id": (manifest.execution_id, request.execution_id),
    }
    for name, (inside, outside) in pairs.items():
        if inside != outside:
            text = f"the manifest says {name} {inside!r}, the request {outside!r}; nothing was stored"
            raise InvalidArgument("MANIFEST_MISMATCH", text, field=name)


def is_repeat(request: CommitRequest, existing: VersionRow | None) -> bool:
    """Whether `existing`, the row of the version asked for, is this very commit: same execution, same bytes.

    True even if the session has moved on or its epoch has risen since: the commit did happen.
    """
    return (
        existing is not None
        and existing.parent == request.parent
        and existing.execution_id == request.execution_id
        and existing.manifest_hash == request.manifest_hash
    )


def check_commit(request: CommitRequest, session: SessionRow) -> None:
    """Raises unless the request comes from the session's present owner and changes its newest version.

    PreconditionFailed `STALE_EPOCH`: an owner that was fenced, or an epoch that was never given out. Conflict
    `MANIFEST_MOVED`: somebody else committed first, or the session fell back to an older version.
    """
    if request.epoch != session.epoch:
        text = f"this owner has epoch {request.epoch}, the session {session.epoch}; nothing was saved, open it again"
        raise PreconditionFailed("STALE_EPOCH", text, epoch=session.epoch, version=session.version)
    if request.parent != session.version:
        text = (
            f"this save changes version {request.parent}, but the newest is {session.version}; nothing was saved, "
            "read the newest version and save again"
        )
        raise Conflict("MANIFEST_MOVED", text, version=session.version, epoch=session.epoch)


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """What a commit changes in the rows of the regions that its parent does not name.

    `rows`: their new rows. `revived`: those that had no reference before. `held`: those newly known to be on the host.
    `durable`: all of them are on the store's disk.
    """

    rows: Mapping[bytes, RegionRow]
    revived: tuple[bytes, ...]
    held: tuple[bytes, ...]
    durable: bool


def plan_regions(added: Mapping[bytes, int], rows: Mapping[bytes, RegionRow | None], host_id: str) -> RegionPlan:
    """The plan for `added` (region id to length), whose present rows are `rows`.

    A region that the parent does not name was dirty in this save, so the committer's host holds it. Regions that the
    parent names are not said to be there: a partial restore carries them over without fetching them.
    Raises PreconditionFailed `REGIONS_UNKNOWN` if one would be located nowhere or has another length.
    """
    unknown = [
        region_id
        for region_id, length_bytes in added.items()
        if not _can_be_had(rows[region_id], length_bytes, host_id)
    ]
    if unknown:
        raise missing_error("REGIONS_UNKNOWN", "regions", unknown)
    planned: dict[bytes, RegionRow] = {}
    revived: list[bytes] = []
    held: list[bytes] = []
    durable = True
    for region_id, length_bytes in added.items():
        row = rows[region_id] or RegionRow(0, length_bytes, None, ())
        if row.refs == 0:
            revived.append(region_id)
        hosts = row.hosts
        if host_id and host_id not in hosts:
            hosts = (*hosts, host_id)
            held.append(region_id)
        durable = durable and row.on_disk
        planned[region_id] = replace(row, refs=row.refs + 1, hosts=hosts)
    return RegionPlan(planned, tuple(revived), tuple(held), durable)


def _can_be_had(row: RegionRow | None, length_bytes: int, host_id: str) -> bool:
    if row is None:
        return bool(host_id)
    return row.length_bytes == length_bytes and (row.located or bool(host_id))


def missing_error(reason: str, kind: str, missing: list[bytes]) -> PreconditionFailed:
    """The error for a manifest that names `missing` (at least one) objects that the store does not know."""
    named = [item.hex() for item in missing[:NAMED_IN_ERROR_MAX]]
    text = f"{len(missing)} {kind} of this version are not in the store, such as {named[0]}; put them and commit again"
    return PreconditionFailed(reason, text, missing=named, missing_count=len(missing))
