"""The compiled device side; present only in builds with CUDA (`build_info()` tells).

Addresses are device addresses as integers. The caller keeps the memory alive and unwritten until a call returns. The
GIL is released. A failed CUDA call raises Unsupported (`NO_CUDA_DEVICE`), CapacityExceeded (`OUT_OF_DEVICE_MEMORY`) or
Internal (`CUDA_CALL_FAILED`), each with the fields `call`, `place` ("file:line"), `code`, `code_name` and `sticky`.
"""

from collections.abc import Sequence
from typing import final

from typing_extensions import Buffer

def device_state() -> tuple[int, str]:
    """Number of visible devices and, when it is 0, why. Never raises; initialises the driver, opens no context."""

def device_count() -> int:
    """Number of visible devices; 0 without a driver."""

def device_of(address: int) -> int:
    """The device that the address is of.

    Raises InvalidArgument: `NOT_DEVICE_MEMORY`; `MANAGED_MEMORY`, which is saved as host memory.
    """

@final
class DeviceTracker:
    """The fingerprints of one device's memory, and its way to the host. One call at a time.

    Every call runs after all work that was on the device before it. `secret` as for `region_fingerprints`. Pinned
    memory of `slots` times `slot_bytes` is taken at the first move and kept; up to `threads` threads copy out of it.
    After a failure that `sticky` marks, the device can do nothing more in this process: every later call raises it.
    """

    def __init__(
        self, device: int, secret: bytes, slots: int = 4, slot_bytes: int = 64 << 20, threads: int = 4
    ) -> None: ...
    @property
    def is_poisoned(self) -> bool: ...
    def tables(
        self, payloads: Sequence[tuple[int, int]], last: Sequence[bytes], region_bytes: int
    ) -> list[tuple[bytes, list[int]]]:
        """For each (address, size): the fingerprints of its regions, equal to `region_fingerprints` of the same bytes,
        and the indices of those that differ from `last`, all if that is of another length.

        The caller keeps the tables: it replaces its last ones when the save that they belong to is committed.
        """
    def compare(
        self, new: Sequence[tuple[int, int]], old: Sequence[tuple[int, int]], region_bytes: int
    ) -> list[list[int]]:
        """The indices of the regions that differ from a copy on the same device, bit by bit."""
    def move_to_host(self, moves: Sequence[tuple[int, Buffer]]) -> None:
        """Copies from each address to its writable buffer, as much as that holds; returns when all has arrived."""
