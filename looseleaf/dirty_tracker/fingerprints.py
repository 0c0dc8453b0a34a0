"""Keyed fingerprints of device payloads, computed on the host: what verifies a device, and its oracle in tests.

NH and a polynomial modulo 2^61-1, 128 bits, the same value by every vector unit and by the CUDA kernel; two unequal
regions of one length get the same one with a chance below 2^-111 (docs/fingerprints.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from looseleaf.dirty_tracker import _core
from looseleaf.dirty_tracker.hashing import check_region_bytes, check_threads
from looseleaf.units import REGION_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

SECRET_BYTES: Final = 32
# Ways to compute them here, the fastest first.
FINGERPRINT_SCHEDULES: Final = tuple(_core.fingerprint_schedules())


def region_fingerprints(
    buffer: Buffer, secret: bytes, *, region_bytes: int = REGION_BYTES, schedule: str | None = None, threads: int = 1
) -> bytes:
    """The fingerprint of each region of `buffer`, 16 bytes a region, ascending, as `region_hashes` divides it.

    `secret`: 32 random bytes, one tenant's; who knows it can make two regions collide. `schedule`: one of
    FINGERPRINT_SCHEDULES, by default the first; the result does not depend on it. The GIL is released; an interrupt
    ends the work. Raises InvalidArgument as `region_hashes` does, and `SECRET_LENGTH`, `SCHEDULE_UNAVAILABLE`.
    """
    check_region_bytes(region_bytes)
    check_threads(threads)
    return _core.region_fingerprints(buffer, region_bytes, secret, schedule or FINGERPRINT_SCHEDULES[0], threads)
