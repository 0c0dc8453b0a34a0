"""Virtual GPUs: torch made to behave as if it had CUDA, on the CPU (design §8).

Imported only after torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from looseleaf.devices import autograd, sequences, stack
from looseleaf.devices.backend import device_index
from looseleaf.devices.device_type import patch_host_tensor_types
from looseleaf.devices.generators import DefaultGenerator, Generator
from looseleaf.devices.identity import Identity
from looseleaf.devices.legacy import make_tensor, patch_legacy
from looseleaf.devices.memory import accelerator_memory_answers, memory_answers, work_answers
from looseleaf.devices.mode import VirtualDeviceMode
from looseleaf.devices.moves import Moves
from looseleaf.devices.patches import named
from looseleaf.devices.queries import CUDA_MODULES, patch_queries
from looseleaf.devices.requests import checked
from looseleaf.devices.storages import (
    patch_class_defaults,
    patch_serialization,
    patch_storage_making,
    patch_storages,
    restored_on,
)
from looseleaf.devices.streams import StreamRegistry
from looseleaf.devices.tagged_backend import TaggedBackend
from looseleaf.devices.tags import retag_storage, storage_index, tag_storage
from looseleaf.devices.threads import patch_threads
from looseleaf.devices.unsupported import patch_unsupported
from looseleaf.devices.virtual import VirtualGpus
from looseleaf.devices.wrappers import patch_wrappers

torch: Any = importlib.import_module("torch")


class EmulatedBackend(TaggedBackend):
    """See DeviceBackend. Patches torch when made; `close` undoes all of it."""

    kind = "emulated"

    def __init__(self, gpus: VirtualGpus) -> None:
        super().__init__(gpus, VirtualDeviceMode(gpus, autograd.in_backward))
        self.mode.handlers.update(Identity(self.mode).handlers())
        self.mode.handlers.update(Moves(self.mode).handlers())
        self.mode.handlers.update(autograd.handlers(self.mode))
        self.mode.handlers.update(sequences.handlers(self.mode))
        self._patch()
        self.ensure_thread()

    def _patch(self) -> None:
        patches, gpus = self.patches, self.gpus
        patch_class_defaults(patches)
        patch_queries(gpus, patches)
        patch_storages(gpus, self.mode, patches)
        patch_storage_making(gpus, self.mode, patches)
        patch_serialization(restored_on(gpus), gpus, patches)
        autograd.patch(self.mode, patches)
        patch_wrappers(self.mode, patches)
        self._hooks = patch_unsupported(self.mode, patches)
        patch_legacy(patches, make_tensor)
        patch_host_tensor_types(patches)
        patches.set(torch, "Generator", Generator)
        # Checkpointing saves the device's random state only if this says that there is a device.
        patches.set(torch.cuda, "_initialized", True)
        streams = StreamRegistry(gpus)
        answers = {**memory_answers(gpus), **work_answers(gpus), **streams.answers(), **streams.classes()}
        for name, answer in answers.items():
            patches.set_where_same(CUDA_MODULES, name, answer if isinstance(answer, type) else named(answer, name))
        for name, answer in accelerator_memory_answers(gpus).items():
            if name in vars(torch.accelerator):
                patches.set(torch.accelerator, name, named(answer, name))
        patches.set(torch.accelerator, "synchronize", named(lambda device=None: gpus.touch(), "synchronize"))
        patches.set(torch.accelerator, "current_stream", named(streams.current, "current_stream"))
        for name, generic in streams.generic_classes().items():
            patches.set(torch, name, generic)
        patches.set(torch.cuda, "default_generators", self._default_generators())
        patch_threads(self.ensure_thread, self.leave_thread, patches)

    def _default_generators(self) -> tuple[DefaultGenerator, ...]:
        return tuple(DefaultGenerator(self.gpus, index) for index in range(self.gpus.count))

    def close(self) -> None:
        for hook in self._hooks:
            hook.stop()
        super().close()

    def ensure_thread(self) -> None:
        """Virtual devices in this thread too, whatever it ran before; cheap, once is enough."""
        stack.enter(self.mode)

    def to_device(self, storage: Any, device: str) -> Any:
        """Tags `storage` in place: for bytes that nobody else sees yet, as at a restore."""
        index = device_index(device)
        if storage_index(storage) == index:
            return storage
        if index is None:
            retag_storage(self.gpus, storage, None)
            return storage
        retag_storage(self.gpus, storage, None)
        tag_storage(self.gpus, storage, checked(self.gpus, index))
        self.gpus.copied(storage.nbytes())
        return storage

    def touched(self) -> float | None:
        return self.gpus.touched_at

    def reset_touch(self) -> None:
        self.gpus.touched_at = None

    def attach(self, gpus: Sequence[int], delays: bool = False) -> None:
        self.gpus.delays = delays
        self.gpus.resize(len(gpus))
        torch.cuda.default_generators = self._default_generators()
        self.gpus.open_context()

    def resident_bytes(self) -> dict[str, int]:
        found = {f"cuda:{index}": ledger.live_bytes() for index, ledger in enumerate(self.gpus.ledgers)}
        return {device: size for device, size in found.items() if size}
