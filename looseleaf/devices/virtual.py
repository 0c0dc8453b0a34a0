"""The state of this process's virtual GPUs: who they are, what lives on them, their generators (design §8).

Loads no torch. One object per process; a forked child keeps a copy.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from looseleaf.devices.backend import DeviceState
from looseleaf.devices.description import VIRTUAL, VIRTUAL_MEMORY_BYTES, GpuDescription
from looseleaf.units import MIB

# CUDA's caching allocator rounds every tensor up to this, and asks the driver for no less than that.
ALLOCATION_BYTES = 512
SEGMENT_BYTES = 2 * MIB

CONTEXT_DELAY_S = 0.3
COPY_BYTES_PER_S = 20e9
COPY_DELAY_BYTES_MIN = MIB

# torch's own default seed of a CUDA generator that nobody seeded.
DEFAULT_SEED = 67280421310721
_MASK = (1 << 64) - 1


def round_up(size_bytes: int, unit_bytes: int) -> int:
    """The least multiple of `unit_bytes` that is not below `size_bytes`."""
    return -(-size_bytes // unit_bytes) * unit_bytes


def charged_bytes(size_bytes: int) -> int:
    """What the allocator takes for a tensor of this size."""
    return -(-size_bytes // ALLOCATION_BYTES) * ALLOCATION_BYTES


class Ledger:
    """Live bytes of one virtual device, as an allocator would count them. Thread-safe, also against finalisers."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.limit_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._live_bytes = 0
        self._cached_bytes = 0
        self.peak_bytes = 0
        self.peak_reserved_bytes = 0
        self.peak_allocations = 0
        self.allocated_bytes = 0
        self.allocations = 0
        self.refusals = 0
        self.frees = 0
        # A storage may die inside any bytecode, also while this thread holds the lock: its death is only noted here,
        # by one atomic append, and folded in later. Holds at most one entry per live storage.
        self._freed: deque[int] = deque()

    def add(self, size_bytes: int) -> int | None:
        """Count an allocation; returns what to pass to `free`, or None if it would pass the limit."""
        charged = charged_bytes(size_bytes)
        with self._lock:
            if self._freed:
                self._fold()
            live = self._live_bytes + charged
            if live > self.limit_bytes:
                return None
            self._live_bytes = live
            self.allocations += 1
            self.allocated_bytes += charged
            self.peak_allocations = max(self.peak_allocations, self.allocations - self.frees)
            if live > self.peak_bytes:
                self.peak_bytes = live
            if live > self._cached_bytes:
                self._cached_bytes = round_up(live, SEGMENT_BYTES)
                self.peak_reserved_bytes = max(self.peak_reserved_bytes, self._cached_bytes)
        return charged

    def free(self, charged_bytes: int) -> None:
        """Called when a storage dies, from any thread and at any moment; takes no lock."""
        self._freed.append(charged_bytes)

    def live_bytes(self) -> int:
        """Bytes of all live storages on the device."""
        with self._lock:
            self._fold()
            return self._live_bytes

    def reserved_bytes(self) -> int:
        """Live bytes and what a caching allocator would keep."""
        with self._lock:
            self._fold()
            return self._cached_bytes

    def empty_cache(self) -> None:
        """Give back what is cached and not live."""
        with self._lock:
            self._fold()
            self._cached_bytes = round_up(self._live_bytes, SEGMENT_BYTES)

    def reset_peaks(self) -> None:
        """The peaks start again from what lives now."""
        with self._lock:
            self._fold()
            self.peak_bytes = self._live_bytes
            self.peak_allocations = self.allocations - self.frees
            self.peak_reserved_bytes = self._cached_bytes

    def _fold(self) -> None:
        freed = self._freed
        while freed:
            self._live_bytes -= freed.popleft()
            self.frees += 1

    def renew_lock(self) -> None:
        """After a fork: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()


class VirtualGenerator:
    """A counter-based generator as CUDA's Philox is: (seed, offset). Each drawing call takes one offset."""

    __slots__ = ("offset", "seed")

    def __init__(self, seed: int = DEFAULT_SEED, offset: int = 0) -> None:
        self.seed = seed & _MASK
        self.offset = offset

    def manual_seed(self, seed: int) -> None:
        """Seed it; negative seeds wrap as torch's do."""
        self.seed = seed & _MASK
        self.offset = 0

    def next_seed(self) -> int:
        """A 64-bit seed for the next drawing call, by SplitMix64's finaliser over seed and offset."""
        value = (self.seed + 0x9E3779B97F4A7C15 * (self.offset + 1)) & _MASK
        self.offset += 1
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        return value ^ (value >> 31)

    def get(self) -> bytes:
        """16 bytes, the layout of a CUDA generator's state."""
        return struct.pack("<QQ", self.seed, self.offset)

    def set(self, state: bytes) -> None:
        """What `get` gave; raises ValueError for any other length."""
        if len(state) != 16:
            raise ValueError(f"RNG state is wrong size: {len(state)} bytes, 16 expected")
        self.seed, self.offset = struct.unpack("<QQ", state)


class VirtualGpus:
    """All virtual GPUs of this process, and whether and when a cell first used one.

    In a kernel they stand for the pool's, of whichever kind; `session_bytes(index)` tells what the session keeps on
    one of them between cells.
    """

    def __init__(
        self,
        count: int,
        memory_bytes: int = VIRTUAL_MEMORY_BYTES,
        delays: bool = False,
        description: GpuDescription | None = None,
    ) -> None:
        self.description = description or replace(VIRTUAL, memory_bytes=memory_bytes)
        self.memory_bytes = self.description.memory_bytes
        self.session_bytes: Callable[[int], int] = lambda _index: 0
        self.delays = delays
        self.ledgers: list[Ledger] = []
        self.generators: list[VirtualGenerator] = []
        self.count = 0
        self.touched_at: float | None = None
        self.context_open = False
        self.bad_fork = False
        self._local = threading.local()
        self.resize(count)

    def resize(self, count: int) -> None:
        """From now on `count` devices; memory that lives on others stays counted."""
        while len(self.ledgers) < count:
            self.ledgers.append(Ledger(self.memory_bytes))
            self.generators.append(VirtualGenerator())
        self.count = count

    @property
    def current(self) -> int:
        """This thread's current device; 0 until set, as CUDA starts each thread."""
        return getattr(self._local, "current", 0)

    @current.setter
    def current(self, index: int) -> None:
        self._local.current = index

    def touch(self) -> None:
        """A cell uses a device now. Raises RuntimeError in a child forked from a process that had used one."""
        if self.bad_fork:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
                "you must use the 'spawn' start method"
            )
        if self.touched_at is None:
            self.touched_at = time.monotonic()
        self.open_context()

    def open_context(self) -> None:
        """As creating a CUDA context: once per process, and slow if delays are on."""
        if not self.context_open:
            self.context_open = True
            if self.delays:
                time.sleep(CONTEXT_DELAY_S)

    def copied(self, size_bytes: int) -> None:
        """Bytes crossed between host and device; takes the time it would take, if delays are on."""
        if self.delays and size_bytes >= COPY_DELAY_BYTES_MIN:
            time.sleep(size_bytes / COPY_BYTES_PER_S)

    def after_fork_in_child(self) -> None:
        """A child may not use a context that its parent opened."""
        for ledger in self.ledgers:
            ledger.renew_lock()
        if self.context_open:
            self.bad_fork = True
            self.context_open = False
            self.touched_at = None

    def state(self) -> DeviceState:
        """This thread's current device and all generators."""
        return DeviceState(self.current, tuple(generator.get() for generator in self.generators[: self.count]))

    def apply(self, state: DeviceState) -> None:
        """What `state` told, as far as there are such devices."""
        for generator, value in zip(self.generators, state.generators, strict=False):
            generator.set(value)
        if state.current_device < self.count:
            self.current = state.current_device
