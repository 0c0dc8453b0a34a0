"""What a person is told when a cell ran out of GPU memory: who has it, and what becomes of it (jupyter study §2)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from looseleaf.units import format_bytes

NAMES_LOOKED_AT_MAX: Final = 10_000
NAMES_SHOWN_MAX: Final = 5


def is_out_of_memory(error: object) -> bool:
    """Whether it is torch's error for a device without memory; imports nothing."""
    torch = sys.modules.get("torch")
    kind = getattr(torch, "OutOfMemoryError", None)
    return isinstance(kind, type) and isinstance(error, kind)


def memory_note(namespace: Mapping[str, Any]) -> str:
    """Free and whole memory of the cell's GPU and the largest variables there, one line."""
    torch = sys.modules["torch"]
    free, total = torch.cuda.mem_get_info()
    sizes = {name: size for name, value in _variables(namespace) if (size := _device_bytes(torch, value))}
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:NAMES_SHOWN_MAX]
    shown = ", ".join(f"{name} {format_bytes(sizes[name])}" for name in largest)
    held = f"; largest variables there: {shown}" if shown else "; none of it in tensors or modules that variables name"
    return (
        f"LooseLeaf: {format_bytes(total - free)} of {format_bytes(total)} of the GPU's memory were in use{held}. "
        "Unless it is kept for variables that cannot be saved, this process ends with the cell's save, so that what "
        "the failed cell held is free for the next one\n"
    )


def _variables(namespace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    named = ((name, value) for name, value in list(namespace.items()) if not name.startswith("_"))
    return [entry for entry, _ in zip(named, range(NAMES_LOOKED_AT_MAX), strict=False)]


def _device_bytes(torch: Any, value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return int(value.nbytes) if value.is_cuda else 0
    if isinstance(value, torch.nn.Module):
        return sum(int(t.nbytes) for t in (*value.parameters(), *value.buffers()) if t.is_cuda)
    return 0
