"""Bytes of a manifest: `LLMF`, one format byte, XXH3-128 of the body, then the body as one canonical msgpack array.

The reader checks everything before it builds a Manifest. Each way to be wrong has its own reason:

- InvalidArgument `MANIFEST_TOO_LARGE`: more bytes than MANIFEST_BYTES_MAX.
- InvalidArgument `MANIFEST_FORMAT`: a format byte that this version does not know.
- InvalidArgument `MANIFEST_FIELD`: `encode_manifest` was given a value that no manifest may hold.
- Corrupt `MANIFEST_MAGIC`: it does not begin as a manifest, or is shorter than its head.
- Corrupt `MANIFEST_CHECKSUM`: the body is not what was written.
- Corrupt `MANIFEST_BODY`: the body is not one msgpack value.
- Corrupt `MANIFEST_SHAPE`: a field is missing, surplus or of the wrong type.
- Corrupt `MANIFEST_RANGE`: a number or a text is outside its limits, or there are too many of a thing.
- Corrupt `MANIFEST_DUPLICATE`: a name or an id occurs twice, or lists that must be apart overlap.
- Corrupt `MANIFEST_REFERENCE`: an id names nothing in this manifest, or exceeds `next_id`.
- Corrupt `MANIFEST_REGIONS`: the regions do not add up to the size, or a payload without bytes has some.

Format 2 is written. Format 1, which is read too, lacks each payload's last field: its payloads have all their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, cast

import msgpack

from looseleaf.checkpoint import manifest_checks as check
from looseleaf.checkpoint.manifest_model import (
    HASH_BYTES,
    MANIFEST_BYTES_MAX,
    NAMES_MAX,
    PAYLOADS_MAX,
    PREVIEW_CHARS_MAX,
    REGIONS_MAX,
    UNIT_BYTES_MAX,
    UNITS_MAX,
    Manifest,
    PayloadEntry,
    RegionList,
    RegionRef,
    UnitEntry,
    UnitHeader,
    Unsaved,
    region_ids,
)
from looseleaf.checkpoint.manifest_rows import Entry, Rows
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import Corrupt, InvalidArgument, LooseLeafError
from looseleaf.ids import CellId, Epoch, ExecutionId, PayloadId, SessionId, UnitId, Version
from looseleaf.units import INLINE_UNIT_BYTES_MAX, KIB, MIB, REGION_BYTES

MAGIC: Final = b"LLMF"
FORMAT: Final = 2
# Fields of a payload by format.
_PAYLOAD_FIELDS: Final = {1: 7, 2: 8}
_HEAD_BYTES: Final = len(MAGIC) + 1 + HASH_BYTES
_DIMENSIONS_MAX: Final = 64
# Fields of a manifest; those before the units.
_FIELDS: Final = 16
_FIELD_OF_UNITS: Final = 9
PAYLOAD_KINDS: Final = ("memory", "bytes", "bytearray")


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as bytes; equal manifests give equal bytes.

    Raises InvalidArgument `MANIFEST_FIELD` if a value could not be read back, `MANIFEST_TOO_LARGE` above the limit.
    """
    before = [
        manifest.session_id, manifest.version, manifest.parent, manifest.epoch, manifest.execution_id,
        manifest.created_unix_ms, manifest.label, manifest.next_id,
        [[name, unit_id] for name, unit_id in manifest.roots.items()],
    ]  # fmt: skip
    after = [
        manifest.process_state, list(manifest.tombstones),
        [[entry.name, entry.reason, entry.path, entry.detail, entry.since_version] for entry in manifest.unsaved],
        manifest.cell_source_hash, manifest.cell_id,
    ]
    try:
        units = [_UNIT_ROWS.row_of(unit_id, manifest.units[unit_id]) for unit_id in sorted(manifest.units)]
        payload_rows = _PAYLOAD_ROWS[FORMAT]
        payloads = [payload_rows.row_of(some_id, manifest.payloads[some_id]) for some_id in sorted(manifest.payloads)]
        _read_body([*before, units, payloads, *after], FORMAT)
        packed = b"".join(_pack_body(before, units, payloads, after))
    except (LooseLeafError, ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument("MANIFEST_FIELD", f"the state's index cannot hold a value: {error}") from error
    if _HEAD_BYTES + len(packed) > MANIFEST_BYTES_MAX:
        raise InvalidArgument(
            "MANIFEST_TOO_LARGE",
            f"the state's index needs {len(packed)} bytes and may have {MANIFEST_BYTES_MAX}: keep fewer shared objects",
            size_bytes=len(packed), size_bytes_max=MANIFEST_BYTES_MAX,
        )  # fmt: skip
    return MAGIC + bytes([FORMAT]) + hash128(packed) + packed


def decode_manifest(data: bytes | bytearray | memoryview) -> Manifest:
    """The manifest that `encode_manifest` wrote; any other bytes raise one of the errors listed above."""
    view = memoryview(data).cast("B")
    if len(view) > MANIFEST_BYTES_MAX:
        raise InvalidArgument("MANIFEST_TOO_LARGE", f"{len(view)} bytes are more than a manifest may have")
    if len(view) < _HEAD_BYTES or bytes(view[: len(MAGIC)]) != MAGIC:
        raise Corrupt("MANIFEST_MAGIC", "these bytes are not a manifest")
    format_ = view[len(MAGIC)]
    if format_ not in _PAYLOAD_FIELDS:
        raise InvalidArgument("MANIFEST_FORMAT", f"manifest format {format_} is newer than {FORMAT}, or none")
    body = view[_HEAD_BYTES:]
    if hash128(body) != view[len(MAGIC) + 1 : _HEAD_BYTES]:
        raise Corrupt("MANIFEST_CHECKSUM", "the manifest is damaged: its bytes are not what was saved")
    try:
        return _read_body(_split_body(body), format_)
    # Rows are unpacked one by one while they are read.
    except (ValueError, TypeError, RecursionError, msgpack.OutOfData) as error:
        raise Corrupt("MANIFEST_BODY", f"the manifest's body is not one msgpack value: {error}") from error


def _pack_body(before: list[Any], units: list[bytes], payloads: list[bytes], after: list[Any]) -> Iterator[bytes]:
    packer = msgpack.Packer(use_bin_type=True)
    yield packer.pack_array_header(_FIELDS)
    yield from map(packer.pack, before)
    for rows in (units, payloads):
        yield packer.pack_array_header(len(rows))
        yield from rows
    yield from map(packer.pack, after)


def _split_body(body: memoryview) -> list[Any]:
    """The fields of a body, with the rows of units and payloads as bytes."""
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=True, use_list=True, max_buffer_size=MANIFEST_BYTES_MAX)
    unpacker.feed(body)
    if _count_of(unpacker, body, "manifest") != _FIELDS:
        check.corrupt("SHAPE", f"manifest: not a list of {_FIELDS}")
    fields = [unpacker.unpack() for _ in range(_FIELD_OF_UNITS)]
    for what, count_max in (("units", UNITS_MAX), ("payloads", PAYLOADS_MAX)):
        count = _count_of(unpacker, body, what)
        if count > count_max:
            check.corrupt("RANGE", f"{what}: {count} are more than {count_max}")
        ends = [unpacker.tell()]
        for _ in range(count):
            unpacker.skip()
            ends.append(unpacker.tell())
        fields.append([bytes(body[start:end]) for start, end in pairwise(ends)])
    fields += [unpacker.unpack() for _ in range(_FIELDS - len(fields))]
    if unpacker.tell() != len(body):
        raise ValueError("bytes follow it")
    return fields


def _count_of(unpacker: msgpack.Unpacker, body: memoryview, what: str) -> int:
    at = unpacker.tell()
    if at >= len(body):
        raise ValueError("it ends too early")
    # Arrays: 0x90 to 0x9f, 0xdc and 0xdd.
    if body[at] & 0xF0 != 0x90 and body[at] not in (0xDC, 0xDD):
        unpacker.skip()  # raises if it is no value at all
        check.corrupt("SHAPE", f"{what}: not a list")
    count: int = unpacker.read_array_header()
    return count


def _unit_fields(entry: UnitEntry) -> list[Any]:
    h = entry.header
    return [
        entry.hash, entry.size_bytes, region_ids(entry.regions),
        list(h.refs), list(h.payloads), list(h.modules), list(h.global_names), h.kind, h.type_name, h.type_module,
        h.preview, h.length, None if h.shape is None else list(h.shape), h.dtype, h.device,
        [[device, size_bytes] for device, size_bytes in sorted(h.device_bytes.items())],
        h.flag, h.has_flag, list(h.session_classes), list(h.notes),
    ]  # fmt: skip


def _payload_fields(entry: PayloadEntry) -> list[Any]:
    return [
        entry.kind, entry.device, entry.size_bytes, entry.algorithm, entry.region_bytes, region_ids(entry.regions),
        entry.lazy_at,
    ]  # fmt: skip


def _read_body(fields: list[Any], format_: int) -> Manifest:
    """The manifest of these fields, of which units and payloads are rows of bytes."""
    roots = _read_roots(fields[8])
    units = _read_rows(fields[9], _UNIT_ROWS, "unit")
    payloads = _read_rows(fields[10], _PAYLOAD_ROWS[format_], "payload")
    manifest = Manifest(
        session_id=SessionId(check.text(fields[0], "session_id")),
        version=Version(check.number(fields[1], "version")),
        parent=Version(check.number(fields[2], "parent")),
        epoch=Epoch(check.number(fields[3], "epoch")),
        execution_id=ExecutionId(check.text(fields[4], "execution_id")),
        created_unix_ms=check.number(fields[5], "created_unix_ms"),
        label=check.text(fields[6], "label"),
        next_id=check.number(fields[7], "next_id"),
        roots=roots,
        units=cast("dict[UnitId, UnitEntry]", units),
        payloads=cast("dict[PayloadId, PayloadEntry]", payloads),
        process_state=None if fields[11] is None else UnitId(check.number(fields[11], "process_state")),
        tombstones=check.texts(fields[12], "tombstones", NAMES_MAX),
        unsaved=_read_unsaved(fields[13]),
        cell_source_hash=check.blob(fields[14], "cell_source_hash", (0, HASH_BYTES)),
        cell_id=CellId(check.text(fields[15], "cell_id")),
    )
    _check_references(manifest)
    return manifest


def _check_references(manifest: Manifest) -> None:
    heads = list(manifest.roots.values())
    if manifest.process_state is not None:
        heads.append(manifest.process_state)
    for unit_id in heads:
        if unit_id not in manifest.units:
            check.corrupt("REFERENCE", f"unit {unit_id} is named but not listed")
    for unit_id, entry in manifest.units.items():
        if not all(ref in manifest.units for ref in entry.header.refs):
            check.corrupt("REFERENCE", f"unit {unit_id} refers to a unit that is not listed")
        if not all(ref in manifest.payloads for ref in entry.header.payloads):
            check.corrupt("REFERENCE", f"unit {unit_id} refers to a payload that is not listed")
    if any(some_id >= manifest.next_id for some_id in (*manifest.units, *manifest.payloads)):
        check.corrupt("REFERENCE", "an id is not below next_id")
    if not manifest.units.keys().isdisjoint(manifest.payloads):
        check.corrupt("DUPLICATE", "an id names a unit and a payload")
    absent = [*manifest.tombstones, *(entry.name for entry in manifest.unsaved)]
    if not manifest.roots.keys().isdisjoint(absent):
        check.corrupt("DUPLICATE", "a variable is listed both as saved and as deleted or unsaved")
    if any(entry.lazy_at > manifest.version for entry in manifest.payloads.values()):
        check.corrupt("RANGE", "a payload was kept back at a later version")
    total = sum(len(entry.regions) for entry in manifest.units.values())
    total += sum(len(entry.regions) for entry in manifest.payloads.values())
    if total > REGIONS_MAX:
        check.corrupt("RANGE", f"{total} regions are more than {REGIONS_MAX}")


def _read_roots(value: Any) -> dict[str, UnitId]:
    roots: dict[str, UnitId] = {}
    for item in check.upto(value, "roots", NAMES_MAX):
        name, unit_id = check.list_of(item, "root", 2)
        roots[check.text(name, "name")] = UnitId(check.number(unit_id, "root's unit"))
    if len(roots) != len(value):
        check.corrupt("DUPLICATE", "a variable is listed twice")
    return roots


def _read_rows(rows: list[bytes], known: Rows[Entry], what: str) -> dict[int, Entry]:
    entries: dict[int, Entry] = {}
    previous = 0
    for row in rows:
        entry_id, entry = known.entry_of(row)
        if entry_id <= previous:
            check.corrupt("DUPLICATE", f"{what} ids are not ascending")
        previous = entry_id
        entries[entry_id] = entry
    return entries


def _read_unit(value: Any) -> tuple[int, UnitEntry]:
    f = check.list_of(value, "unit", 21)
    unit_id = check.number(f[0], "unit id")
    size_bytes = check.number(f[2], "unit size", UNIT_BYTES_MAX)
    ids = check.blob(f[3], "unit regions")
    if bool(ids) != (size_bytes >= INLINE_UNIT_BYTES_MAX):
        check.corrupt("REGIONS", f"unit {unit_id} is inline exactly if it is below {INLINE_UNIT_BYTES_MAX} bytes")
    regions: Sequence[RegionRef] = _regions(ids, size_bytes, REGION_BYTES) if ids else ()
    return unit_id, UnitEntry(check.blob(f[1], "unit hash", (HASH_BYTES,)), size_bytes, regions, _read_header(f[4:]))


def _read_header(f: list[Any]) -> UnitHeader:
    device_bytes = [check.list_of(item, "device bytes", 2) for item in check.upto(f[12], "device bytes", KIB)]
    shape = None if f[9] is None else check.upto(f[9], "shape", _DIMENSIONS_MAX)
    return UnitHeader(
        refs=tuple(UnitId(n) for n in check.ascending(f[0], "refs", UNITS_MAX)),
        payloads=tuple(PayloadId(n) for n in check.ascending(f[1], "payloads", PAYLOADS_MAX)),
        modules=check.texts(f[2], "modules", UNITS_MAX),
        global_names=check.texts(f[3], "global names", NAMES_MAX),
        kind=check.text(f[4], "kind"),
        type_name=check.text(f[5], "type name"),
        type_module=check.text(f[6], "type module"),
        preview=check.text(f[7], "preview", PREVIEW_CHARS_MAX),
        length=None if f[8] is None else check.number(f[8], "length"),
        shape=None if shape is None else tuple(check.number(n, "shape") for n in shape),
        dtype=None if f[10] is None else check.text(f[10], "dtype"),
        device=None if f[11] is None else check.text(f[11], "device"),
        device_bytes={check.text(name, "device"): check.number(size, "device bytes") for name, size in device_bytes},
        flag=check.flag(f[13]),
        has_flag=check.truth(f[14], "has_flag"),
        session_classes=check.texts(f[15], "session classes", NAMES_MAX),
        notes=check.texts(f[16], "notes", NAMES_MAX),
    )


def _read_payload(field_count: int, value: Any) -> tuple[int, PayloadEntry]:
    f = check.list_of(value, "payload", field_count)
    payload_id = check.number(f[0], "payload id")
    kind = check.text(f[1], "payload kind")
    if kind not in PAYLOAD_KINDS:
        check.corrupt("RANGE", f"payload kind {kind!r} is unknown")
    size_bytes = check.number(f[3], "payload size")
    region_bytes = check.number(f[5], "region size", MIB * KIB)
    if region_bytes < 4 * KIB or region_bytes & (region_bytes - 1):
        check.corrupt("RANGE", f"regions of {region_bytes} bytes: not a power of two of at least 4 KiB")
    ids = check.blob(f[6], "payload regions")
    lazy_at = Version(check.number(f[7], "payload kept at") if len(f) > 7 else 0)
    if lazy_at and (ids or not size_bytes):
        check.corrupt("REGIONS", f"payload {payload_id} was kept back and has regions, or has nothing to keep back")
    regions: Sequence[RegionRef] = () if lazy_at else _regions(ids, size_bytes, region_bytes)
    device, algorithm = check.text(f[2], "device"), check.text(f[4], "algorithm")
    return payload_id, PayloadEntry(kind, device, size_bytes, algorithm, region_bytes, regions, lazy_at)


def _read_unsaved(value: Any) -> tuple[Unsaved, ...]:
    entries = []
    for item in check.upto(value, "unsaved", NAMES_MAX):
        *texts, since_version = check.list_of(item, "unsaved", 5)
        name, reason, path, detail = check.texts(texts, "unsaved", 4)
        entries.append(Unsaved(name, reason, path, detail, check.number(since_version, "unsaved since")))
    if len({entry.name for entry in entries}) != len(entries):
        check.corrupt("DUPLICATE", "an unsaved variable is listed twice")
    return tuple(entries)


def _regions(ids: bytes, size_bytes: int, region_bytes: int) -> RegionList:
    if len(ids) != HASH_BYTES * -(-size_bytes // region_bytes):
        check.corrupt("REGIONS", f"{len(ids)} bytes of ids do not fit {size_bytes} bytes in regions of {region_bytes}")
    return RegionList(ids, size_bytes, region_bytes)


_UNIT_ROWS: Final = Rows(_read_unit, _unit_fields)
_PAYLOAD_ROWS: Final = {
    format_: Rows(partial(_read_payload, count), _payload_fields) for format_, count in _PAYLOAD_FIELDS.items()
}
