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

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NoReturn

import msgpack

from looseleaf.checkpoint.manifest_model import (
    HASH_BYTES,
    MANIFEST_BYTES_MAX,
    NAMES_MAX,
    PAYLOADS_MAX,
    PREVIEW_CHARS_MAX,
    REGIONS_MAX,
    TEXT_CHARS_MAX,
    UNIT_BYTES_MAX,
    UNITS_MAX,
    Flag,
    Manifest,
    PayloadEntry,
    RegionList,
    RegionRef,
    UnitEntry,
    UnitHeader,
    Unsaved,
    region_ids,
)
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import Corrupt, InvalidArgument, LooseLeafError
from looseleaf.ids import CellId, Epoch, ExecutionId, PayloadId, SessionId, UnitId, Version
from looseleaf.units import INLINE_UNIT_BYTES_MAX, KIB, MIB, REGION_BYTES

MAGIC: Final = b"LLMF"
FORMAT: Final = 2
# Fields of a payload by format.
_PAYLOAD_FIELDS: Final = {1: 7, 2: 8}
_HEAD_BYTES: Final = len(MAGIC) + 1 + HASH_BYTES
_NUMBER_MAX: Final = (1 << 63) - 1
_DIMENSIONS_MAX: Final = 64
PAYLOAD_KINDS: Final = ("memory", "bytes", "bytearray")


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as bytes; equal manifests give equal bytes.

    Raises InvalidArgument `MANIFEST_FIELD` if a value could not be read back, `MANIFEST_TOO_LARGE` above the limit.
    """
    body = [
        manifest.session_id, manifest.version, manifest.parent, manifest.epoch, manifest.execution_id,
        manifest.created_unix_ms, manifest.label, manifest.next_id,
        [[name, unit_id] for name, unit_id in manifest.roots.items()],
        [[unit_id, *_unit_fields(manifest.units[unit_id])] for unit_id in sorted(manifest.units)],
        [[payload_id, *_payload_fields(manifest.payloads[payload_id])] for payload_id in sorted(manifest.payloads)],
        manifest.process_state, list(manifest.tombstones),
        [[entry.name, entry.reason, entry.path, entry.detail, entry.since_version] for entry in manifest.unsaved],
        manifest.cell_source_hash, manifest.cell_id,
    ]  # fmt: skip
    try:
        _read_body(body, FORMAT)
        packed: bytes = msgpack.packb(body, use_bin_type=True)
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
        value = msgpack.unpackb(body, raw=False, strict_map_key=True, use_list=True)
    except (ValueError, TypeError, RecursionError) as error:
        raise Corrupt("MANIFEST_BODY", f"the manifest's body is not one msgpack value: {error}") from error
    return _read_body(value, format_)


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


def _read_body(value: Any, format_: int) -> Manifest:
    fields = _array(value, "manifest", 16)
    roots = _read_roots(fields[8])
    units = _read_units(fields[9])
    payloads = _read_payloads(fields[10], _PAYLOAD_FIELDS[format_])
    manifest = Manifest(
        session_id=SessionId(_text(fields[0], "session_id")),
        version=Version(_number(fields[1], "version")),
        parent=Version(_number(fields[2], "parent")),
        epoch=Epoch(_number(fields[3], "epoch")),
        execution_id=ExecutionId(_text(fields[4], "execution_id")),
        created_unix_ms=_number(fields[5], "created_unix_ms"),
        label=_text(fields[6], "label"),
        next_id=_number(fields[7], "next_id"),
        roots=roots,
        units=units,
        payloads=payloads,
        process_state=None if fields[11] is None else UnitId(_number(fields[11], "process_state")),
        tombstones=_texts(fields[12], "tombstones", NAMES_MAX),
        unsaved=_read_unsaved(fields[13]),
        cell_source_hash=_bytes(fields[14], "cell_source_hash", (0, HASH_BYTES)),
        cell_id=CellId(_text(fields[15], "cell_id")),
    )
    _check_references(manifest)
    return manifest


def _check_references(manifest: Manifest) -> None:
    heads = list(manifest.roots.values())
    if manifest.process_state is not None:
        heads.append(manifest.process_state)
    for unit_id in heads:
        if unit_id not in manifest.units:
            _corrupt("REFERENCE", f"unit {unit_id} is named but not listed")
    for unit_id, entry in manifest.units.items():
        if not all(ref in manifest.units for ref in entry.header.refs):
            _corrupt("REFERENCE", f"unit {unit_id} refers to a unit that is not listed")
        if not all(ref in manifest.payloads for ref in entry.header.payloads):
            _corrupt("REFERENCE", f"unit {unit_id} refers to a payload that is not listed")
    if any(some_id >= manifest.next_id for some_id in (*manifest.units, *manifest.payloads)):
        _corrupt("REFERENCE", "an id is not below next_id")
    if not manifest.units.keys().isdisjoint(manifest.payloads):
        _corrupt("DUPLICATE", "an id names a unit and a payload")
    absent = [*manifest.tombstones, *(entry.name for entry in manifest.unsaved)]
    if not manifest.roots.keys().isdisjoint(absent):
        _corrupt("DUPLICATE", "a variable is listed both as saved and as deleted or unsaved")
    if any(entry.lazy_at > manifest.version for entry in manifest.payloads.values()):
        _corrupt("RANGE", "a payload was kept back at a later version")
    total = sum(len(entry.regions) for entry in manifest.units.values())
    total += sum(len(entry.regions) for entry in manifest.payloads.values())
    if total > REGIONS_MAX:
        _corrupt("RANGE", f"{total} regions are more than {REGIONS_MAX}")


def _read_roots(value: Any) -> dict[str, UnitId]:
    roots: dict[str, UnitId] = {}
    for item in _array_max(value, "roots", NAMES_MAX):
        name, unit_id = _array(item, "root", 2)
        roots[_text(name, "name")] = UnitId(_number(unit_id, "root's unit"))
    if len(roots) != len(value):
        _corrupt("DUPLICATE", "a variable is listed twice")
    return roots


def _read_units(value: Any) -> dict[UnitId, UnitEntry]:
    units: dict[UnitId, UnitEntry] = {}
    previous = 0
    for item in _array_max(value, "units", UNITS_MAX):
        f = _array(item, "unit", 21)
        unit_id = _number(f[0], "unit id")
        if unit_id <= previous:
            _corrupt("DUPLICATE", "unit ids are not ascending")
        previous = unit_id
        size_bytes = _number(f[2], "unit size", UNIT_BYTES_MAX)
        ids = _bytes(f[3], "unit regions")
        if bool(ids) != (size_bytes >= INLINE_UNIT_BYTES_MAX):
            _corrupt("REGIONS", f"unit {unit_id} is stored inline exactly if it is below {INLINE_UNIT_BYTES_MAX} bytes")
        regions: Sequence[RegionRef] = _regions(ids, size_bytes, REGION_BYTES) if ids else ()
        unit_hash = _bytes(f[1], "unit hash", (HASH_BYTES,))
        units[UnitId(unit_id)] = UnitEntry(unit_hash, size_bytes, regions, _read_header(f[4:]))
    return units


def _read_header(f: list[Any]) -> UnitHeader:
    device_bytes = [_array(item, "device bytes", 2) for item in _array_max(f[12], "device bytes", KIB)]
    return UnitHeader(
        refs=tuple(UnitId(n) for n in _ascending(f[0], "refs", UNITS_MAX)),
        payloads=tuple(PayloadId(n) for n in _ascending(f[1], "payloads", PAYLOADS_MAX)),
        modules=_texts(f[2], "modules", UNITS_MAX),
        global_names=_texts(f[3], "global names", NAMES_MAX),
        kind=_text(f[4], "kind"),
        type_name=_text(f[5], "type name"),
        type_module=_text(f[6], "type module"),
        preview=_text(f[7], "preview", PREVIEW_CHARS_MAX),
        length=None if f[8] is None else _number(f[8], "length"),
        shape=None if f[9] is None else tuple(_number(n, "shape") for n in _array_max(f[9], "shape", _DIMENSIONS_MAX)),
        dtype=None if f[10] is None else _text(f[10], "dtype"),
        device=None if f[11] is None else _text(f[11], "device"),
        device_bytes={_text(device, "device"): _number(size, "device bytes") for device, size in device_bytes},
        flag=_flag(f[13]),
        has_flag=_truth(f[14], "has_flag"),
        session_classes=_texts(f[15], "session classes", NAMES_MAX),
        notes=_texts(f[16], "notes", NAMES_MAX),
    )


def _read_payloads(value: Any, field_count: int) -> dict[PayloadId, PayloadEntry]:
    payloads: dict[PayloadId, PayloadEntry] = {}
    previous = 0
    for item in _array_max(value, "payloads", PAYLOADS_MAX):
        f = _array(item, "payload", field_count)
        payload_id = _number(f[0], "payload id")
        if payload_id <= previous:
            _corrupt("DUPLICATE", "payload ids are not ascending")
        previous = payload_id
        kind = _text(f[1], "payload kind")
        if kind not in PAYLOAD_KINDS:
            _corrupt("RANGE", f"payload kind {kind!r} is unknown")
        size_bytes = _number(f[3], "payload size")
        region_bytes = _number(f[5], "region size", MIB * KIB)
        if region_bytes < 4 * KIB or region_bytes & (region_bytes - 1):
            _corrupt("RANGE", f"regions of {region_bytes} bytes: not a power of two of at least 4 KiB")
        ids = _bytes(f[6], "payload regions")
        lazy_at = Version(_number(f[7], "payload kept at") if len(f) > 7 else 0)
        if lazy_at and (ids or not size_bytes):
            _corrupt("REGIONS", f"payload {payload_id} was kept back and has regions, or has nothing to keep back")
        regions: Sequence[RegionRef] = () if lazy_at else _regions(ids, size_bytes, region_bytes)
        payloads[PayloadId(payload_id)] = PayloadEntry(
            kind, _text(f[2], "device"), size_bytes, _text(f[4], "algorithm"), region_bytes, regions, lazy_at
        )
    return payloads


def _read_unsaved(value: Any) -> tuple[Unsaved, ...]:
    entries = []
    for item in _array_max(value, "unsaved", NAMES_MAX):
        *texts, since_version = _array(item, "unsaved", 5)
        name, reason, path, detail = _texts(texts, "unsaved", 4)
        entries.append(Unsaved(name, reason, path, detail, _number(since_version, "unsaved since")))
    if len({entry.name for entry in entries}) != len(entries):
        _corrupt("DUPLICATE", "an unsaved variable is listed twice")
    return tuple(entries)


def _regions(ids: bytes, size_bytes: int, region_bytes: int) -> RegionList:
    if len(ids) != HASH_BYTES * -(-size_bytes // region_bytes):
        _corrupt("REGIONS", f"{len(ids)} bytes of ids do not fit {size_bytes} bytes in regions of {region_bytes}")
    return RegionList(ids, size_bytes, region_bytes)


def _array_max(value: Any, what: str, count_max: int) -> list[Any]:
    if type(value) is not list:
        _corrupt("SHAPE", f"{what}: not a list")
    if len(value) > count_max:
        _corrupt("RANGE", f"{what}: {len(value)} are more than {count_max}")
    return value


def _array(value: Any, what: str, count: int) -> list[Any]:
    if type(value) is not list or len(value) != count:
        _corrupt("SHAPE", f"{what}: not a list of {count}")
    return value


def _ascending(value: Any, what: str, count_max: int) -> list[int]:
    numbers = [_number(item, what) for item in _array_max(value, what, count_max)]
    if any(a >= b for a, b in pairwise(numbers)):
        _corrupt("DUPLICATE", f"{what}: not ascending")
    return numbers


def _number(value: Any, what: str, number_max: int = _NUMBER_MAX) -> int:
    if type(value) is not int:
        _corrupt("SHAPE", f"{what}: not a whole number")
    if not 0 <= value <= number_max:
        _corrupt("RANGE", f"{what}: {value} is not in 0..{number_max}")
    return value


def _text(value: Any, what: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    if type(value) is not str:
        _corrupt("SHAPE", f"{what}: not a text")
    if len(value) > chars_max:
        _corrupt("RANGE", f"{what}: {len(value)} characters are more than {chars_max}")
    return value


def _texts(value: Any, what: str, count_max: int) -> tuple[str, ...]:
    return tuple(_text(item, what) for item in _array_max(value, what, count_max))


def _bytes(value: Any, what: str, lengths: tuple[int, ...] = ()) -> bytes:
    if type(value) is not bytes:
        _corrupt("SHAPE", f"{what}: not bytes")
    if lengths and len(value) not in lengths:
        _corrupt("RANGE", f"{what}: {len(value)} bytes")
    return value


def _truth(value: Any, what: str) -> bool:
    if type(value) is not bool:
        _corrupt("SHAPE", f"{what}: not true or false")
    return value


def _flag(value: Any) -> Flag:
    if value is not None and type(value) not in (bool, int, float, str):
        _corrupt("SHAPE", "flag: not a plain value")
    flag: Flag = value
    return flag


def _corrupt(suffix: str, message: str) -> NoReturn:
    raise Corrupt(f"MANIFEST_{suffix}", f"the manifest is damaged: {message}")
