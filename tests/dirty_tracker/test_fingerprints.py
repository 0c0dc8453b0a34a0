"""Keyed fingerprints: every schedule against the definition of docs/fingerprints.md, written out a second time here."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from looseleaf.dirty_tracker import FINGERPRINT_SCHEDULES, region_fingerprints
from looseleaf.errors import InvalidArgument

P = 2**61 - 1
TILE_BYTES = 16 << 10
SECRET = bytes(range(32))


def chacha20_words(secret: bytes, blocks: int) -> list[int]:
    """The key stream of RFC 8439 with nonce 0."""
    words: list[int] = []
    for counter in range(blocks):
        start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", secret), counter, 0, 0, 0]
        x = list(start)
        rows = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
        diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
        for _ in range(10):
            for a, b, c, d in rows + diagonals:
                for into, plus, xor, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                    x[into] = (x[into] + x[plus]) & 0xFFFFFFFF
                    mixed = x[xor] ^ x[into]
                    x[xor] = (mixed << bits | mixed >> (32 - bits)) & 0xFFFFFFFF
        words += [(value + first) & 0xFFFFFFFF for value, first in zip(x, start, strict=True)]
    return words


class Key:
    """The key words of a secret."""

    def __init__(self, secret: bytes) -> None:
        words = iter(chacha20_words(secret, 32))

        def element() -> int:
            while True:
                low, high = next(words), next(words)
                if (found := (low | high << 32) & P) != P:
                    return found

        self.nh = np.array([next(words) for _ in range(140)], dtype=np.uint64)
        self.r = [element() for _ in range(4)]
        self.finish = [[element() for _ in range(5)] for _ in range(2)]


def defined(region: bytes, key: Key) -> bytes:
    """The fingerprint of one region, straight from its definition."""
    padded = region + bytes(-len(region) % TILE_BYTES)
    # tile, vector, lane, word
    words = np.frombuffer(padded, dtype="<u4").astype(np.uint64).reshape(-1, 32, 32, 4)
    sums = []
    for t in range(4):
        keys = key.nh[4 * t : 4 * t + 128].reshape(32, 1, 4)
        keyed = (words + keys) & np.uint64(0xFFFFFFFF)
        with np.errstate(over="ignore"):
            nh = (keyed[..., 0] * keyed[..., 1] + keyed[..., 2] * keyed[..., 3]).sum(axis=1, dtype=np.uint64)
        total = 0
        for value in reversed(nh.reshape(-1).tolist()):
            total = (total * key.r[t] + value) % P
        sums.append(total)
    halves = [sum(a * b for a, b in zip([*sums, len(region)], half, strict=True)) % P for half in key.finish]
    return struct.pack("<2Q", *halves)


def defined_table(data: bytes, secret: bytes, region_bytes: int) -> bytes:
    key = Key(secret)
    return b"".join(defined(data[at : at + region_bytes], key) for at in range(0, len(data), region_bytes))


def test_chacha20_here_is_the_one_of_the_rfc() -> None:
    # RFC 8439, appendix A.1, vectors 1 and 2: key and nonce of zeros, blocks 0 and 1.
    stream = struct.pack("<32I", *chacha20_words(bytes(32), 2))
    assert stream[:16].hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    assert stream[64:80].hex() == "9f07e7be5551387a98ba977c732d080d"


@pytest.mark.parametrize("schedule", FINGERPRINT_SCHEDULES)
@settings(max_examples=25)
@given(
    size_bytes=st.one_of(st.integers(0, 600), st.integers(0, 5 * TILE_BYTES), st.integers(250_000, 400_000)),
    offset=st.integers(0, 17),
    region_bytes=st.sampled_from([1, 100, TILE_BYTES, 3 * TILE_BYTES + 5, 1 << 20]),
    seed=st.integers(0, 1000),
    fill=st.sampled_from(["random", "zeros", "ones"]),
)
@example(size_bytes=300_000, offset=1, region_bytes=1 << 20, seed=1, fill="random")
def test_region_fingerprints_equal_the_definition(
    schedule: str, size_bytes: int, offset: int, region_bytes: int, seed: int, fill: str
) -> None:
    size_bytes = min(size_bytes, 40 * region_bytes)
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, size_bytes + offset, dtype=np.uint8)
    if fill != "random":
        data[:] = 0 if fill == "zeros" else 255
    secret = random.bytes(32)
    view = data[offset:]
    found = region_fingerprints(view, secret, region_bytes=region_bytes, schedule=schedule)
    assert found == defined_table(view.tobytes(), secret, region_bytes)


LENGTHS = (0, 1, 15, 16, 17, 511, 512, 513, 16_383, 16_384, 16_385, 65_535, 262_144, (2 << 20) - 3, 2 << 20)


@pytest.mark.parametrize("length", LENGTHS)
def test_region_fingerprints_all_schedules_agree_at_every_edge(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length + 3, dtype=np.uint8)
    for offset in (0, 1, 3):
        view = data[offset : offset + length]
        found = {region_fingerprints(view, SECRET, schedule=schedule) for schedule in FINGERPRINT_SCHEDULES}
        assert len(found) == 1


# Published values: if one changes, saved tables of device payloads are worth nothing.
VECTORS = {
    "one byte 0": (b"\0", SECRET),
    "the bytes 0 to 255, 100 times": (bytes(range(256)) * 100, SECRET),
    "2 MiB of zeros": (bytes(2 << 20), SECRET),
    "2 MiB of SHAKE-128, secret of zeros": (hashlib.shake_128(b"looseleaf").digest(2 << 20), bytes(32)),
}
PUBLISHED = {
    "one byte 0": "4cb9df8be466db15d49718093c984419",
    "the bytes 0 to 255, 100 times": "99abb8ecf003e40168d6e5a596ac6d0b",
    "2 MiB of zeros": "4e4e31a4362f0c0ab12e3c657454a510",
    "2 MiB of SHAKE-128, secret of zeros": "48f229c856248902dc4c2decd150681b",
}


@pytest.mark.parametrize("name", list(VECTORS))
def test_region_fingerprints_published_vectors_hold(name: str) -> None:
    data, secret = VECTORS[name]
    assert region_fingerprints(data, secret).hex() == PUBLISHED[name]
    assert defined_table(data, secret, 2 << 20).hex() == PUBLISHED[name]


@pytest.mark.parametrize("schedule", FINGERPRINT_SCHEDULES[:2])
def test_region_fingerprints_every_flipped_bit_changes_the_value(schedule: str) -> None:
    data = np.zeros(2 << 20, dtype=np.uint8)
    clean = region_fingerprints(data, SECRET, schedule=schedule)
    for at in np.random.default_rng(5).integers(0, data.size * 8, 300):
        data[at // 8] ^= 1 << (at % 8)
        assert region_fingerprints(data, SECRET, schedule=schedule) != clean
        data[at // 8] ^= 1 << (at % 8)


def test_region_fingerprints_see_length_order_and_key() -> None:
    zeros = [region_fingerprints(bytes(length), SECRET) for length in (1, 2, 15, 16, 17, 16_384, 16_385, 32_768)]
    assert len(set(zeros)) == len(zeros)
    data = np.random.default_rng(6).integers(0, 256, 4 * TILE_BYTES, dtype=np.uint8)
    tiles = data.reshape(4, TILE_BYTES)
    orders = [data, tiles[::-1].reshape(-1).copy(), np.roll(data, 16), np.roll(data, 512), np.roll(data, TILE_BYTES)]
    assert len({region_fingerprints(order, SECRET) for order in orders}) == len(orders)
    assert region_fingerprints(data, SECRET) != region_fingerprints(data, bytes(32))


def test_region_fingerprints_threads_change_nothing() -> None:
    data = np.random.default_rng(8).integers(0, 256, 3_000_001, dtype=np.uint8)
    one = region_fingerprints(data, SECRET, region_bytes=100_000)
    assert len(one) == 31 * 16
    assert region_fingerprints(data, SECRET, region_bytes=100_000, threads=4) == one


def test_region_fingerprints_malformed_arguments_are_refused() -> None:
    for arguments, reason in (
        ({"secret": b"short"}, "SECRET_LENGTH"),
        ({"schedule": "abacus"}, "SCHEDULE_UNAVAILABLE"),
        ({"region_bytes": 0}, "REGION_BYTES_OUT_OF_RANGE"),
        ({"threads": 0}, "THREADS_OUT_OF_RANGE"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            region_fingerprints(**{"buffer": b"abc", "secret": SECRET, **arguments})  # type: ignore[arg-type]
        assert caught.value.reason == reason


def test_fingerprint_schedules_name_the_plain_ones_everywhere() -> None:
    assert set(FINGERPRINT_SCHEDULES) >= {"scalar", "emulated512", "cuda"}
