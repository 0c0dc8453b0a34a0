"""Mark and sweep over the whole index: does every count and every mark say what the kept versions say?

And a reading of all bytes: are they what their names say?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from looseleaf.checkpoint.manifest import decode_manifest
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import Corrupt, LooseLeafError, NotFound, Unavailable
from looseleaf.kv import scan_all
from looseleaf.logs import get_logger
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.references import VersionRefs, count_runs
from looseleaf.services.checkpoint_store.core.rows import RegionRow, UnitRow
from looseleaf.services.checkpoint_store.index import Chained, StoreIndex, split_release
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.store import Store

log = get_logger()

# Units or regions that are read between two reports.
READ_AT_ONCE: Final = 32


def verify_index(index: StoreIndex) -> list[str]:
    """Every way in which the index contradicts itself, one sentence each; empty for a sound one.

    Holds the index's lock throughout: for tests and for a store that is not in use.
    """
    with index.lock:
        return list(_problems(index))


def verify_bytes(store: Store) -> Iterator[tuple[int, list[str]]]:
    """Reads every unit and every region on the disk, part by part, beside the store's work.

    Yields (how many were looked at, what is damaged or cannot be read among them), one sentence each. What the disk
    does not give is not taken for damage: it may give it later. Raises as `Units.get` and `Regions.get` for what is
    neither, such as an index that fails or a codec that is not installed.
    """
    for start, kind in ((keys.UNIT, False), (keys.REGION, True)):
        page: list[bytes] = []
        for key, data in scan_all(store.index.kv, start):
            row = RegionRow.decode(data) if kind else None
            if row is None or row.written_slot is not None:
                page.append(key)
            if len(page) == READ_AT_ONCE:
                yield len(page), list(filter(None, (_damage(store, found) for found in page)))
                page = []
        yield len(page), list(filter(None, (_damage(store, found) for found in page)))


def _damage(store: Store, key: bytes) -> str | None:
    """What is wrong with a unit's or region's bytes. Any other error is raised."""
    tenant, name = keys.tenant_of(key), keys.hash_of(key)
    try:
        if not keys.is_region(key):
            store.units.get([name], tenant)
        else:
            row = store.index.region_rows(tenant, [name])[name]
            if row is not None:
                store.regions.get([Region(name, row.length_bytes)], tenant)
    except NotFound:
        # Collected since its row was listed, unless the row is there still.
        return _loss(store.index, key)
    except Corrupt as error:
        return error.message
    except Unavailable as error:
        if error.reason != "STORE_IO":
            raise
        log.error("region_unreadable", region=name.hex(), why=error.message)
        return f"region {name.hex()} cannot be read: {error.message}"
    return None


def _loss(index: StoreIndex, key: bytes) -> str | None:
    """What to say of an object that was not found. A region's slot is named by its row, so they go together."""
    bytes_key = keys.unit_bytes_key(keys.tenant_of(key), keys.hash_of(key))
    with index.lock:
        if keys.is_region(key) or index.kv.get(key) is None or index.kv.get(bytes_key) is not None:
            return None
    return f"unit {keys.hash_of(key).hex()} has a row but no bytes; variables that need it cannot be restored"


def _problems(index: StoreIndex) -> Iterator[str]:
    expected: Counter[bytes] = Counter()
    needed_regions: dict[bytes, tuple[str, bool]] = {}
    for session_id, session in index.sessions():
        chain = index.chain(session_id)
        versions = [entry.version for entry in chain]
        if session.version != (versions[-1] if versions else 0):
            yield f"session {session_id} has head {session.version} and versions {versions}"
        if session.durable_version not in (0, *versions):
            yield f"session {session_id} has durable version {session.durable_version} and versions {versions}"
        named = []
        for entry in chain:
            where = f"version {entry.version} of {session_id}"
            refs = index.refs(session_id, entry.version, entry.row)
            objects = refs.objects(session.tenant)
            named.append(objects)
            for key in filter(keys.is_region, objects):
                durable = entry.row.durable or needed_regions.get(key, ("", False))[1]
                needed_regions[key] = (where, durable)
            yield from _manifest_problems(index, session_id, session.tenant, entry, refs, where)
        expected.update(count_runs(named))
    for _, row in scan_all(index.kv, keys.RELEASE):
        expected.update(split_release(row))
    orphans = {key[1:] for key, _ in scan_all(index.kv, keys.ORPHAN)}
    yield from _count_problems(index, expected, orphans)
    yield from _region_problems(index, needed_regions)


def _manifest_problems(
    index: StoreIndex, session_id: str, tenant: bytes, entry: Chained, refs: VersionRefs, where: str
) -> Iterator[str]:
    data = index.kv.get(keys.version_key(keys.MANIFEST, session_id, entry.version))
    if data is None or hash128(data) != entry.row.manifest_hash:
        yield f"{where} has no manifest, or not the one that was committed"
        return
    try:
        manifest = decode_manifest(data)
    except LooseLeafError as error:
        yield f"{where} has a manifest that cannot be read: {error}"
        return
    if (manifest.session_id, manifest.version) != (session_id, entry.version) or VersionRefs.of(manifest) != refs:
        yield f"{where} has a manifest that says something else than the index"
    for unit_hash in refs.units:
        if index.kv.get(keys.unit_bytes_key(tenant, unit_hash)) is None:
            yield f"{where} names unit {unit_hash.hex()}, which is gone"


def _count_problems(index: StoreIndex, expected: Counter[bytes], orphans: set[bytes]) -> Iterator[str]:
    found: dict[bytes, int] = {}
    for key, row in scan_all(index.kv, keys.UNIT):
        found[key] = UnitRow.decode(row).refs
    for key, row in scan_all(index.kv, keys.REGION):
        found[key] = RegionRow.decode(row).refs
    for key in found.keys() | expected.keys():
        if found.get(key) != expected[key] and (key in found or expected[key]):
            yield f"object {key.hex()} has {found.get(key)} references and should have {expected[key]}"
        if (key in orphans) != (found.get(key) == 0):
            yield f"object {key.hex()} has {found.get(key)} references and its orphan mark is {key in orphans}"


def _region_problems(index: StoreIndex, needed: dict[bytes, tuple[str, bool]]) -> Iterator[str]:
    slots: dict[int, bytes] = {}
    held: set[bytes] = set()
    for key, data in scan_all(index.kv, keys.REGION):
        region_id, row = keys.hash_of(key), RegionRow.decode(data)
        held.update(keys.host_region_key(host_id, key) for host_id in row.hosts)
        if row.written_slot is not None and slots.setdefault(row.written_slot, key) != key:
            yield f"slot {row.slot} is named by two regions"
        where, durable = needed.pop(key, ("", False))
        if where and row.damaged and (durable or not row.located):
            yield f"{where} needs region {region_id.hex()}, which is damaged on the disk"
        elif where and not row.located:
            yield f"{where} needs region {region_id.hex()}, which is located nowhere"
        elif durable and not row.on_disk:
            yield f"{where} is durable, but region {region_id.hex()} is not on the disk"
    for key, (where, _) in needed.items():
        yield f"{where} needs region {keys.hash_of(key).hex()}, which the index does not know"
    if {key for key, _ in scan_all(index.kv, keys.HOST_REGION)} != held:
        yield "the lists of what hosts hold disagree with the regions"
