"""What a batch run asks of a notebook's cells."""

from __future__ import annotations

from typing import Any


def is_executed(cell: Any) -> bool:
    """Whether the cell is code that runs."""
    return cell.cell_type == "code" and bool(cell.source.strip())


def cell_key(cell: Any, index: int) -> str:
    """What a report calls the cell: its id, or its place in a notebook without ids."""
    return str(cell.get("id") or index)


def device_wish(cell: Any) -> str:
    """The device that the cell's metadata asks for, gpu or cpu; else empty."""
    device = wishes_of(cell).get("device", "")
    return device if device in ("gpu", "cpu") else ""


def wishes_of(cell: Any) -> dict[str, Any]:
    """What the cell's metadata asks for (docs/magics.md), unchecked: the kernel passes over what means nothing."""
    found = cell.metadata.get("looseleaf")
    return {key: found[key] for key in ("device", "keep") if key in found} if isinstance(found, dict) else {}
