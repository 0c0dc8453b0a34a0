"""Real CUDA behind the seam: torch is left as it is (design §8).

Imported only after torch; opens no context before `attach` or the first call that needs one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from looseleaf.devices.backend import DeviceState, device_index, host_bytes
from looseleaf.errors import Unsupported

torch: Any = importlib.import_module("torch")
raw_device = torch._C.StorageBase.device.__get__


class CudaBackend:
    """See DeviceBackend."""

    kind = "cuda"

    def __init__(self) -> None:
        self._reset_at_s = time.monotonic()
        self._allocations_before = 0
        self._pending = DeviceState()

    def close(self) -> None:
        """Nothing was patched."""

    def ensure_thread(self) -> None:
        """Nothing is per thread."""

    def device_of(self, storage: Any) -> str:
        return str(raw_device(storage))

    def host_view(self, storage: Any) -> memoryview:
        """For a device storage: a copy through torch, after all work queued on the device."""
        if raw_device(storage).type == "cpu":
            return host_bytes(storage)
        torch.cuda.synchronize(raw_device(storage))
        copy = torch.UntypedStorage(storage.nbytes())
        copy.copy_(storage, False)
        return host_bytes(copy)

    def to_device(self, storage: Any, device: str) -> Any:
        index = device_index(device)
        here = raw_device(storage)
        if (None if here.type == "cpu" else here.index) == index:
            return storage
        target = torch.device("cpu") if index is None else torch.device("cuda", index)
        made = torch.UntypedStorage(storage.nbytes(), device=target)
        made.copy_(storage, False)
        return made

    @contextlib.contextmanager
    def raw(self) -> Iterator[None]:
        with torch._C.DisableTorchFunction():
            yield

    def touched(self) -> float | None:
        """The time of the last `reset_touch` if anything was allocated or a context was opened since, else None.

        An earliest bound, so that what is accounted as pinned is never too little: CUDA does not tell when it was used.
        """
        return self._reset_at_s if self._allocations() != self._allocations_before else None

    def reset_touch(self) -> None:
        self._reset_at_s = time.monotonic()
        self._allocations_before = self._allocations()

    def attach(self, gpus: Sequence[int], delays: bool = False) -> None:
        """Must be the process's first use of CUDA: the driver reads the visible devices once."""
        visible = ",".join(str(index) for index in gpus)
        if torch.cuda.is_initialized():
            if os.environ.get("CUDA_VISIBLE_DEVICES") != visible:
                raise Unsupported(
                    "DEVICE_FIXED",
                    f"This worker opened GPUs {os.environ.get('CUDA_VISIBLE_DEVICES')!r} already and cannot change to "
                    f"{visible!r}; the session's state is saved, and another worker must take the cell.",
                )
            return
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
        torch.cuda.init()
        # A context is created by the first allocation, not by init.
        for index in range(len(gpus)):
            torch.empty(1, device=torch.device("cuda", index))
        self.apply_device_state(self._pending)
        self.reset_touch()

    def attach_at_first_use(self, count: int) -> None:
        """The `count` devices are visible since before torch was imported: the cell that imports it opens them."""
        for index, value in enumerate(self._pending.generators[:count]):
            # torch itself keeps it until CUDA is initialized.
            torch.cuda.set_rng_state(torch.frombuffer(bytearray(value), dtype=torch.uint8), index)
        if 0 < (current := self._pending.current_device) < count:
            torch.cuda._lazy_call(lambda: torch.cuda.set_device(current))

    def resident_bytes(self) -> dict[str, int]:
        if not torch.cuda.is_initialized():
            return {}
        found = {f"cuda:{index}": torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())}
        return {device: size for device, size in found.items() if size}

    def device_state(self) -> DeviceState:
        if not torch.cuda.is_initialized():
            return self._pending
        states = tuple(bytes(state.tolist()) for state in torch.cuda.get_rng_state_all())
        return DeviceState(torch.cuda.current_device(), states)

    def apply_device_state(self, state: DeviceState) -> None:
        """Before `attach` it is kept, and applied then."""
        if not torch.cuda.is_initialized():
            self._pending = state
            return
        count = torch.cuda.device_count()
        for index, value in enumerate(state.generators[:count]):
            torch.cuda.set_rng_state(torch.frombuffer(bytearray(value), dtype=torch.uint8), index)
        if state.current_device < count:
            torch.cuda.set_device(state.current_device)

    def _allocations(self) -> int:
        if not torch.cuda.is_initialized():
            return 0
        return 1 + sum(
            int(torch.cuda.memory_stats(index).get("allocation.all.allocated", 0))
            for index in range(torch.cuda.device_count())
        )
