"""The compiled device side; present only in builds with CUDA (`build_info()` tells).

Pointers are device addresses and streams are CUDA stream handles, both as integers (0 is the default stream). The
caller keeps the memory alive and unwritten until a call returns. The GIL is released. A failed CUDA call raises
Unsupported (`NO_CUDA_DEVICE`), CapacityExceeded (`OUT_OF_DEVICE_MEMORY`) or Internal (`CUDA_CALL_FAILED`), each with
the fields `call`, `place` ("file:line"), `code` and `code_name`.
"""

from collections.abc import Sequence

from typing_extensions import Buffer

def device_state() -> tuple[int, str]:
    """Number of visible devices and, when it is 0, why. Never raises; initialises the driver, opens no context."""

def device_count() -> int:
    """Number of visible devices; 0 without a driver."""

def compare_regions(new_ptr: int, old_ptr: int, size_bytes: int, region_bytes: int, stream: int = 0) -> list[int]:
    """Indices of the regions of [new_ptr, +size_bytes) that differ from those at old_ptr, ascending; exact.

    Both lie on one device, at any alignment (16-byte alignment is faster). Ordered after all work in `stream`. Raises
    InvalidArgument (`REGION_BYTES_OUT_OF_RANGE`, `NOT_DEVICE_MEMORY`, `DEVICES_DIFFER`).
    """

def copy_regions_to_host(
    src_ptr: int, size_bytes: int, region_bytes: int, indices: Sequence[int], dst: Buffer, stream: int = 0
) -> int:
    """Copies the listed regions (ascending) one behind another into `dst` and returns their bytes in all.

    Neighbouring regions go in one transfer. Ordered after all work in `stream`; returns when the bytes have arrived.
    Raises InvalidArgument (`REGIONS_MALFORMED`, `RANGE_OUTSIDE_BUFFER`, `BUFFER_NOT_WRITABLE`, `NOT_DEVICE_MEMORY`).
    """
