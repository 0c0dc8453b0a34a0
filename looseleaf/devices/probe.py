"""What real GPUs this host has, asked of the driver in a process of its own (design §4).

Runs as a script: `python -I -S probe.py` prints a JSON list with an object for each GPU. Asking opens no CUDA context,
but it does mark a process, so that no other may be forked from it: nothing but this script does it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any, Final

LIBRARY: Final = "libcuda.so.1"
GPUS_MAX: Final = 64
_NAME_BYTES: Final = 256
# CUdevice_attribute of the driver's API, by the field of a GpuDescription.
_ATTRIBUTES: Final = {
    "major": 75, "minor": 76, "multi_processors": 16, "l2_cache_bytes": 38, "threads_per_multi_processor": 39,
    "shared_memory_per_block_optin_bytes": 97,
}  # fmt: skip
_DRIVER_FILE: Final = "/sys/module/nvidia/version"


class DriverError(Exception):
    """A call of the driver failed; the text has its name and status."""


def gpus(library: str = LIBRARY) -> list[dict[str, Any]]:
    """Fields of a GpuDescription for each. Raises OSError without a driver, DriverError."""
    cuda = ctypes.CDLL(library)

    def call(name: str, *arguments: Any) -> None:
        status = getattr(cuda, name)(*arguments)
        if status:
            raise DriverError(f"{name} gave {status}")

    version, count = ctypes.c_int(), ctypes.c_int()
    call("cuInit", 0)
    call("cuDriverGetVersion", ctypes.byref(version))
    call("cuDeviceGetCount", ctypes.byref(count))
    common = {
        "cuda_version": f"{version.value // 1000}.{version.value % 1000 // 10}", "driver_version": driver_version(),
    }  # fmt: skip
    found = []
    for index in range(min(count.value, GPUS_MAX)):
        device, size, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(_NAME_BYTES)
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDeviceGetName", name, _NAME_BYTES, device)
        call("cuDeviceTotalMem_v2", ctypes.byref(size), device)
        one: dict[str, Any] = {**common, "name": name.value.decode("utf-8", "replace"), "memory_bytes": size.value}
        for field, attribute in _ATTRIBUTES.items():
            value = ctypes.c_int()
            call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            one[field] = value.value
        found.append(one)
    return found


def driver_version(path: str = _DRIVER_FILE) -> str:
    """The kernel module's version, empty if it does not tell."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return ""


if __name__ == "__main__":
    try:
        print(json.dumps(gpus()))
    except (OSError, AttributeError, DriverError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
