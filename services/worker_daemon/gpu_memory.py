"""How much memory of each GPU is in use, by whomever: as the driver or, if virtual, workers tell (design §6)."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from looseleaf.services.worker_daemon.core.worker_life import WorkerFacts

log = structlog.get_logger()

NVML: Final = "libnvidia-ml.so.1"
LOOK_INTERVAL_S: Final = 5.0
# After a call that failed, as while a driver is loaded again.
RETRY_INTERVAL_S: Final = 60.0


class NvmlError(Exception):
    """A call of NVML failed; the text has its name and status."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class NvmlMemory:
    """Asks NVML, which opens no CUDA context and initialises no CUDA driver in this process.

    It numbers GPUs by their place on the bus, as CUDA does for GPUs that are alike. Raises OSError where there is no
    NVML, NvmlError.
    """

    def __init__(self, library: str = NVML) -> None:
        self._library = ctypes.CDLL(library)
        self._call("nvmlInit_v2")

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise NvmlError(f"{name} gave {status}")

    def used_bytes(self, count: int) -> list[int]:
        """Of the first `count` GPUs. Blocks for milliseconds, longer while a driver wakes. Raises NvmlError."""
        found = []
        for index in range(count):
            handle, memory = ctypes.c_void_p(), _Memory()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
            found.append(int(memory.used))
        return found


class GpuMemory:
    """What was seen last; `used_bytes` has a number for each GPU, or none where nobody tells."""

    def __init__(self, device: str, count: int, workers: Callable[[], Iterable[WorkerFacts]]) -> None:
        self._device = device
        self._count = count
        self._workers = workers
        self._seen: list[int] = []

    @property
    def used_bytes(self) -> Sequence[int]:
        """By GPU, at most `LOOK_INTERVAL_S` old."""
        return virtual_bytes(self._workers(), self._count) if self._device == "emulated" else self._seen

    async def watch(self, nvml: Callable[[], NvmlMemory] = NvmlMemory) -> None:
        """Looks at real GPUs until cancelled; ends at once where there is nothing to look at, or nobody to ask.

        After a call that failed it asks again, from the start, every `RETRY_INTERVAL_S`.
        """
        if self._device != "cuda" or not self._count:
            return
        is_known = True
        while True:
            try:
                asked = await asyncio.to_thread(nvml)
                while True:
                    self._seen = await asyncio.to_thread(asked.used_bytes, self._count)
                    is_known = True
                    await asyncio.sleep(LOOK_INTERVAL_S)
            except (OSError, AttributeError, NvmlError) as error:
                # The figure is for planning and for people; cells need none.
                self._seen = []
                if is_known:
                    log.warning("gpu_memory_not_known", error=str(error))
                is_known = False
                if not isinstance(error, NvmlError):
                    return
            await asyncio.sleep(RETRY_INTERVAL_S)


def virtual_bytes(workers: Iterable[WorkerFacts], count: int) -> list[int]:
    """What the last saves of workers said that they hold, by GPU; a lower bound."""
    found = [0] * count
    for facts in workers:
        for gpu in facts.gpus:
            if gpu < count:
                found[gpu] += facts.resident_bytes
    return found
