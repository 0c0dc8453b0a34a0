"""Sizes that the whole system shares."""

from __future__ import annotations

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

# The paper's "2 MB" region; the unit of dirty tracking, of arena slots and of transfers (§3.2).
REGION_BYTES: Final = 2 * MIB
# Memory below this stays inline in a unit; the cut is on the base, never on a view (design §3).
INLINE_PAYLOAD_BYTES_MAX: Final = 64 * KIB
# A unit of at least this size is stored as regions, a smaller one inline in the store's index.
INLINE_UNIT_BYTES_MAX: Final = 1 * MIB


def format_bytes(size_bytes: float) -> str:
    """`size_bytes` in the largest unit that keeps the number at least 1, such as "1.5 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024 or unit == "GiB":
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("unreachable")
