"""How large a session's state may be, and what to name when it is larger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from looseleaf.errors import CapacityExceeded
from looseleaf.units import format_bytes

if TYPE_CHECKING:
    from looseleaf.checkpoint.manifest import Manifest

NAMED_LARGEST_MAX: Final = 5


def check_size(manifest: Manifest, bytes_max: int) -> None:
    """Raises CapacityExceeded `SESSION_FULL` for a state of more than `bytes_max` (0: any size fits).

    It names the variables whose own memory is largest; memory that they share is counted for each.
    """
    if 0 < bytes_max < manifest.logical_bytes():
        raise session_full(manifest.logical_bytes(), bytes_max, manifest)


def session_full(needed_bytes: int, bytes_max: int, manifest: Manifest | None = None) -> CapacityExceeded:
    """`SESSION_FULL`, with the largest variables of `manifest` where there is one."""
    sizes = {} if manifest is None else {name: _bytes_of(manifest, name) for name in manifest.roots}
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:NAMED_LARGEST_MAX]
    named = ", ".join(f"{name} ({format_bytes(sizes[name])})" for name in largest)
    text = (
        f"the session's variables take {format_bytes(needed_bytes)}, more than the {format_bytes(bytes_max)} that a "
        f"session may have; nothing was saved, the last version is valid: delete some (the largest: {named or 'none'}) "
        "or raise session_bytes_max"
    )
    return CapacityExceeded(
        "SESSION_FULL", text, needed_bytes=needed_bytes, available_bytes=bytes_max, largest_variables=largest
    )


def _bytes_of(manifest: Manifest, name: str) -> int:
    closure = manifest.closure([name], follow_globals=False)
    payloads = [manifest.payloads[payload_id] for payload_id in closure.payloads]
    payload_bytes = sum(payload.size_bytes for payload in payloads if not payload.is_lazy)
    return payload_bytes + sum(manifest.units[unit_id].size_bytes for unit_id in closure.units)
