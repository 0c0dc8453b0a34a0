from __future__ import annotations

from looseleaf.worker.huge_pages import HUGE_PAGE_BYTES, own_pages, use_huge_pages

MAPS = """\
00400000-00a00000 r-xp 00000000 08:01 12 /usr/bin/python3
01000000-01500000 rw-p 00000000 00:00 0 [heap]
7f0000100000-7f0000700000 rw-p 00000000 00:00 0
7f0000800000-7f0000900000 rw-p 00000000 00:00 0
7f0001000000-7f0001400000 rw-s 00000000 00:01 7 /memfd:looseleaf-arena (deleted)
7f0002000000-7f0002400000 rw-p 00100000 08:01 99 /usr/lib/libtorch.so
7f0003000000-7f0003400000 r--p 00000000 00:00 0
7ffd00000000-7ffd00400000 rw-p 00000000 00:00 0 [stack]
"""


def test_huge_pages_lie_whole_and_aligned_in_memory_of_the_process_own() -> None:
    heap, mapped = 0x01000000, 0x7F0000200000
    expected = [heap, heap + HUGE_PAGE_BYTES, mapped, mapped + HUGE_PAGE_BYTES]
    assert list(own_pages(MAPS.splitlines())) == expected


def test_memory_reads_the_same_afterwards() -> None:
    data = bytearray(range(256)) * (8 * HUGE_PAGE_BYTES // 256)
    made = use_huge_pages()
    assert made >= 0 and data[:256] == data[-256:] == bytearray(range(256))
    assert data.count(255) == len(data) // 256
