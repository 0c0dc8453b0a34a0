"""Units compressed where it pays, and readable, or refused by reason, whatever kept them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from looseleaf.dirty_tracker import hash128
from looseleaf.errors import Corrupt, LooseLeafError, Unsupported
from looseleaf.kv import Batch
from looseleaf.services.checkpoint_store import unit_codec
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.rows import UnitRow
from looseleaf.services.checkpoint_store.store import Store
from looseleaf.services.checkpoint_store.unit_codec import COMPRESS_BYTES_MIN, PLAIN, ZSTD, UnitCodec

TEXT = b"a name and its value, " * 4_000


@pytest.fixture
def codec() -> UnitCodec:
    pytest.importorskip("zstandard", reason="the optional package zstandard is not installed")
    return UnitCodec(compress=True)


@pytest.mark.parametrize(("data", "expected"), [
    (TEXT, ZSTD), (b"", PLAIN), (TEXT[: COMPRESS_BYTES_MIN - 1], PLAIN), (TEXT[:COMPRESS_BYTES_MIN], ZSTD),
    (os.urandom(100_000), PLAIN), (os.urandom(20_000) + TEXT, PLAIN),
], ids=["text", "empty", "short", "just long enough", "noise", "noise at the start"])  # fmt: skip
def test_unit_is_compressed_only_where_it_pays(codec: UnitCodec, data: bytes, expected: int) -> None:
    number, kept = codec.encode(data)
    assert number == expected
    assert codec.decode(number, kept, len(data)) == data


@pytest.mark.parametrize(
    "damage", [lambda kept: kept[:-3], lambda kept: b"", lambda kept: kept[:9] + b"\xff" * 9 + kept[18:]]
)
def test_damaged_frame_is_corrupt(store: Store, codec: UnitCodec, damage: Callable[[bytes], bytes]) -> None:
    store.units.put([(hash128(TEXT), TEXT)])
    key = keys.unit_bytes_key(keys.DEFAULT_TENANT, hash128(TEXT))
    batch = Batch()
    batch.put(key, damage(store.index.kv.get(key) or b""))
    store.index.kv.write(batch)
    with pytest.raises(Corrupt, match=f"CHECKSUM_MISMATCH.*{hash128(TEXT).hex()}"):
        store.units.get([hash128(TEXT)])


def test_frame_that_would_grow_beyond_the_units_size_is_not_unpacked(codec: UnitCodec) -> None:
    _, bomb = codec.encode(bytes(64 << 20))
    with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH"):
        codec.decode(ZSTD, bomb, 1_000)


def test_store_keeps_units_compressed_and_gives_them_back_whole(store: Store, codec: UnitCodec) -> None:
    store.units.put([(hash128(TEXT), TEXT)])
    row_key, bytes_key = (make(keys.DEFAULT_TENANT, hash128(TEXT)) for make in (keys.unit_key, keys.unit_bytes_key))
    assert UnitRow.decode(store.index.kv.get(row_key) or b"") == UnitRow(0, len(TEXT), ZSTD)
    assert len(store.index.kv.get(bytes_key) or b"") < len(TEXT) // 10
    assert store.units.get([hash128(TEXT)]) == [TEXT]


@pytest.mark.parametrize("setting", ["not wanted", "not installed"])
def test_store_without_compression_keeps_units_plain(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    if setting == "not installed":
        monkeypatch.setattr(unit_codec, "_zstandard", lambda: None)
    plain = UnitCodec(compress=setting != "not wanted")
    assert plain.encode(TEXT) == (PLAIN, TEXT)


def kept_by(store: Store, number: int) -> None:
    """Says of a plain unit in the index that another codec kept it."""
    key = keys.unit_key(keys.DEFAULT_TENANT, hash128(b"unit a"))
    row = UnitRow.decode(store.index.kv.get(key) or b"")
    batch = Batch()
    batch.put(key, replace(row, codec=number).encode())
    store.index.kv.write(batch)


@pytest.mark.parametrize(("number", "text"), [(ZSTD, "pip install"), (7, "codec 7.*upgrade the store")])
def test_unit_kept_by_a_codec_that_is_not_here_is_refused_by_reason(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int, text: str
) -> None:
    monkeypatch.setattr(unit_codec, "_zstandard", lambda: None)
    store.units._codec = UnitCodec(compress=True)
    store.units.put([(hash128(b"unit a"), b"unit a")])
    kept_by(store, number)
    with pytest.raises(Unsupported, match=f"UNIT_CODEC.*{text}") as caught:
        store.units.get([hash128(b"unit a")])
    error: Any = caught.value
    assert isinstance(error, LooseLeafError) and error.fields["codec"] == number
