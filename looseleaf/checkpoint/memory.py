"""Blocks of memory under tensors and arrays, found by where they lie and not by which library made them (design §3).

A save notes every storage, array and byte string that the walk meets, then merges what overlaps: a view, its base and a
`torch.from_numpy` alias are one block. Blocks from 64 KiB on are payloads; smaller ones go into a unit.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from looseleaf import devices
from looseleaf.checkpoint.edges import BYTES_PAYLOAD_MIN
from looseleaf.ids import PayloadId
from looseleaf.units import INLINE_PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from looseleaf.checkpoint.loaded_memory import Home, LoadedMemory
    from looseleaf.devices import DeviceBackend

CPU: Final = "cpu"


@dataclass(eq=False, slots=True)
class Block:
    """`size_bytes` at `address` on `device`, kept alive by `owners`; `kind` as in PayloadEntry.

    `storage`: the torch storage to read device memory from. `owner`: the bytes or bytearray that the block is, if any.
    """

    device: str
    address: int
    size_bytes: int
    kind: str = "memory"
    owners: list[Any] = field(default_factory=list)
    storage: Any = None
    owner: Any = None
    users: list[Any] = field(default_factory=list)
    payload_id: PayloadId | None = None
    known_id: int | None = None
    # Made by pickling itself: gone after the save, and its place is soon somebody else's.
    is_late: bool = False

    @property
    def is_payload(self) -> bool:
        """True if it is stored as regions, apart from the units that refer to it."""
        return self.size_bytes >= (INLINE_PAYLOAD_BYTES_MAX if self.kind == "memory" else BYTES_PAYLOAD_MIN)

    @property
    def key(self) -> tuple[str, int, int, str]:
        """Where it lies: the label under which the next save finds it again. Its content is compared every time."""
        return (self.device, self.address, self.size_bytes, self.kind)

    def read(self) -> memoryview:
        """The bytes; of device memory a copy, else the memory itself."""
        if self.device != CPU and self.storage is not None:
            return memoryview(devices.backend().host_view(self.storage)).cast("B")
        if self.kind != "memory":
            return memoryview(self.owner).cast("B")
        return view_of_address(self.address, self.size_bytes)


@dataclass(eq=False, slots=True)
class _Record:
    start: int
    end: int
    owner: Any
    storage: Any = None
    users: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MappedRange:
    """[start, end) is the known payload or block `known_id`, for as long as `home` is alive."""

    start: int
    end: int
    known_id: int
    home: Home


def view_of_address(address: int, size_bytes: int) -> memoryview:
    """The memory itself, not kept alive by the view."""
    if size_bytes == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B")


class MemoryMap:
    """Every block that a save meets. First `note_*` all of them, then `merge` once, then ask.

    `on_late` is told of blocks that only pickling brings to light.
    """

    def __init__(self, on_late: Callable[[Block], None] | None = None) -> None:
        self._on_late = on_late
        self._by_device: dict[str, list[_Record]] = {}
        self._records: dict[int, tuple[str, _Record]] = {}
        self._blocks_of_records: dict[int, Block] = {}
        self.blocks: list[Block] = []
        # For `block_around`: blocks of host memory by their addresses, once asked.
        self._on_host: list[Block] = []
        self._starts: list[int] | None = None
        self._keep: list[Any] = []

    def note_storage(self, storage: Any, user: Any) -> None:
        """A torch UntypedStorage, referred to by the object `user`."""
        address = storage.data_ptr()
        record = self._record_of(storage, device_of(storage), address, address + storage.nbytes())
        record.storage = storage
        if user is not None:
            record.users.append(user)

    def note_array(self, base: Any, user: Any) -> None:
        """An array that is its own base, referred to by `user`."""
        start, end = array_bounds(base)
        self._record_of(base, CPU, start, end).users.append(user)

    def note_bytes(self, value: bytes | bytearray) -> None:
        """A byte string: its own owner and user."""
        if len(value):
            start = address_of_bytes(value)
            self._record_of(value, CPU, start, start + len(value)).users.append(value)

    def note_range(self, owner: Any, start: int, end: int, user: Any) -> None:
        """Host memory from `start` up to `end` that `owner` keeps alive, referred to by `user`."""
        self._record_of(owner, CPU, start, end).users.append(user)

    def note_held(self, loaded: LoadedMemory | bytes | bytearray) -> None:
        """Memory that units which are not loaded refer to: saved even if nothing here uses it any more."""
        if isinstance(loaded, (bytes, bytearray)):
            self._record_of(loaded, CPU, start := address_of_bytes(loaded), start + len(loaded))
            return
        for storage in loaded.storages():
            self.note_storage(storage, None)
        if loaded.device == CPU and loaded.size_bytes:
            self._record_of(loaded, CPU, loaded.address, loaded.address + loaded.size_bytes)

    def _record_of(self, owner: Any, device: str, start: int, end: int) -> _Record:
        entry = self._records.get(id(owner))
        if entry is not None:
            return entry[1]
        record = _Record(start, end, owner)
        self._records[id(owner)] = (device, record)
        self._by_device.setdefault(device, []).append(record)
        return record

    def merge(self, mapped: Iterable[MappedRange]) -> None:
        """Cuts the noted memory into blocks; what touches a known payload or block belongs to it whole."""
        for device, records in self._by_device.items():
            ranges = list(mapped) if device == CPU else []
            for group, within in _overlapping(records, ranges):
                self._add_block(device, group, within)

    def _add_block(self, device: str, group: list[_Record], within: list[MappedRange]) -> None:
        start = min([r.start for r in group] + [m.start for m in within])
        end = max([r.end for r in group] + [m.end for m in within])
        block = Block(device, start, end - start, owners=[r.owner for r in group])
        block.storage = next((r.storage for r in group if r.storage is not None), None)
        block.users = [user for r in group for user in r.users]
        if len(within) == 1 and (within[0].start, within[0].end) == (start, end):
            block.known_id = within[0].known_id
            if block.is_payload:
                block.payload_id = PayloadId(block.known_id)
        for record in group:
            if type(record.owner) in (bytes, bytearray) and (record.start, record.end) == (start, end):
                block.kind, block.owner = type(record.owner).__name__, record.owner
        self.blocks.append(block)
        for record in group:
            self._blocks_of_records[id(record.owner)] = block

    def block_of(self, owner: Any) -> Block | None:
        """The block of a noted storage, base array or byte string; None if it was never noted or is empty."""
        return self._blocks_of_records.get(id(owner))

    def block_around(self, start: int, end: int) -> Block | None:
        """The noted block of host memory that holds the whole range; None if there is none."""
        if self._starts is None:
            self._on_host = sorted((b for b in self.blocks if b.device == CPU), key=lambda block: block.address)
            self._starts = [block.address for block in self._on_host]
        place = bisect_right(self._starts, start) - 1
        block = self._on_host[place] if place >= 0 else None
        return block if block is not None and end <= block.address + block.size_bytes else None

    def add_late(self, owner: Any, *, is_storage: bool) -> Block:
        """A block for memory that only pickling brought to light; it is kept alive with the map."""
        self._keep.append(owner)
        if is_storage:
            address = owner.data_ptr()
            block = Block(device_of(owner), address, owner.nbytes(), owners=[owner], storage=owner)
        else:
            start, end = array_bounds(owner)
            block = Block(CPU, start, end - start, owners=[owner])
        block.is_late = True
        self.blocks.append(block)
        self._blocks_of_records[id(owner)] = block
        if self._on_late is not None:
            self._on_late(block)
        return block


def _overlapping(
    records: list[_Record], mapped: list[MappedRange]
) -> Iterator[tuple[list[_Record], list[MappedRange]]]:
    """Groups of records that share memory, by one sweep over all ranges; empty ranges belong to no group."""
    ranges: list[tuple[int, int, _Record | MappedRange]] = [(r.start, r.end, r) for r in records if r.end > r.start]
    ranges += [(m.start, m.end, m) for m in mapped]
    ranges.sort(key=lambda entry: entry[:2])
    group: list[_Record] = []
    within: list[MappedRange] = []
    limit = -1
    for start, end, entry in ranges:
        if start >= limit:
            if group:
                yield group, within
            group, within, limit = [], [], end
        limit = max(limit, end)
        if isinstance(entry, _Record):
            group.append(entry)
        else:
            within.append(entry)
    if group:
        yield group, within


def array_bounds(array: Any) -> tuple[int, int]:
    """First and one past the last address that the array's elements occupy; equal if it has none."""
    address = low = high = int(array.__array_interface__["data"][0])
    if array.size == 0:
        return address, address
    for count, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (count - 1) * stride
        else:
            high += (count - 1) * stride
    return low, high + array.itemsize


def outermost(array: Any, ndarray: type) -> Any:
    """The array at the end of the chain of bases."""
    while isinstance(base := _base_of(array), ndarray):
        array = base
    return array


def _base_of(array: Any) -> Any:
    base = array.base
    is_between = type(base).__name__ == "DummyArray" and type(base).__module__.startswith("numpy.lib")
    # Of a view that `as_strided` made.
    return base.base if is_between else base


def shared_file_at(address: int) -> str | None:
    """The file that is mapped at the address so that writing there changes it; None if there is none.

    Memory without a file's name, or which torch itself shares between processes, counts as memory.
    """
    with Path("/proc/self/maps").open() as maps:
        for line in maps:
            bounds, flags, _, _, _, *path = line.rstrip("\n").split(maxsplit=5)
            if flags == "rw-s" and path and not path[0].startswith(_SHARED_MEMORY):
                start, _, end = bounds.partition("-")
                if int(start, 16) <= address < int(end, 16):
                    return path[0]
    return None


# Of torch, which shares tensors between processes by it, and of files without names, such as ours.
_SHARED_MEMORY: Final = ("/dev/shm/torch_", "/memfd:")


def address_of_bytes(value: bytes | bytearray) -> int:
    """Where the first byte lies."""
    if isinstance(value, bytearray):
        return ctypes.addressof(ctypes.c_char.from_buffer(value))
    return ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value or 0


def active_backend() -> DeviceBackend | None:
    """The device backend, or None if no devices were installed into this process."""
    return devices.backend() if devices.active() else None


def device_of(storage: Any) -> str:
    """Where a torch storage lives, such as "cpu" or "cuda:0"; virtual devices count as what they stand for."""
    backend = active_backend()
    return str(storage.device) if backend is None else str(backend.device_of(storage))


def raw_access() -> AbstractContextManager[Any]:
    """Inside it tensors show the memory that they really have, whatever devices are imitated."""
    return devices.raw()
