"""Memory during and after a restore: one object for each payload or shared small block, whoever views it."""

from __future__ import annotations

import ctypes
import importlib
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from looseleaf.checkpoint.memory import CPU, Block, active_backend, address_of_bytes, array_bounds
from looseleaf.errors import Corrupt, PreconditionFailed
from looseleaf.ids import PayloadId


def check_range(start: int, size_bytes: int, within_bytes: int) -> None:
    """Raises Corrupt `PAYLOAD_DAMAGED` unless the range lies within the memory: nobody may ever look beside it."""
    if start < 0 or size_bytes < 0 or start + size_bytes > within_bytes:
        text = f"a saved value lies at bytes {start} to {start + size_bytes} of a block that has {within_bytes}"
        raise Corrupt("PAYLOAD_DAMAGED", text)


def check_elements(
    start: int, shape: Sequence[int], strides: Sequence[int], item_bytes: int, within_bytes: int
) -> None:
    """As `check_range` for elements; `start` and `strides` in bytes."""
    if len(shape) != len(strides) or min(shape, default=0) < 0:
        raise Corrupt("PAYLOAD_DAMAGED", f"a saved value of shape {tuple(shape)} has strides {tuple(strides)}")
    if 0 in shape:
        return
    low = high = start
    for count, stride in zip(shape, strides, strict=True):
        if stride < 0:
            low += (count - 1) * stride
        else:
            high += (count - 1) * stride
    check_range(low, high + item_bytes - low, within_bytes)


class LoadedMemory:
    """`size_bytes` of memory on `device`, seen by arrays as a buffer and by tensors as storages.

    Host memory is `exporter`, any object with a writable buffer, or else belongs to a torch storage. Views keep it
    alive, this object need not live on.
    """

    def __init__(self, exporter: Any, size_bytes: int, device: str = CPU, payload_id: PayloadId | None = None) -> None:
        self.device = device
        self.size_bytes = size_bytes
        self.payload_id = payload_id
        self._exporter = exporter
        self._storages: dict[tuple[int, int], Any] = {}
        # Told of the storage on a device that was filled with all of this.
        self.on_device: Callable[[Any], None] | None = None

    @classmethod
    def of_mapping(cls, mapped: Any, size_bytes: int, device: str, payload_id: PayloadId) -> LoadedMemory:
        """Memory that a StateIO mapped; its exporter can be referred to weakly."""
        exporter = (ctypes.c_char * size_bytes).from_buffer(mapped) if size_bytes else bytearray()
        return cls(exporter, size_bytes, device, payload_id)

    @classmethod
    def of_storage(cls, storage: Any) -> LoadedMemory:
        """Host memory that belongs to torch's allocator, as a fresh tensor's does: `resize_` and `out=` work on it."""
        made = cls(None, storage.nbytes())
        made.add_storage(0, storage)
        return made

    @property
    def address(self) -> int:
        """Address of the first byte of host memory."""
        if not self.size_bytes:
            return 0
        if self._exporter is None:
            return int(self._storages[0, self.size_bytes].data_ptr())
        exporter = self._exporter
        is_array = isinstance(exporter, ctypes.Array)
        return ctypes.addressof(exporter if is_array else ctypes.c_char.from_buffer(exporter))

    def owners(self) -> list[Any]:
        """What the memory lives by, each of them referable weakly."""
        is_referable = isinstance(self._exporter, ctypes.Array)
        return [*self._storages.values(), *([self._exporter] if is_referable and self.device == CPU else [])]

    def array_buffer(self) -> Any:
        """What numpy puts an array on; no ndarray, so that the array is its own base."""
        if self.device != CPU:
            raise PreconditionFailed("WRONG_DEVICE", f"an array cannot lie on {self.device}")
        if self._exporter is None:
            array = _fix_size(self._storages[0, self.size_bytes])
            self._exporter = exporter_at(self.address, self.size_bytes, [array])
        return self._exporter

    def storages(self) -> list[Any]:
        """The torch storages that were made over this memory."""
        return list(self._storages.values())

    def storage(self, offset: int, size_bytes: int) -> Any:
        """The torch storage over [offset, offset + size_bytes); the same object for the same range."""
        found = self._storages.get((offset, size_bytes))
        if found is None:
            check_range(offset, size_bytes, self.size_bytes)
            found = self._storages[offset, size_bytes] = self._make_storage(offset, size_bytes)
        return found

    def add_storage(self, offset: int, storage: Any) -> None:
        """A storage that exists over this memory already."""
        self._storages[offset, storage.nbytes()] = storage

    def _make_storage(self, offset: int, size_bytes: int) -> Any:
        torch: Any = sys.modules.get("torch") or importlib.import_module("torch")
        if size_bytes == 0:
            return torch.UntypedStorage(0)
        buffer = self._exporter if self._exporter is not None else self.array_buffer()
        on_host = torch.frombuffer(buffer, dtype=torch.uint8, count=size_bytes, offset=offset).untyped_storage()
        if self.device == CPU:
            return on_host
        backend = active_backend()
        if backend is None:
            raise PreconditionFailed(
                "DEVICE_ABSENT", f"the value lives on {self.device}, and no devices are set up here", device=self.device
            )
        there = backend.to_device(on_host, self.device)
        if self.on_device is not None and size_bytes == self.size_bytes:
            self.on_device(there)
        return there


def exporter_at(address: int, size_bytes: int, owners: list[Any]) -> Any:
    """A buffer over memory that `owners` keep alive for as long as any view of it lives."""
    exporter = (ctypes.c_char * size_bytes).from_address(address)
    # ctypes does not know who owns the memory; an attribute of the array lives as long as every view of it.
    exporter._looseleaf_owners = owners  # type: ignore[attr-defined]
    return exporter


class Home:
    """Where a known payload or small shared block lives in this process, held weakly unless asked otherwise."""

    def __init__(self, device: str, address: int, size_bytes: int, kind: str, owners: list[Any]) -> None:
        self.device = device
        self.address = address
        self.size_bytes = size_bytes
        self.kind = kind
        self._owners = [weakref.ref(owner) for owner in owners if not isinstance(owner, (bytes, bytearray))]
        self._held: LoadedMemory | bytes | bytearray | None = None

    @classmethod
    def of_block(cls, block: Block) -> Home:
        """The block that a save has found."""
        return cls(block.device, block.address, block.size_bytes, block.kind, block.owners)

    @classmethod
    def of_loaded(cls, loaded: LoadedMemory) -> Home:
        """Memory that a restore has made."""
        storages = loaded.storages()
        on_host = loaded.device == CPU
        address = loaded.address if on_host else min([s.data_ptr() for s in storages], default=0)
        home = cls(loaded.device, address, loaded.size_bytes, "memory", loaded.owners())
        home._held = loaded
        return home

    @classmethod
    def of_bytes(cls, value: bytes | bytearray) -> Home:
        """A byte string that a restore has made; one object holds it, so it is never mapped a second time."""
        return cls(CPU, address_of_bytes(value), len(value), type(value).__name__, [])

    @property
    def key(self) -> tuple[str, int, int, str]:
        """As Block.key."""
        return (self.device, self.address, self.size_bytes, self.kind)

    @property
    def is_held(self) -> bool:
        """True if it lives on although nobody else uses it."""
        return self._held is not None

    def is_alive(self) -> bool:
        """True if the memory is still the one it was."""
        return self._held is not None or bool(self._living_owners())

    def may_be_alive(self) -> bool:
        """False if the memory is surely gone; of byte strings, which cannot be referred to weakly, nobody knows."""
        return self.kind != "memory" or self.is_alive()

    def _living_owners(self) -> list[Any]:
        owners = [owner for owner in (reference() for reference in self._owners) if owner is not None]
        # A storage or array that was resized since may have moved and left this memory to others.
        return [owner for owner in owners if self._holds(*_bounds_of(owner))]

    def _holds(self, start: int, end: int) -> bool:
        return self.address <= start and end <= self.address + self.size_bytes

    def loaded(self) -> LoadedMemory | bytes | bytearray | None:
        """The memory, for more objects to be made on it, or the byte string that it is; None if it is gone."""
        if self._held is not None:
            return self._held
        owners = self._living_owners()
        if not owners or self.kind != "memory":
            return None
        # A device's address is no place in this process: there the storages alone are the memory.
        exporter = exporter_at(self.address, self.size_bytes, owners) if self.device == CPU else None
        made = LoadedMemory(exporter, self.size_bytes, self.device)
        for owner in owners:
            if hasattr(owner, "data_ptr"):
                made.add_storage(owner.data_ptr() - self.address, owner)
                if self.device == CPU:
                    _fix_size(owner)
        return made

    def hold_string(self, value: bytes | bytearray) -> None:
        """Keeps the byte string alive that this is."""
        self._held = value

    def hold(self, wanted: bool) -> None:
        """Keeps the memory alive, or leaves that to its users."""
        self._held = self.loaded() if wanted else None


def _fix_size(storage: Any) -> Any:
    """An array over the storage, which may not be resized from now on: others know its memory by its address."""
    torch: Any = importlib.import_module("torch")
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def _bounds_of(owner: Any) -> tuple[int, int]:
    if hasattr(owner, "data_ptr"):
        return owner.data_ptr(), owner.data_ptr() + owner.nbytes()
    if hasattr(owner, "__array_interface__"):
        return array_bounds(owner)
    if isinstance(owner, LoadedMemory):
        return owner.address, owner.address + owner.size_bytes
    if hasattr(owner, "start"):
        return owner.start, owner.end
    return ctypes.addressof(owner), ctypes.addressof(owner) + ctypes.sizeof(owner)


def loaded_memory(source: Any) -> LoadedMemory:
    """`source` itself, or memory over a bytearray that was restored as an object of its own."""
    if isinstance(source, LoadedMemory):
        return source
    return LoadedMemory(source, len(source))


def inline_memory(data: bytes, device: str) -> LoadedMemory:
    """A small block that several tensors or arrays share; torch may resize storages over it."""
    torch: Any = sys.modules.get("torch")
    # One that another thread is importing lacks names still.
    if not hasattr(torch, "frombuffer") or device != CPU:
        return LoadedMemory(bytearray(data), len(data), device)
    storage = torch.UntypedStorage(len(data))
    torch.empty(0, dtype=torch.uint8).set_(storage).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return LoadedMemory.of_storage(storage)
