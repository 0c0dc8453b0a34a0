"""The host arena: shared memory in 2 MiB slots, written by the daemon alone (design §7)."""

from __future__ import annotations

import os

from looseleaf.dirty_tracker import Memfd, copy_into
from looseleaf.errors import CapacityExceeded, InvalidArgument
from looseleaf.services.worker_daemon.core.region_table import Slot
from looseleaf.units import REGION_BYTES, format_bytes

SEGMENT_SLOTS_MIN = 64
SEGMENT_BYTES_MIN = SEGMENT_SLOTS_MIN * REGION_BYTES
# Free slots that keep their memory. Getting memory for a slot takes ten times as long as writing into what it has.
WARM_SLOTS_MAX = 64
# Slots that lose their memory at once; each takes the kernel about as long as a copy of its bytes would.
COOL_SLOTS_PER_STEP = 8
# All of an arena's segments fit the fds of one protocol frame, and few fds are open in a kernel or worker.
SEGMENTS_MAX = 32


class HostArena:
    """At most `SEGMENTS_MAX` memfd segments of equal size, made as they are needed, up to `limit_bytes`.

    Kernels and workers get each segment as a read-only file descriptor; a private writable mapping of it
    works, a shared or re-opened writing one is refused by the kernel. A segment takes memory only where its slots were
    written; of free slots at most `WARM_SLOTS_MAX` keep theirs, or as many as `keep_warm` said, once `cool` has
    taken its steps.
    """

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < SEGMENT_BYTES_MIN:
            raise InvalidArgument("ARENA_TOO_SMALL", f"the host arena needs at least {format_bytes(SEGMENT_BYTES_MIN)}")
        self.limit_bytes = limit_bytes
        self._segment_slots = max(SEGMENT_SLOTS_MIN, limit_bytes // REGION_BYTES // SEGMENTS_MAX)
        self._segments_max = min(SEGMENTS_MAX, limit_bytes // (self._segment_slots * REGION_BYTES))
        self._segments: list[Memfd] = []
        self._readonly: list[int] = []
        self._free: list[Slot] = []
        self._warm: list[Slot] = []
        self._warm_max = WARM_SLOTS_MAX
        self._used = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots in use; a slot counts whole."""
        return self._used * REGION_BYTES

    @property
    def slots_max(self) -> int:
        """How many slots there can be: whole segments only, so up to one segment less than `limit_bytes`."""
        return self._segments_max * self._segment_slots

    @property
    def has_warm(self) -> bool:
        """Whether the next slot has its memory already."""
        return bool(self._warm)

    def allocate(self) -> Slot:
        """A slot whose bytes are undefined, a warm one if there is one. Raises CapacityExceeded `ARENA_FULL`."""
        if not self._warm and not self._free:
            self._grow()
        self._used += 1
        return (self._warm or self._free).pop()

    def _grow(self) -> None:
        segment_bytes = self._segment_slots * REGION_BYTES
        if len(self._segments) == self._segments_max:
            raise CapacityExceeded(
                "ARENA_FULL",
                f"this host's shared memory for saved state is full "
                f"({format_bytes(self.limit_bytes)}); nothing new was saved, the last version is valid",
                needed_bytes=REGION_BYTES,
                available_bytes=0,
            )
        segment = Memfd.create(f"looseleaf-arena-{len(self._segments)}", segment_bytes)
        os.fchmod(segment.fd, 0o600)
        number = len(self._segments)
        self._segments.append(segment)
        self._readonly.append(segment.readonly_fd())
        self._free.extend(Slot(number, index) for index in reversed(range(self._segment_slots)))

    def free(self, slot: Slot) -> None:
        """The slot may be used again; it stays warm until `cool` gives its memory back. Nothing after `close`."""
        if not self._segments:
            return
        self._used -= 1
        self._warm.append(slot)

    def keep_warm(self, slots: int) -> None:
        """So many slots are about to be used: as many free ones keep their memory, `WARM_SLOTS_MAX` at the least."""
        self._warm_max = max(WARM_SLOTS_MAX, slots)

    @property
    def too_warm(self) -> bool:
        """Whether more free slots keep their memory than may."""
        return len(self._warm) > self._warm_max

    def cool(self) -> None:
        """Gives back the memory of at most `COOL_SLOTS_PER_STEP` of the free slots that are too many to be warm."""
        for _ in range(min(COOL_SLOTS_PER_STEP, len(self._warm) - self._warm_max)):
            slot = self._warm.pop()
            self._segments[slot.segment].punch_hole(slot.index * REGION_BYTES, REGION_BYTES)
            self._free.append(slot)

    def write(self, slot: Slot, source: memoryview) -> None:
        """Copies `source` (at most 2 MiB) into the slot; releases the GIL."""
        copy_into(self._segments[slot.segment].buffer, slot.index * REGION_BYTES, source, 0, len(source))

    def view(self, slot: Slot, length_bytes: int) -> memoryview:
        """The slot's first `length_bytes`, read-only and without a copy."""
        start = slot.index * REGION_BYTES
        return memoryview(self._segments[slot.segment].buffer)[start : start + length_bytes].toreadonly()

    @property
    def inodes(self) -> list[int]:
        """The inode numbers of its memory files, as /proc shows them."""
        return [os.fstat(fd).st_ino for fd in self._readonly]

    def readonly_fd(self, segment: int) -> int:
        """A read-only descriptor of the segment, owned by the arena."""
        return self._readonly[segment]

    def close(self) -> None:
        """Gives all memory back; mappings elsewhere stay valid until they end."""
        for fd in self._readonly:
            os.close(fd)
        for segment in self._segments:
            segment.close()
        self._segments, self._readonly, self._free, self._warm, self._used = [], [], [], [], 0


class Ring:
    """The shared memory through which one connection hands dirty regions to the daemon."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = max(size_bytes // REGION_BYTES, 1) * REGION_BYTES
        self._memory = Memfd.create("looseleaf-ring", self.size_bytes)

    @property
    def fd(self) -> int:
        """The descriptor to send to the peer, which writes through it."""
        return self._memory.fd

    def view(self, slot: int, length_bytes: int) -> memoryview:
        """The first `length_bytes` of ring slot `slot`. Raises InvalidArgument `RING_SLOT_UNKNOWN`."""
        if not 0 <= slot < self.size_bytes // REGION_BYTES or not 0 <= length_bytes <= REGION_BYTES:
            raise InvalidArgument(
                "RING_SLOT_UNKNOWN",
                "a region was announced outside the shared ring",
                slot=slot,
                length_bytes=length_bytes,
            )
        return memoryview(self._memory.buffer)[slot * REGION_BYTES : slot * REGION_BYTES + length_bytes]

    def close(self) -> None:
        """Gives the memory back."""
        self._memory.close()
