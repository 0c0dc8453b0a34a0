from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from looseleaf.units import KIB
from looseleaf.worker import huge_pages
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


def test_only_pages_that_the_system_made_huge_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []

    def madvise(page: ctypes.c_void_p, size: ctypes.c_size_t, advice: int) -> int:
        asked.append((page.value or 0, size.value, advice))
        return 0 if len(asked) % 3 == 1 else -1

    monkeypatch.setattr(huge_pages.ctypes, "CDLL", lambda _name: SimpleNamespace(madvise=madvise))
    kept = bytearray(8 * HUGE_PAGE_BYTES)
    made = use_huge_pages()
    # MADV_COLLAPSE of whole pages, some of them in the new memory, each once.
    assert {(size, advice) for _page, size, advice in asked} == {(HUGE_PAGE_BYTES, 25)}
    begin = ctypes.addressof(ctypes.c_char.from_buffer(kept))
    inside = [page for page, _size, _advice in asked if begin <= page <= begin + 7 * HUGE_PAGE_BYTES]
    assert len(inside) in (7, 8) and len(set(asked)) == len(asked)
    assert made == -(-len(asked) // 3)


def test_memory_reads_the_same_afterwards_and_is_as_huge_as_it_says() -> None:
    data = bytearray(range(256)) * (8 * HUGE_PAGE_BYTES // 256)
    made = use_huge_pages()
    found = re.search(r"^AnonHugePages: +([0-9]+) kB$", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None and int(found[1]) * KIB >= made * HUGE_PAGE_BYTES
    assert data[:256] == data[-256:] == bytearray(range(256))
    assert data.count(255) == len(data) // 256
