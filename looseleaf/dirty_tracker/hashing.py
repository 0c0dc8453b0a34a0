"""Region fingerprints of host memory: XXH3-128, and the exact compare that is their oracle (§3.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from looseleaf.dirty_tracker import _core
from looseleaf.errors import InvalidArgument
from looseleaf.units import REGION_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

HASH_BYTES: Final = 16
HASH_THREADS_MAX: Final = _core.HASH_THREADS_MAX
# Sizes and seeds are unsigned 64-bit numbers in the native code.
UNSIGNED_MAX: Final = (1 << 64) - 1


def region_hashes(buffer: Buffer, *, region_bytes: int = REGION_BYTES, seed: int = 0, threads: int = 1) -> bytes:
    """XXH3-128 of each region of `buffer`, 16 bytes a region, ascending; b"" for an empty buffer.

    Region i covers [i*region_bytes, min((i+1)*region_bytes, N)) of the N bytes. Each hash is in canonical (big-endian)
    form and depends on nothing but the region's bytes and `seed` (0 to 2^64-1). `threads` (1 to HASH_THREADS_MAX) may
    share the work; the GIL is released, and an interrupt ends it. Raises InvalidArgument for an argument out of range
    (`*_OUT_OF_RANGE`), for an object without a buffer (`NOT_A_BUFFER`) and for one that is not C-contiguous
    (`BUFFER_NOT_CONTIGUOUS`).
    """
    check_region_bytes(region_bytes)
    check_seed(seed)
    check_threads(threads)
    return _core.region_hashes(buffer, region_bytes, seed, threads)


def hash128(buffer: Buffer, *, seed: int = 0) -> bytes:
    """XXH3-128 of all of `buffer`, 16 bytes in canonical form; of no bytes too.

    Equals `region_hashes` of a non-empty buffer that is one region. Raises as `region_hashes` does.
    """
    check_seed(seed)
    return _core.hash128(buffer, seed)


def dirty_regions(new_hashes: Buffer, old_hashes: Buffer) -> list[int]:
    """Indices of the regions whose entry in `new_hashes` is absent from or different in `old_hashes`, ascending.

    Both are results of `region_hashes` with the same region size and seed. Raises InvalidArgument
    (`HASH_TABLE_MALFORMED`) if a length is no multiple of 16.
    """
    return _core.changed_hashes(new_hashes, old_hashes)


def compare_regions(new: Buffer, old: Buffer, region_bytes: int = REGION_BYTES) -> list[int]:
    """Indices of the regions of `new` that differ from `old`, ascending; exact.

    Compares bits, so NaN == NaN and 0.0 != -0.0. The GIL is released. Raises InvalidArgument if the lengths differ
    (`LENGTHS_DIFFER`), and as `region_hashes` does.
    """
    check_region_bytes(region_bytes)
    return _core.compare_regions(new, old, region_bytes)


def check_region_bytes(region_bytes: int) -> None:
    """Raises InvalidArgument for a size that no region can have."""
    if not 1 <= region_bytes <= UNSIGNED_MAX:
        message = "region_bytes must be between 1 and 2^64-1"
        raise InvalidArgument("REGION_BYTES_OUT_OF_RANGE", message, region_bytes=str(region_bytes))


def check_seed(seed: int) -> None:
    """Raises InvalidArgument for what is no seed."""
    if not 0 <= seed <= UNSIGNED_MAX:
        raise InvalidArgument("SEED_OUT_OF_RANGE", "a seed is an unsigned 64-bit number", seed=str(seed))


def check_threads(threads: int) -> None:
    """Raises InvalidArgument for a number of threads that no call takes."""
    if not 1 <= threads <= HASH_THREADS_MAX:
        message = f"threads must be between 1 and {HASH_THREADS_MAX}"
        raise InvalidArgument("THREADS_OUT_OF_RANGE", message, threads=threads)
