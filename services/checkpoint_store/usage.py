"""How many bytes the store holds, and what may still come in."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from looseleaf.errors import CapacityExceeded
from looseleaf.units import KIB, format_bytes

# What a file system hands out.
BLOCK_BYTES: Final = 4 * KIB
RETRY_AFTER_S: Final = 5.0


def blocks_of(size_bytes: int) -> int:
    """Bytes of disk that `size_bytes` of content take."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


class Usage:
    """Counts bytes of units and regions against `bytes_max`; leaves `disk_free_bytes_min` of the disk to the index."""

    def __init__(self, folder: Path, bytes_max: int, disk_free_bytes_min: int, used_bytes: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._disk_free_bytes_min = disk_free_bytes_min
        self._lock = threading.Lock()
        self._used_bytes = used_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes held now, reservations included."""
        return self._used_bytes

    @property
    def bytes_max(self) -> int:
        """The limit."""
        return self._bytes_max

    def reserve(self, size_bytes: int) -> None:
        """Counts bytes that are about to be written; raises CapacityExceeded `STORE_FULL` before any is."""
        disk = os.statvfs(self._folder)
        disk_bytes = disk.f_bavail * disk.f_frsize - self._disk_free_bytes_min
        with self._lock:
            quota_bytes = self._bytes_max - self._used_bytes
            # What is there already needs no room, and is welcome on a full disk too.
            if size_bytes > max(0, min(quota_bytes, disk_bytes)):
                raise self._full(size_bytes, quota_bytes, disk_bytes)
            self._used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Bytes that were freed, or reserved and not written."""
        with self._lock:
            self._used_bytes -= size_bytes

    def _full(self, needed_bytes: int, quota_bytes: int, disk_bytes: int) -> CapacityExceeded:
        available_bytes = max(0, min(quota_bytes, disk_bytes))
        cure = "raise stored_bytes_max" if quota_bytes <= disk_bytes else f"free space on the disk of {self._folder}"
        text = (
            f"the store needs {format_bytes(needed_bytes)} and has {format_bytes(available_bytes)} left; nothing was "
            f"stored: delete sessions you no longer need (`looseleaf session rm`), or {cure}"
        )
        return CapacityExceeded(
            "STORE_FULL", text,
            needed_bytes=needed_bytes, available_bytes=available_bytes, retry_after_s=RETRY_AFTER_S,
        )  # fmt: skip
