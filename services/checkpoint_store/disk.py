"""The system calls by which region bytes reach and leave the disk: the seam at which tests make a disk fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Disk:
    """As the functions of `os`; each may raise OSError, `pwrite` and `pread` may do less than asked."""

    pwrite: Callable[[int, memoryview, int], int] = os.pwrite
    pread: Callable[[int, int, int], bytes] = os.pread
    fdatasync: Callable[[int], None] = os.fdatasync
