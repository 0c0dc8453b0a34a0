"""Shared segments and copies."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.dirty_tracker import Memfd, copy_into
from looseleaf.errors import Forbidden, InvalidArgument, PreconditionFailed
from looseleaf.units import MIB, REGION_BYTES

PAGE_BYTES = mmap.PAGESIZE


def test_memfd_created_is_zero_private_mode_and_writable() -> None:
    with Memfd.create("segment", 3 * PAGE_BYTES + 1) as segment:
        assert segment.size_bytes == 3 * PAGE_BYTES + 1 == len(segment.buffer)
        assert not any(segment.buffer)
        assert segment.writable
        assert not segment.buffer.readonly
        assert os.fstat(segment.fd).st_mode & 0o777 == 0o600
        assert not os.get_inheritable(segment.fd)


def test_memfd_size_cannot_be_changed_by_who_holds_its_fd() -> None:
    with Memfd.create("segment", 2 * PAGE_BYTES) as segment:
        for size_bytes in (0, PAGE_BYTES, 3 * PAGE_BYTES):
            with pytest.raises(PermissionError):
                os.truncate(segment.fd, size_bytes)
        with pytest.raises(PermissionError):
            fcntl.fcntl(segment.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        segment.buffer[PAGE_BYTES:] = b"x" * PAGE_BYTES
        segment.punch_hole(PAGE_BYTES, PAGE_BYTES)
        assert not any(segment.buffer)


def test_memfd_opened_by_fd_shares_the_bytes_both_ways() -> None:
    with Memfd.create("segment", MIB) as segment, Memfd.open_fd(segment.fd, MIB, True) as other:
        segment.buffer[5] = 7
        other.buffer[6] = 8
        assert bytes(other.buffer[5:7]) == bytes(segment.buffer[5:7]) == b"\x07\x08"
        assert other.fd != segment.fd


def test_memfd_opened_for_reading_refuses_writes() -> None:
    with Memfd.create("segment", PAGE_BYTES) as segment, Memfd.open_fd(segment.fd, PAGE_BYTES, False) as other:
        segment.buffer[0] = 1
        assert other.buffer[0] == 1
        assert other.buffer.readonly
        with pytest.raises(InvalidArgument, match="BUFFER_NOT_WRITABLE"):
            copy_into(other, 0, b"x", 0, 1)


def test_memfd_readonly_fd_cannot_be_mapped_for_shared_writing() -> None:
    with Memfd.create("segment", PAGE_BYTES) as segment:
        fd = segment.readonly_fd()
        try:
            with pytest.raises(Forbidden, match="SYSTEM_CALL_REFUSED") as caught:
                Memfd.open_fd(fd, PAGE_BYTES, True)
            assert caught.value.fields["call"] == "mmap"
            assert caught.value.fields["errno_name"] == "EACCES"
            assert "memory.cpp:" in caught.value.fields["place"]
            with pytest.raises(PermissionError):
                mmap.mmap(fd, PAGE_BYTES, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            with pytest.raises(OSError, match="Bad file descriptor|not permitted|Invalid"):
                os.pwrite(fd, b"x", 0)
            with Memfd.open_fd(fd, PAGE_BYTES, False) as reader:
                segment.buffer[:2] = b"ok"
                assert bytes(reader.buffer[:2]) == b"ok"
        finally:
            os.close(fd)


def test_memfd_punched_hole_reads_as_zeros_and_frees_memory() -> None:
    with Memfd.create("segment", 3 * REGION_BYTES) as segment:
        segment.buffer[:] = b"x" * segment.size_bytes
        blocks = os.fstat(segment.fd).st_blocks
        segment.punch_hole(REGION_BYTES, REGION_BYTES)
        assert os.fstat(segment.fd).st_blocks == blocks * 2 // 3
        assert bytes(segment.buffer) == b"x" * REGION_BYTES + bytes(REGION_BYTES) + b"x" * REGION_BYTES
        segment.punch_hole(0, 0)


@pytest.mark.parametrize(
    ("offset", "length", "reason"),
    [
        (0, 5 * PAGE_BYTES, "RANGE_OUTSIDE_BUFFER"),
        (8 * PAGE_BYTES, PAGE_BYTES, "RANGE_OUTSIDE_BUFFER"),
        (1, PAGE_BYTES, "RANGE_UNALIGNED"),
        (0, 1, "RANGE_UNALIGNED"),
    ],
)
def test_memfd_malformed_hole_is_refused(offset: int, length: int, reason: str) -> None:
    with Memfd.create("segment", 4 * PAGE_BYTES) as segment, pytest.raises(InvalidArgument, match=reason):
        segment.punch_hole(offset, length)


def test_memfd_closed_refuses_use_and_keeps_live_views() -> None:
    segment = Memfd.create("segment", PAGE_BYTES)
    fd, view = segment.fd, np.frombuffer(segment, dtype=np.uint8)
    segment.buffer[0] = 9
    segment.close()
    segment.close()
    assert segment.closed
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert view[0] == 9
    for use in (
        lambda: segment.buffer, lambda: segment.fd, lambda: segment.size_bytes, lambda: segment.address,
        segment.readonly_fd, lambda: segment.punch_hole(0, 0), lambda: memoryview(segment),
    ):
        with pytest.raises(PreconditionFailed, match="CLOSED"):
            use()


def test_memfd_dropped_closes_its_fd_and_unmaps() -> None:
    segment = Memfd.create("looseleaf-dropped", PAGE_BYTES)
    fd = segment.fd
    del segment
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with open("/proc/self/maps") as maps:
        assert "looseleaf-dropped" not in maps.read()


def test_memfd_of_a_wrong_size_or_file_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="SIZE_OUT_OF_RANGE"):
        Memfd.create("empty", 0)
    with Memfd.create("segment", PAGE_BYTES) as segment, pytest.raises(InvalidArgument, match="SIZE_OUT_OF_RANGE"):
        Memfd.open_fd(segment.fd, 2 * PAGE_BYTES, True)
    with open("/dev/zero", "rb") as device, pytest.raises(InvalidArgument, match="FILE_KIND_REFUSED"):
        Memfd.open_fd(device.fileno(), PAGE_BYTES, False)
    with pytest.raises(InvalidArgument, match="FD_NOT_OPEN"):
        Memfd.open_fd(-1, PAGE_BYTES, False)


@given(
    dst_size=st.integers(0, 30),
    dst_offset=st.integers(0, 30),
    src=st.binary(max_size=30),
    src_offset=st.integers(0, 30),
    length=st.integers(0, 30),
)
def test_copy_into_any_range_copies_exactly_or_refuses(
    dst_size: int, dst_offset: int, src: bytes, src_offset: int, length: int
) -> None:
    dst = bytearray(b"." * dst_size)
    if dst_offset + length > dst_size or src_offset + length > len(src):
        with pytest.raises(InvalidArgument, match="RANGE_OUTSIDE_BUFFER"):
            copy_into(dst, dst_offset, src, src_offset, length)
        assert dst == b"." * dst_size
        return
    copy_into(dst, dst_offset, src, src_offset, length)
    expected = bytearray(b"." * dst_size)
    expected[dst_offset : dst_offset + length] = src[src_offset : src_offset + length]
    assert dst == expected


def test_copy_into_overlapping_ranges_moves() -> None:
    data = bytearray(b"abcdefgh")
    copy_into(data, 2, data, 0, 6)
    assert data == b"ababcdef"


def test_copy_into_negative_or_readonly_is_refused() -> None:
    for offset in (-1, 1 << 64):
        with pytest.raises(InvalidArgument, match="RANGE_OUTSIDE_BUFFER"):
            copy_into(bytearray(3), offset, b"abc", 0, 1)
    with pytest.raises(InvalidArgument, match="BUFFER_NOT_WRITABLE"):
        copy_into(b"abc", 0, b"abc", 0, 1)


def test_memfd_closed_by_another_thread_keeps_views_readable() -> None:
    segment = Memfd.create("segment", MIB)
    view = segment.buffer
    closer = threading.Thread(target=segment.close)
    closer.start()
    closer.join(10)
    assert segment.closed
    assert not any(view)
