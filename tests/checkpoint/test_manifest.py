"""The manifest's bytes: identity on valid values, and only our errors on everything else."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.checkpoint.manifest import (
    Manifest,
    PayloadEntry,
    RegionList,
    UnitEntry,
    UnitHeader,
    Unsaved,
    decode_manifest,
    encode_manifest,
    region_ids,
)
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import Corrupt, InvalidArgument, LooseLeafError
from looseleaf.units import INLINE_UNIT_BYTES_MAX, REGION_BYTES

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
hashes = st.binary(min_size=16, max_size=16)


@st.composite
def sizes_with_regions(draw, size_bytes, region_bytes=REGION_BYTES):
    count = -(-size_bytes // region_bytes)
    ids = b"".join(draw(hashes) for _ in range(count))
    return RegionList(ids, size_bytes, region_bytes)


@st.composite
def headers(draw, unit_ids, payload_ids):
    return UnitHeader(
        refs=tuple(sorted(draw(st.sets(st.sampled_from(unit_ids), max_size=4)))),
        payloads=tuple(sorted(draw(st.sets(st.sampled_from(payload_ids), max_size=4)))) if payload_ids else (),
        modules=tuple(draw(st.lists(texts, max_size=3))),
        global_names=tuple(draw(st.lists(texts, max_size=3))),
        kind=draw(texts),
        type_name=draw(texts),
        preview=draw(texts),
        length=draw(st.none() | st.integers(0, 1 << 40)),
        shape=draw(st.none() | st.lists(st.integers(0, 1 << 40), max_size=4).map(tuple)),
        dtype=draw(st.none() | texts),
        device=draw(st.none() | texts),
        device_bytes=draw(st.dictionaries(texts, st.integers(0, 1 << 40), max_size=2)),
        flag=draw(st.none() | st.booleans() | st.integers(-(1 << 40), 1 << 40) | st.floats(allow_nan=False) | texts),
        has_flag=draw(st.booleans()),
        session_classes=tuple(draw(st.lists(texts, max_size=2))),
        notes=tuple(draw(st.lists(texts, max_size=2))),
    )


@st.composite
def manifests(draw):
    version = draw(st.integers(0, 1 << 40))
    ids = draw(st.lists(st.integers(1, 1000), unique=True, min_size=2, max_size=10))
    cut = draw(st.integers(1, len(ids)))
    unit_ids, payload_ids = ids[:cut], ids[cut:]
    units = {}
    for unit_id in sorted(unit_ids):
        size = draw(st.integers(0, 3 * INLINE_UNIT_BYTES_MAX))
        regions = draw(sizes_with_regions(size)) if size >= INLINE_UNIT_BYTES_MAX else ()
        units[unit_id] = UnitEntry(draw(hashes), size, regions, draw(headers(unit_ids, payload_ids)))
    payloads = {}
    for payload_id in sorted(payload_ids):
        size = draw(st.integers(0, 40_000))
        lazy_at = draw(st.integers(0, version)) if size else 0
        regions = () if lazy_at else draw(sizes_with_regions(size, 8192))
        kind = draw(st.sampled_from(["memory", "bytes"]))
        payloads[payload_id] = PayloadEntry(kind, "cpu", size, "a", 8192, regions, lazy_at)
    names = draw(st.lists(texts, unique=True, max_size=8))
    third = len(names) // 3
    roots = {name: draw(st.sampled_from(unit_ids)) for name in names[third:]}
    return Manifest(
        session_id=draw(texts),
        version=version,
        next_id=1001,
        label=draw(texts),
        roots=roots,
        units=units,
        payloads=payloads,
        process_state=draw(st.none() | st.sampled_from(unit_ids)),
        tombstones=tuple(names[: third // 2]),
        unsaved=tuple(Unsaved(name, "GENERATOR", name) for name in names[third // 2 : third]),
        cell_source_hash=draw(st.just(b"") | hashes),
    )


@settings(max_examples=40)
@given(manifests())
def test_manifest_encoded_and_decoded_is_the_same(manifest):
    data = encode_manifest(manifest)
    assert decode_manifest(data) == manifest
    assert encode_manifest(decode_manifest(data)) == data


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_decode_of_random_bytes_raises_only_our_errors(data):
    with pytest.raises(LooseLeafError):
        decode_manifest(data)


@settings(max_examples=60)
@given(manifests(), st.data())
def test_decode_of_a_cut_or_flipped_manifest_is_refused(manifest, data):
    good = encode_manifest(manifest)
    cut = data.draw(st.integers(0, len(good) - 1))
    with pytest.raises(LooseLeafError):
        decode_manifest(good[:cut])
    flipped = bytearray(good)
    flipped[cut] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(LooseLeafError):
        decode_manifest(flipped)


def _sealed(body: bytes) -> bytes:
    return b"LLMF\x02" + hash128(body) + body


REASONS = {
    f"MANIFEST_{word}"
    for word in ("BODY", "SHAPE", "RANGE", "DUPLICATE", "REFERENCE", "REGIONS")
}


def _reason_of(data: bytes) -> str:
    """The reason why `data` is refused, "" if it is accepted; any error that is not ours is raised."""
    try:
        decode_manifest(data)
    except LooseLeafError as error:
        return error.reason
    return ""


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 1 << 63) | st.binary(max_size=20) | texts | st.floats(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=60)
@given(manifests(), st.data())
def test_decode_of_a_sealed_but_wrong_body_raises_only_our_errors(manifest, data):
    body = bytearray(encode_manifest(manifest)[21:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    assert _reason_of(_sealed(bytes(body))) in ("", *REASONS)


@settings(max_examples=50)
@given(manifests(), st.integers(0, 15), json_like)
def test_decode_with_one_field_replaced_raises_only_our_errors(manifest, index, value):
    body = msgpack.unpackb(encode_manifest(manifest)[21:])
    body[index] = value
    assert _reason_of(_sealed(msgpack.packb(body))) in ("", *REASONS)


def _unit(*refs: int, payloads: tuple[int, ...] = (), reads: tuple[str, ...] = ()) -> UnitEntry:
    return UnitEntry(bytes(16), 3, (), UnitHeader(refs=refs, payloads=payloads, global_names=reads))


def _small() -> Manifest:
    payload = PayloadEntry("memory", "cpu", 5, "a", 4096, RegionList(bytes(16), 5, 4096))
    return Manifest(
        session_id="s",
        next_id=10,
        roots={"a": 1, "b": 3, "f": 4},
        units={1: _unit(2, payloads=(9,)), 2: _unit(1), 3: _unit(), 4: _unit(reads=("b", "len", "gone"))},
        payloads={9: payload},
        unsaved=(Unsaved("gone", "GENERATOR", "gone"),),
    )


def test_closure_of_a_cycle_lists_each_unit_once():
    closure = _small().closure(["a", "nobody"])
    assert closure.units == (1, 2)
    assert closure.payloads == (9,)
    assert closure.missing == ("nobody",)
    assert closure.names == ("a",)


def test_closure_of_a_function_follows_the_globals_that_it_reads():
    closure = _small().closure(["f"])
    assert closure.names == ("f", "b")
    assert [entry.name for entry in closure.unsaved] == ["gone"]
    assert _small().closure(["f"], follow_globals=False).names == ("f",)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"roots": {"a": 7}}, "MANIFEST_FIELD"),
        ({"next_id": 4}, "MANIFEST_FIELD"),
        ({"tombstones": ("a",)}, "MANIFEST_FIELD"),
        ({"version": -1}, "MANIFEST_FIELD"),
        ({"label": "\ud800"}, "MANIFEST_FIELD"),
        ({"label": "x" * 5000}, "MANIFEST_FIELD"),
    ],
)
def test_encode_of_a_value_that_could_not_be_read_back_is_refused(change, reason):
    with pytest.raises(InvalidArgument) as raised:
        encode_manifest(dataclasses.replace(_small(), **change))
    assert raised.value.reason == reason


def test_decode_names_each_way_to_be_wrong():
    good = encode_manifest(_small())
    for data, reason in [
        (b"", "MANIFEST_MAGIC"),
        (b"X" + good[1:], "MANIFEST_MAGIC"),
        (good[:4] + b"\x09" + good[5:], "MANIFEST_FORMAT"),
        (good[:-1], "MANIFEST_CHECKSUM"),
        (_sealed(b"\xc1"), "MANIFEST_BODY"),
        (_sealed(b"\x90"), "MANIFEST_SHAPE"),
        (bytes((16 << 20) + 1), "MANIFEST_TOO_LARGE"),
    ]:
        with pytest.raises((Corrupt, InvalidArgument)) as raised:
            decode_manifest(data)
        assert raised.value.reason == reason


def _with_payload(**change: object) -> Manifest:
    payload = dataclasses.replace(_small().payloads[9], **change)
    return dataclasses.replace(_small(), version=3, payloads={9: payload})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lazy_at": 3}, "MANIFEST_REGIONS"),
        ({"lazy_at": 3, "regions": (), "size_bytes": 0}, "MANIFEST_REGIONS"),
        ({"lazy_at": 4, "regions": ()}, "MANIFEST_RANGE"),
        ({"lazy_at": -1, "regions": ()}, "MANIFEST_RANGE"),
        ({"lazy_at": True, "regions": ()}, "MANIFEST_SHAPE"),
        ({"regions": ()}, "MANIFEST_REGIONS"),
    ],
)
def test_decode_refuses_bytes_that_are_both_there_and_not_or_neither(change, reason):
    with pytest.raises(InvalidArgument, match=reason):
        encode_manifest(_with_payload(**change))
    # As if a writer had not looked: the sound manifest's body with only this payload in the place of its own.
    body = msgpack.unpackb(encode_manifest(_with_payload())[21:])
    entry = _with_payload(**change).payloads[9]
    ids = b"".join(ref.region_id for ref in entry.regions)
    body[10] = [[9, entry.kind, entry.device, entry.size_bytes, "a", 4096, ids, entry.lazy_at]]
    assert _reason_of(_sealed(msgpack.packb(body))) == reason


def test_decode_of_format_1_finds_all_bytes_there():
    manifest = _small()
    body = msgpack.unpackb(encode_manifest(manifest)[21:])
    for payload in body[10]:
        assert payload.pop() == 0
    packed = msgpack.packb(body)
    assert decode_manifest(b"LLMF\x01" + hash128(packed) + packed) == manifest
    assert _reason_of(_sealed(packed)) == "MANIFEST_SHAPE"


def test_lazy_bytes_are_counted_apart_and_missed_by_what_needs_them():
    manifest = _with_payload(lazy_at=3, regions=())
    assert (manifest.lazy_bytes(), manifest.logical_bytes()) == (5, 12)
    assert [manifest.lacks_bytes_of(names) for names in (None, ["a"], ["b", "f"], [])] == [True, True, False, False]
    assert not _small().lacks_bytes_of(None)


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, 4097, 3 * 4096])
def test_region_list_is_the_tuple_of_its_references(size_bytes):
    count = -(-size_bytes // 4096)
    regions = RegionList(bytes(range(16 * count)), size_bytes, 4096)
    refs = tuple(regions[index] for index in range(count))
    assert (tuple(regions), len(regions), regions[1:], regions.rows()) == (
        refs, count, refs[1:], [(ref.region_id, ref.length_bytes) for ref in refs]
    )  # fmt: skip
    assert sum(ref.length_bytes for ref in regions) == size_bytes
    assert regions == refs
    assert regions == RegionList(regions.ids, size_bytes, 4096)
    assert region_ids(regions) == region_ids(refs) == regions.ids
    with pytest.raises(IndexError):
        regions[count]
    with pytest.raises(ValueError, match="bytes of ids"):
        RegionList(bytes(16 * count + 16), size_bytes, 4096)
