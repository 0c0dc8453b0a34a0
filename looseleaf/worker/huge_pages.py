"""Maps a process's own memory in huge pages, so that a fork of it copies few entries (import-cache study §2.2).

A fork copies an entry for each 4 KiB page that is mapped, and the end of such a process takes them down again: with a
zygote's hundreds of MiB that is most of the fork. What is written afterwards is copied in pages of 4 KiB as before.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from looseleaf.units import MIB

HUGE_PAGE_BYTES: Final = 2 * MIB
# Since Linux 6.1, whatever the system's setting for huge pages is.
_MADV_COLLAPSE: Final = 25
# Writable memory of no file: what allocators got.
_OWN: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(\[heap\])?$")


def own_pages(lines: Iterable[str]) -> Iterator[int]:
    """Where huge pages may lie in the memory that /proc/PID/maps lists so: whole ones, aligned."""
    for line in lines:
        if found := _OWN.match(line):
            begin, end = int(found[1], 16), int(found[2], 16)
            first = -(-begin // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
            yield from range(first, end - HUGE_PAGE_BYTES + 1, HUGE_PAGE_BYTES)


def use_huge_pages() -> int:
    """How many huge pages were made; where the system has none to give, memory stays as it is.

    Takes about 1 ms each. Not for a process that shares its memory with the one it was forked from: it would get
    copies.
    """
    libc = ctypes.CDLL(None)
    pages = list(own_pages(Path("/proc/self/maps").read_text().splitlines()))
    return sum(
        libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(HUGE_PAGE_BYTES), _MADV_COLLAPSE) == 0 for page in pages
    )
