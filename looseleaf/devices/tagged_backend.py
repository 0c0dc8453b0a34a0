"""What backends have in common that keep device memory on the CPU and tell it by tags. Imported only after torch."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from looseleaf.devices import stack
from looseleaf.devices.backend import DeviceState, host_bytes
from looseleaf.devices.mode import VirtualDeviceMode
from looseleaf.devices.patches import PatchSet
from looseleaf.devices.tags import storage_index
from looseleaf.devices.virtual import VirtualGpus

torch: Any = importlib.import_module("torch")


class TaggedBackend:
    """The part of DeviceBackend that needs only the tags, the virtual GPUs' state and the mode that shows them."""

    def __init__(self, gpus: VirtualGpus, mode: VirtualDeviceMode) -> None:
        self.gpus = gpus
        self.mode = mode
        self.patches = PatchSet()

    def close(self) -> None:
        """torch as it was; other threads that are in the mode pass through it."""
        self.mode.live = False
        self.leave_thread()
        self.patches.restore()

    def leave_thread(self) -> None:
        """Before a thread ends, so that its stack dies empty."""
        stack.leave(self.mode)

    def device_of(self, storage: Any) -> str:
        index = storage_index(storage)
        return "cpu" if index is None else f"cuda:{index}"

    def host_view(self, storage: Any) -> memoryview:
        return host_bytes(storage)

    @contextlib.contextmanager
    def raw(self) -> Iterator[None]:
        with torch._C.DisableTorchFunction():
            yield

    def device_state(self) -> DeviceState:
        return self.gpus.state()

    def apply_device_state(self, state: DeviceState) -> None:
        self.gpus.apply(state)
