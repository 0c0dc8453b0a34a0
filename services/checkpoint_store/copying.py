"""A copy of all durable versions of one store in another: a backup, and the way back.

The copy is a store of its own, with counts of its own. Both collectors pause meanwhile, so that nothing which a version
names goes away; commits go on. A session is there as it was at the moment when its turn came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from looseleaf.errors import InvalidArgument, NotFound, PreconditionFailed
from looseleaf.kv import Batch
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.references import VersionRefs, count_runs
from looseleaf.services.checkpoint_store.core.rows import RegionRow, SessionRow, UnitRow, VersionRow
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.store import Store

T = TypeVar("T")
# What is in memory at once.
REGIONS_AT_ONCE: Final = 16
UNITS_AT_ONCE: Final = 64


@dataclass
class Copied:
    """`behind`: (session, its newest version, the newest one copied) where the newest is not durable yet."""

    sessions: int = 0
    versions: int = 0
    units: int = 0
    regions: int = 0
    behind: list[tuple[str, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class _Kept:
    """One version as it goes into the copy."""

    version: int
    row: VersionRow
    manifest: bytes
    refs: VersionRefs


def check_backup_folder(folder: str, *, empty: bool) -> Path:
    """Raises InvalidArgument `BACKUP_FOLDER` unless it is an absolute path, to a folder without or with a backup."""
    path = Path(folder)
    if not path.is_absolute():
        raise InvalidArgument("BACKUP_FOLDER", f"{folder!r} is no absolute path on the store's machine")
    if empty and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidArgument("BACKUP_FOLDER", f"{folder} is not empty; nothing was copied: name a new folder")
    if not empty and not (path / "index").is_dir():
        raise InvalidArgument("BACKUP_FOLDER", f"{folder} holds no backup of a store; nothing was copied")
    return path


def copy_durable(source: Store, target: Store) -> Copied:
    """Copies every session's durable versions with all that they name; `target` must have no session.

    Raises PreconditionFailed `STORE_NOT_EMPTY`, CapacityExceeded `STORE_FULL` or `DISK_FULL`, Corrupt
    `CHECKSUM_MISMATCH`. A session is in the target whole or not at all; what else was copied by then is collected.
    """
    if target.sessions.count:
        text = f"the store to copy into has {target.sessions.count} sessions; nothing was copied: use an empty store"
        raise PreconditionFailed("STORE_NOT_EMPTY", text)
    copied = Copied()
    with source.collector.paused(), target.collector.paused():
        for session_id, _ in list(source.index.sessions()):
            try:
                session, kept = _durable_versions(source, session_id)
            except NotFound:
                # Deleted since the list was made.
                continue
            head = kept[-1].version if kept else 0
            if head != session.version:
                copied.behind.append((session_id, session.version, head))
            if kept:
                with target.index.lock:
                    tenant = target.tenants.make(source.tenants.name(session.tenant))
                _copy_objects(source, target, session.tenant, tenant, kept, copied)
                _enter(target, session_id, replace(session, tenant=tenant), kept)
                copied.sessions += 1
                copied.versions += len(kept)
    target.index.kv.flush()
    return copied


def _durable_versions(source: Store, session_id: str) -> tuple[SessionRow, list[_Kept]]:
    index = source.index
    kept = []
    with index.lock:
        session = index.session(session_id)
        for entry in index.chain(session_id):
            manifest = index.kv.get(keys.version_key(keys.MANIFEST, session_id, entry.version))
            if entry.row.durable and manifest is not None:
                refs = index.refs(session_id, entry.version, entry.row)
                kept.append(_Kept(entry.version, entry.row, manifest, refs))
    return session, kept


def _copy_objects(
    source: Store, target: Store, tenant: bytes, its_key_there: bytes, kept: Sequence[_Kept], copied: Copied
) -> None:
    units = sorted({unit_hash for version in kept for unit_hash in version.refs.units})
    for some in _parts(units, UNITS_AT_ONCE):
        copied.units += target.units.put(list(zip(some, source.units.get(some, tenant), strict=True)), its_key_there)
    regions = {Region(*ref) for version in kept for ref in version.refs.regions.items()}
    upload = target.regions.begin_upload(its_key_there)
    try:
        for few in _parts(sorted(regions, key=lambda region: region.region_id), REGIONS_AT_ONCE):
            upload.add(list(zip(few, source.regions.get(few, tenant), strict=True)))
        copied.regions += upload.finish()
    except BaseException:
        upload.abort()
        raise


def _enter(target: Store, session_id: str, session: SessionRow, kept: Sequence[_Kept]) -> None:
    """One write: the session with all its versions and their references."""

    def fill(batch: Batch) -> None:
        for version in kept:
            for kind, value in (
                (keys.VERSION, version.row.encode()), (keys.MANIFEST, version.manifest),
                (keys.REFS, version.refs.encode()),
            ):  # fmt: skip
                batch.put(keys.version_key(kind, session_id, version.version), value)
        _add_references(target, batch, count_runs(version.refs.objects(session.tenant) for version in kept))

    head = kept[-1].version
    # Numbers of versions that are not in the copy will be given again: in a new epoch they mean something else.
    row = replace(session, epoch=session.epoch + 1, version=head, durable_version=head, fallback=None)
    target.sessions.enter(session_id, row, fill)


def _add_references(target: Store, batch: Batch, counts: Mapping[bytes, int]) -> None:
    for object_key, data in zip(counts, target.index.kv.multi_get(list(counts)), strict=True):
        assert data is not None, "it was put a moment ago and nothing is collected"
        row: UnitRow | RegionRow
        row = RegionRow.decode(data) if keys.is_region(object_key) else UnitRow.decode(data)
        batch.put(object_key, replace(row, refs=row.refs + counts[object_key]).encode())
        if row.refs == 0:
            batch.delete(keys.orphan_key(object_key))


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
