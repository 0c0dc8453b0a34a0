"""Region hashes against the reference library, exact compare against numpy."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.dirty_tracker import compare_regions, copy_into, dirty_regions, hash128, region_hashes
from looseleaf.errors import InvalidArgument
from looseleaf.units import MIB, REGION_BYTES

SMALL_REGION_BYTES = 4096


def reference_hashes(data: bytes, region_bytes: int, seed: int) -> bytes:
    return b"".join(
        xxhash.xxh3_128_digest(data[at : at + region_bytes], seed=seed) for at in range(0, len(data), region_bytes)
    )


def random_bytes(size_bytes: int, seed: int = 0) -> bytearray:
    return bytearray(np.random.default_rng(seed).bytes(size_bytes))


@given(
    data=st.binary(max_size=600),
    region_bytes=st.integers(1, 300),
    seed=st.integers(0, 2**64 - 1),
    offset=st.integers(0, 40),
    threads=st.integers(1, 3),
)
def test_region_hashes_any_buffer_equal_the_reference(
    data: bytes, region_bytes: int, seed: int, offset: int, threads: int
) -> None:
    view = memoryview(data)[offset:]
    found = region_hashes(view, region_bytes=region_bytes, seed=seed, threads=threads)
    assert found == reference_hashes(bytes(view), region_bytes, seed)


@pytest.mark.parametrize("size_bytes", [0, 1, 16, 17, 240, 241, REGION_BYTES - 1, REGION_BYTES, 2 * REGION_BYTES + 3])
@pytest.mark.parametrize("offset", [0, 1, 13])
def test_region_hashes_default_regions_equal_the_reference(size_bytes: int, offset: int) -> None:
    data = random_bytes(size_bytes + offset, size_bytes)
    expected = reference_hashes(bytes(data[offset:]), REGION_BYTES, 5)
    for threads in (1, 4):
        assert region_hashes(memoryview(data)[offset:], seed=5, threads=threads) == expected


@settings(max_examples=60)
@given(size_bytes=st.integers(1, 5 * SMALL_REGION_BYTES), data=st.data())
def test_dirty_regions_one_flipped_bit_reports_its_region_only(size_bytes: int, data: st.DataObject) -> None:
    content = random_bytes(size_bytes, size_bytes)
    before = region_hashes(content, region_bytes=SMALL_REGION_BYTES)
    shadow = bytes(content)
    at = data.draw(st.integers(0, size_bytes - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    after = region_hashes(content, region_bytes=SMALL_REGION_BYTES)
    assert dirty_regions(after, before) == [at // SMALL_REGION_BYTES]
    assert compare_regions(content, shadow, SMALL_REGION_BYTES) == [at // SMALL_REGION_BYTES]


@given(
    old=st.lists(st.integers(0, 3), max_size=200),
    changes=st.lists(st.tuples(st.integers(0, 199), st.integers(0, 3))),
    region_bytes=st.integers(1, 70),
)
def test_compare_regions_any_change_equals_numpy(
    old: list[int], changes: list[tuple[int, int]], region_bytes: int
) -> None:
    before = np.array(old, dtype=np.uint8)
    after = before.copy()
    for at, value in changes:
        if at < len(after):
            after[at] = value
    expected = sorted({int(at) // region_bytes for at in np.flatnonzero(before != after)})
    assert compare_regions(after, before, region_bytes) == expected
    hashes = [region_hashes(array, region_bytes=region_bytes, seed=1) for array in (after, before)]
    assert dirty_regions(*hashes) == expected


def test_compare_regions_floats_compares_bits() -> None:
    nan = np.full(4, np.nan)
    assert compare_regions(nan, nan.copy(), 8) == []
    assert compare_regions(np.array([0.0, 1.0]), np.array([-0.0, 1.0]), 8) == [0]


def test_dirty_regions_longer_new_table_reports_the_added_regions() -> None:
    data = random_bytes(3 * SMALL_REGION_BYTES)
    table = region_hashes(data, region_bytes=SMALL_REGION_BYTES)
    assert dirty_regions(table, table[:16]) == [1, 2]
    assert dirty_regions(table, b"") == [0, 1, 2]
    assert dirty_regions(table[:16], table) == []


def test_hash128_any_buffer_equals_its_only_region() -> None:
    data = random_bytes(MIB + 1)
    assert hash128(data, seed=9) == region_hashes(data, seed=9) == xxhash.xxh3_128_digest(data, seed=9)
    assert hash128(b"") == xxhash.xxh3_128_digest(b"")
    assert region_hashes(b"") == b""


def test_region_hashes_shaped_array_hashes_its_memory() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert region_hashes(array) == region_hashes(array.tobytes())


def test_region_hashes_strided_array_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="BUFFER_NOT_CONTIGUOUS"):
        region_hashes(np.arange(10)[::2])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"region_bytes": 0}, "REGION_BYTES_OUT_OF_RANGE"),
        ({"region_bytes": -1}, "REGION_BYTES_OUT_OF_RANGE"),
        ({"region_bytes": 2**64}, "REGION_BYTES_OUT_OF_RANGE"),
        ({"seed": -1}, "SEED_OUT_OF_RANGE"),
        ({"seed": 2**64}, "SEED_OUT_OF_RANGE"),
        ({"threads": 0}, "THREADS_OUT_OF_RANGE"),
        ({"threads": 10_000}, "THREADS_OUT_OF_RANGE"),
    ],
)
def test_region_hashes_argument_out_of_range_is_refused(arguments: dict[str, int], reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        region_hashes(b"abc", **arguments)
    assert caught.value.reason == reason


def test_hashes_of_something_without_a_buffer_are_refused() -> None:
    for call in (region_hashes, hash128):
        with pytest.raises(InvalidArgument, match="NOT_A_BUFFER"):
            call(3)  # type: ignore[operator]


def test_dirty_regions_malformed_table_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="HASH_TABLE_MALFORMED"):
        dirty_regions(bytes(17), bytes(16))


def test_compare_regions_other_length_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="LENGTHS_DIFFER"):
        compare_regions(b"ab", b"abc")


@pytest.mark.parametrize(
    "call",
    [
        region_hashes,
        hash128,
        lambda data: compare_regions(data, data),
        lambda data: copy_into(data, 0, data, 0, len(data)),
    ],
    ids=["region_hashes", "hash128", "compare_regions", "copy_into"],
)
def test_work_on_a_long_buffer_leaves_other_threads_running(call: Callable[[bytearray], object]) -> None:
    data = bytearray(32 * MIB)
    gate = threading.Lock()
    ran: list[bool] = []

    def other() -> None:
        with gate:
            ran.append(True)

    gate.acquire()
    thread = threading.Thread(target=other)
    thread.start()
    interval_s = sys.getswitchinterval()
    # From here the interpreter takes the GIL from nobody: the other thread runs only if the call gives it up.
    sys.setswitchinterval(1000)
    try:
        gate.release()
        limit_s = time.monotonic() + 10
        while not ran and time.monotonic() < limit_s:
            call(data)
        assert ran
    finally:
        sys.setswitchinterval(interval_s)
        thread.join(10)
