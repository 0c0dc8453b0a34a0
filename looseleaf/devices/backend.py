"""The seam between LooseLeaf and whatever computes: real CUDA, virtual GPUs, or nothing (design §8).

Importing this module loads no torch and touches no device.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from looseleaf.errors import InvalidArgument, Unsupported

Role = Literal["kernel", "worker", "reference", "zygote"]
Kind = Literal["cuda", "emulated", "none"]

ROLES: frozenset[str] = frozenset({"kernel", "worker", "reference", "zygote"})
KINDS: frozenset[str] = frozenset({"cuda", "emulated", "none"})


@dataclass(frozen=True)
class DeviceState:
    """What a session has set on its devices that no tensor holds; part of its process state.

    `current_device`: the index `torch.cuda.set_device` chose.
    `generators`: one 16-byte state per device, seed then offset, both little-endian u64; the layout of a real CUDA
    generator's state, so that it may be set in a kernel and applied on a worker of either kind. Empty: nothing known.
    """

    current_device: int = 0
    generators: tuple[bytes, ...] = ()


@runtime_checkable
class DeviceBackend(Protocol):
    """What the state engine and the worker may ask of a device. A storage is a `torch.UntypedStorage`.

    `device_of`, `host_view`, `to_device` are called at save and restore, inside or outside `raw()`, by one thread at a
    time; the rest by the worker between cells.
    """

    kind: str

    def device_of(self, storage: Any) -> str:
        """The device a person sees: "cpu", "cuda:0", ..."""

    def host_view(self, storage: Any) -> memoryview:
        """All bytes of `storage` as a flat view of format "B". For a real device it is a copy, else the bytes."""

    def to_device(self, storage: Any, device: str) -> Any:
        """A storage with these bytes that people see on `device`; the same object when no bytes had to move.

        Raises torch.OutOfMemoryError when the device is full.
        """

    def raw(self) -> AbstractContextManager[None]:
        """Inside, torch in this thread is as without LooseLeaf and without overrides: a virtual tensor is a CPU one."""

    def touched(self) -> float | None:
        """Monotonic seconds of the first device use since `reset_touch`, or None."""

    def reset_touch(self) -> None:
        """Forget the touch; called before each cell."""

    def attach(self, gpus: Sequence[int], delays: bool = False) -> None:
        """Open a context on these GPUs (indices of the host); seen by the cell as 0 .. len(gpus) - 1."""

    def resident_bytes(self) -> dict[str, int]:
        """Live bytes per device that torch's tensors hold; a lower bound. Devices that hold nothing are left out."""

    def device_state(self) -> DeviceState:
        """What to save beside the tensors."""

    def apply_device_state(self, state: DeviceState) -> None:
        """Set again what `device_state` told; states of devices that are not here are ignored."""


def host_bytes(storage: Any) -> memoryview:
    """The bytes of a CPU storage, not copied; writable; the view keeps the storage alive."""
    size = int(storage.nbytes())
    if size == 0:
        return memoryview(b"")
    array = (ctypes.c_ubyte * size).from_address(int(storage.data_ptr()))
    # ctypes does not know who owns the memory; an attribute on the array lives as long as every view of it.
    array._looseleaf_owner = storage  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def device_index(device: str) -> int | None:
    """0 for "cuda" or "cuda:0", 3 for "cuda:3", None for "cpu"; raises InvalidArgument for anything else."""
    if device == "cpu":
        return None
    name, colon, index = device.partition(":")
    if name != "cuda" or (colon and not index.isdecimal()):
        text = f"{device!r} is no device that LooseLeaf knows; it knows cpu and cuda:N"
        raise InvalidArgument("DEVICE_UNKNOWN", text)
    return int(index or 0)


class NoneBackend:
    """No GPUs at all: torch is left as it is, and CPU tensors are all there are."""

    kind = "none"

    def device_of(self, storage: Any) -> str:
        return str(storage.device)

    def host_view(self, storage: Any) -> memoryview:
        return host_bytes(storage)

    def to_device(self, storage: Any, device: str) -> Any:
        if device_index(device) is not None:
            raise Unsupported(
                "NO_DEVICE",
                f"This session holds data on {device}, and LooseLeaf runs here without GPUs, real or virtual. "
                "Nothing was lost; start it with --device cuda or --device emulated to use this data.",
                device=device,
            )
        return storage

    @contextlib.contextmanager
    def raw(self) -> Iterator[None]:
        yield

    def touched(self) -> float | None:
        return None

    def reset_touch(self) -> None:
        return

    def attach(self, gpus: Sequence[int], delays: bool = False) -> None:
        if gpus:
            text = "A worker without devices was told to attach GPUs; its daemon is set up wrong."
            raise Unsupported("NO_DEVICE", text)

    def resident_bytes(self) -> dict[str, int]:
        return {}

    def device_state(self) -> DeviceState:
        return DeviceState()

    def apply_device_state(self, state: DeviceState) -> None:
        return
