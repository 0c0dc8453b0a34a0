"""What a batch run tells: one record per cell and honest totals (design §6). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

INTERACTIVE_START_MS: Final = 1000.0
IMMEDIATE_START_MS: Final = 50.0


@dataclass
class CellRecord:
    """One code cell of the run. Times in the unit that ends the name; None where it does not apply (a CPU cell's GPU).

    `path`: prepared, warm or cold for a GPU cell that got a worker, empty for one that did not, cpu. `worker`: its pid.
    """

    id: str
    label: str = "cpu"
    reason: str = ""
    path: str = "cpu"
    closure: list[str] = field(default_factory=list)
    live_names: int = 0
    packages: list[str] = field(default_factory=list)
    prepare_ms: float | None = None
    start_ms: float | None = None
    run_s: float = 0.0
    save_ms: float | None = None
    dirty_regions: int = 0
    total_regions: int = 0
    bytes_moved: int = 0
    gpu_held_s: float = 0.0
    gpu_pinned_s: float = 0.0
    gpu_resident_s: float = 0.0
    unsaved: list[dict[str, str]] = field(default_factory=list)
    version: int = 0
    worker: int | None = None
    gpu: int | None = None
    error: dict[str, Any] | None = None

    @classmethod
    def of(cls, cell_id: str, figures: Mapping[str, Any]) -> CellRecord:
        """From the reply's metadata; keys that the record does not have are left out."""
        known = {name: figures[name] for name in cls.__dataclass_fields__ if figures.get(name) is not None}
        return cls(**{**known, "id": cell_id})


@dataclass(frozen=True)
class Totals:
    """Over all cells.

    held = lease grant to release, resident = payloads on a device without a running cell, pinned = first device touch
    to the end. Shares are over all GPU cells, None if there is none.
    """

    gpu_cells: int
    cpu_cells: int
    gpu_s_held: float
    gpu_s_resident: float
    gpu_s_pinned: float
    starts_within_1s: float | None
    immediate_share: float | None
    prepared_share: float | None
    start_ms_p50: float | None
    start_ms_p95: float | None


def totals_of(cells: Iterable[CellRecord]) -> Totals:
    """Sums and shares; a GPU cell that never started counts against every share."""
    everything = list(cells)
    gpu = [cell for cell in everything if cell.label == "gpu"]
    # A host tells 0 ms of a cell that it could not start.
    starts = sorted(cell.start_ms for cell in gpu if cell.start_ms)

    def share(count: int) -> float | None:
        return count / len(gpu) if gpu else None

    return Totals(
        gpu_cells=len(gpu),
        cpu_cells=len(everything) - len(gpu),
        gpu_s_held=sum(cell.gpu_held_s for cell in gpu),
        gpu_s_resident=sum(cell.gpu_resident_s for cell in gpu),
        gpu_s_pinned=sum(cell.gpu_pinned_s for cell in gpu),
        starts_within_1s=share(sum(start <= INTERACTIVE_START_MS for start in starts)),
        immediate_share=share(sum(start <= IMMEDIATE_START_MS for start in starts)),
        prepared_share=share(sum(cell.path == "prepared" and bool(cell.start_ms) for cell in gpu)),
        start_ms_p50=median(starts) if starts else None,
        start_ms_p95=starts[-(-len(starts) * 95 // 100) - 1] if starts else None,
    )


def report_of(cells: list[CellRecord], machine: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON report: {"cells": [...], "totals": {...}, "machine": {...}}."""
    return {"cells": [asdict(cell) for cell in cells], "totals": asdict(totals_of(cells)), "machine": dict(machine)}
