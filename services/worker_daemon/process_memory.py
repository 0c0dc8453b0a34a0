"""What memory a worker has with the processes that its cells started, where no control group counts it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from looseleaf.units import KIB

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def used_memory_bytes(pid: int, limit_bytes: int) -> int:
    """Memory of a process and of those below it; exact only above the limit. 0 if it has ended.

    Without pages of files, of shared memory and of the arena. Pages that a fork left shared count once. Takes
    microseconds for each thread below the limit; beyond it, where there is more than one process, up to a second for
    each 64 GiB, so not for the event loop.
    """
    pids = [pid, *descendants(pid)]
    most_bytes = sum(map(own_memory_bytes, pids))
    if len(pids) == 1 or most_bytes <= limit_bytes:
        return most_bytes
    return sum(map(_share_bytes, pids))


def own_memory_bytes(pid: int) -> int:
    """Memory that is the process's alone, or still shared with one that it was forked from; 0 if it has ended.

    Without pages of files and of shared memory. Takes microseconds.
    """
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


def descendants(pid: int) -> list[int]:
    """Processes that it started, and those that they did, but for orphans."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids = [int(text) for text in path.read_text().split()]
        except OSError:
            continue  # it ended
        for child in pids:
            found += [child, *descendants(child)]
    return found


def _share_bytes(pid: int) -> int:
    """As `own_memory_bytes`, of a page that n processes share an n-th part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith("Pss_Anon:")), 0)
