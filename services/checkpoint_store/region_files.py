"""The disk tier: files of 2 MiB slots that hold the bytes of regions.

Which slots are in use is told by the index alone: the free list is derived from it at the start and never written down.
A slot is written only while no row of the index names it, so a crash leaves at worst bytes in a slot that nobody names.
"""

from __future__ import annotations

import ctypes
import errno
import heapq
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from looseleaf.errors import CapacityExceeded, LooseLeafError, Unavailable
from looseleaf.services.checkpoint_store.disk import Disk
from looseleaf.units import GIB, REGION_BYTES

SLOT_BYTES: Final = REGION_BYTES
# Large and sparse, so that every file of the largest store can stay open.
SLOTS_PER_FILE: Final = 4 * GIB // SLOT_BYTES
FILES_MAX: Final = 1_024

_PUNCH_HOLE: Final = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_libc = ctypes.CDLL(None, use_errno=True)


class RegionFiles:
    """Slots of the files `regions-NNNN.bin` in `folder`, numbered through all files. Usable from any thread.

    `used`: the slots that the index names. Every method raises Unavailable `STORE_CLOSED` after `close`, Unavailable
    `STORE_IO` for an error of the disk, and CapacityExceeded `DISK_FULL`.
    """

    def __init__(self, folder: Path, used: Iterable[int], disk: Disk | None = None) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._disk = disk or Disk()
        # Lock order: this one before _condition. One sync at a time, so that each knows of those that failed before.
        self._syncing = threading.Lock()
        self._condition = threading.Condition()
        # All below is guarded by _condition.
        self._closed = False
        self._running = 0
        self._fds: dict[int, int] = {}
        self._pins: dict[int, int] = {}
        self._freed_while_pinned: set[int] = set()
        # How many syncs of each file failed; and what that was when a slot was written that no sync covers yet.
        self._failed_syncs: Counter[int] = Counter()
        self._unsynced: dict[int, int] = {}
        taken = set(used)
        self._next_slot = max(taken, default=-1) + 1
        self._free = [slot for slot in range(self._next_slot) if slot not in taken]
        self._drop_leftovers()

    def allocate(self) -> int:
        """A free slot, the lowest one; raises CapacityExceeded `STORE_FULL` beyond FILES_MAX files."""
        with self._condition:
            self._check_open()
            if self._free:
                return heapq.heappop(self._free)
            if self._next_slot >= FILES_MAX * SLOTS_PER_FILE:
                raise CapacityExceeded("STORE_FULL", "the store has no slots left; nothing was stored")
            self._next_slot += 1
            return self._next_slot - 1

    def free(self, slots: Iterable[int]) -> None:
        """Slots that no row names any more; one that is being read is reused only after that. Never raises."""
        with self._condition:
            ready = []
            for slot in slots:
                self._unsynced.pop(slot, None)
                if slot in self._pins:
                    self._freed_while_pinned.add(slot)
                else:
                    ready.append(slot)
        self._reuse(ready)

    @contextmanager
    def pinned(self, slots: Iterable[int]) -> Iterator[None]:
        """Keeps slots from being reused; entered while the rows that name them cannot change."""
        held = list(slots)
        with self._condition:
            for slot in held:
                self._pins[slot] = self._pins.get(slot, 0) + 1
        try:
            yield
        finally:
            self._reuse(self._unpin(held))

    def write(self, slot: int, data: bytes | memoryview) -> None:
        """Writes at most SLOT_BYTES at the slot's start; durable after `sync`."""
        view = memoryview(data)
        assert len(view) <= SLOT_BYTES
        with self._condition:
            self._unsynced[slot] = self._failed_syncs[slot // SLOTS_PER_FILE]
        with self._using(slot) as (fd, offset), _disk_errors("write", self._folder):
            while view:
                written = self._disk.pwrite(fd, view, offset)
                view, offset = view[written:], offset + written

    def sync(self, slots: Iterable[int]) -> None:
        """Makes what was written to these slots survive a loss of power; one fdatasync a file.

        Refused as `STORE_IO` also if a sync of the same file, by whomever, failed since a slot was written: the kernel
        told that one of the pages it lost, and would now call them all clean. Such a slot must be written again.
        """
        by_file: defaultdict[int, list[int]] = defaultdict(list)
        for slot in slots:
            by_file[slot // SLOTS_PER_FILE].append(slot)
        with self._syncing:
            for number, members in by_file.items():
                with self._using(members[0]) as (fd, _), _disk_errors("sync", self._folder):
                    self._sync_file(number, fd, members)

    def _sync_file(self, number: int, fd: int, slots: Iterable[int]) -> None:
        try:
            self._disk.fdatasync(fd)
        except OSError:
            with self._condition:
                self._failed_syncs[number] += 1
            raise
        with self._condition:
            failed = self._failed_syncs[number]
            if any(self._unsynced.get(slot, failed) != failed for slot in slots):
                raise OSError(errno.EIO, "an earlier sync of the file failed")
            for slot in slots:
                self._unsynced.pop(slot, None)

    def read(self, slot: int, length_bytes: int) -> bytes:
        """The first `length_bytes` of a pinned slot, fewer if the file ends before."""
        with self._using(slot) as (fd, offset), _disk_errors("read", self._folder):
            pread = self._disk.pread
            data = pread(fd, length_bytes, offset)
            while len(data) < length_bytes and (more := pread(fd, length_bytes - len(data), offset + len(data))):
                data += more
            return data

    def close(self) -> None:
        """Waits for running calls, then closes the files. Idempotent."""
        with self._condition:
            self._closed = True
            self._condition.wait_for(lambda: self._running == 0)
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()

    def path_of(self, slot: int) -> tuple[Path, int]:
        """The slot's file and its offset in there, in bytes."""
        return self._path(slot // SLOTS_PER_FILE), slot % SLOTS_PER_FILE * SLOT_BYTES

    def _path(self, number: int) -> Path:
        return self._folder / f"regions-{number:04d}.bin"

    @contextmanager
    def _using(self, slot: int) -> Iterator[tuple[int, int]]:
        number = slot // SLOTS_PER_FILE
        with self._condition:
            self._check_open()
            fd = self._fds.get(number)
            if fd is None:
                with _disk_errors("open", self._folder):
                    fd = self._fds[number] = self._open(number)
            self._running += 1
        try:
            yield fd, slot % SLOTS_PER_FILE * SLOT_BYTES
        finally:
            with self._condition:
                self._running -= 1
                self._condition.notify_all()

    def _open(self, number: int) -> int:
        fd = os.open(self._path(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Also for a file that was there: whoever made it may have been killed before this.
            sync_folder(self._folder)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _unpin(self, slots: Iterable[int]) -> list[int]:
        ready = []
        with self._condition:
            for slot in slots:
                self._pins[slot] -= 1
                if self._pins[slot] == 0:
                    del self._pins[slot]
                    if slot in self._freed_while_pinned:
                        self._freed_while_pinned.remove(slot)
                        ready.append(slot)
        return ready

    def _reuse(self, slots: list[int]) -> None:
        for slot in slots:
            # The disk gets the room back at once; where that cannot be, the next region in the slot uses it.
            with suppress(LooseLeafError), self._using(slot) as (fd, offset):
                punch_hole(fd, offset, SLOT_BYTES)
        with self._condition:
            for slot in slots:
                heapq.heappush(self._free, slot)

    def _drop_leftovers(self) -> None:
        """Gives back the room of what was written before a crash and never named."""
        for path in sorted(self._folder.glob("regions-*.bin")):
            number = int(path.stem.removeprefix("regions-"))
            first = number * SLOTS_PER_FILE
            size_slots = -(-path.stat().st_size // SLOT_BYTES)
            free = [slot for slot in self._free if first <= slot < first + size_slots]
            tail = max(self._next_slot, first)
            with _disk_errors("open", self._folder):
                fd = self._fds[number] = self._open(number)
            for slot in free:
                punch_hole(fd, (slot - first) * SLOT_BYTES, SLOT_BYTES)
            if tail < first + size_slots:
                os.ftruncate(fd, (tail - first) * SLOT_BYTES)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("STORE_CLOSED", "the store is stopping; nothing was stored, retry when it is back")


def sync_folder(folder: Path) -> None:
    """Makes the names of what lies in `folder` survive a loss of power; raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def punch_hole(fd: int, offset: int, size_bytes: int) -> bool:
    """Frees the disk blocks of a part of a file; False where the file system cannot."""
    return bool(_libc.fallocate(fd, _PUNCH_HOLE, ctypes.c_int64(offset), ctypes.c_int64(size_bytes)) == 0)


@contextmanager
def _disk_errors(action: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text = f"the disk of {folder} is full; nothing was stored, free space and retry"
            raise CapacityExceeded("DISK_FULL", text, retry_after_s=5.0) from error
        text = f"the store's disk could not {action}: {error.strerror or error}; nothing was stored, retry"
        raise Unavailable("STORE_IO", text, action=action, errno=error.errno or 0) from error
