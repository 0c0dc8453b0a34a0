"""What a batch run tells: one record per cell and honest totals (design §6)."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

from looseleaf.batch.pool import Pool

INTERACTIVE_START_MS: Final = 1000.0
IMMEDIATE_START_MS: Final = 50.0


@dataclass
class CellRecord:
    """One code cell of the run. Times in the unit that ends the name; None where it does not apply (a CPU cell's GPU).

    `path`: prepared, warm or cold for a GPU cell that got a worker, empty for one that did not, cpu. `worker`: its pid,
    on `host`.
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
    host: str | None = None
    error: dict[str, Any] | None = None

    @classmethod
    def of(cls, cell_id: str, figures: Mapping[str, Any]) -> CellRecord:
        """From the reply's metadata; keys that the record does not have are left out."""
        known = {name: figures[name] for name in cls.__dataclass_fields__ if figures.get(name) is not None}
        return cls(**{**known, "id": cell_id})


@dataclass(frozen=True)
class NotebookReport:
    """One notebook of the run: its files as they were named, what became of it, and its cells."""

    notebook: str
    output: str
    outcome: str
    failure: str
    failed_cell: str
    kernel_pid: int | None
    start_s: float
    wall_s: float
    cells: list[CellRecord] = field(default_factory=list)


@dataclass(frozen=True)
class Totals:
    """Over all cells.

    held = lease grant to release, resident = payloads on a device without a running cell, pinned = first device touch
    to the end. Shares are over all GPU cells, None if there is none. Quantiles are of GPU cells: `start` from Run to
    the first statement, `prepare` of the worker, `run` of the cell, `save` of what it changed.
    """

    gpu_cells: int
    cpu_cells: int
    failed_cells: int
    gpu_s_held: float
    gpu_s_resident: float
    gpu_s_pinned: float
    bytes_moved: int
    starts_within_1s: float | None
    immediate_share: float | None
    prepared_share: float | None
    warm_share: float | None
    start_ms_p50: float | None
    start_ms_p95: float | None
    prepare_ms_p50: float | None
    prepare_ms_p95: float | None
    run_s_p50: float | None
    run_s_p95: float | None
    save_ms_p50: float | None
    save_ms_p95: float | None


def totals_of(cells: Iterable[CellRecord]) -> Totals:
    """Sums and shares; a GPU cell that never started counts against every share and in no quantile."""
    everything = list(cells)
    gpu = [cell for cell in everything if cell.label == "gpu"]
    # A host tells 0 ms of a cell that it could not start.
    started = [cell for cell in gpu if cell.start_ms]
    starts = [cell.start_ms for cell in started if cell.start_ms]

    def share(count: int) -> float | None:
        return count / len(gpu) if gpu else None

    prepares = [cell.prepare_ms for cell in started if cell.prepare_ms is not None]
    saves = [cell.save_ms for cell in started if cell.save_ms is not None]
    runs = [cell.run_s for cell in started]
    return Totals(
        gpu_cells=len(gpu),
        cpu_cells=len(everything) - len(gpu),
        failed_cells=sum(cell.error is not None for cell in everything),
        gpu_s_held=sum(cell.gpu_held_s for cell in gpu),
        gpu_s_resident=sum(cell.gpu_resident_s for cell in gpu),
        gpu_s_pinned=sum(cell.gpu_pinned_s for cell in gpu),
        bytes_moved=sum(cell.bytes_moved for cell in gpu),
        starts_within_1s=share(sum(start <= INTERACTIVE_START_MS for start in starts)),
        immediate_share=share(sum(start <= IMMEDIATE_START_MS for start in starts)),
        prepared_share=share(sum(cell.path == "prepared" for cell in started)),
        warm_share=share(sum(cell.path == "warm" for cell in started)),
        start_ms_p50=p50(starts), start_ms_p95=p95(starts), prepare_ms_p50=p50(prepares), prepare_ms_p95=p95(prepares),
        run_s_p50=p50(runs), run_s_p95=p95(runs), save_ms_p50=p50(saves), save_ms_p95=p95(saves),
    )  # fmt: skip


def p50(values: list[float]) -> float | None:
    """The median; None of nothing."""
    return median(values) if values else None


def p95(values: list[float]) -> float | None:
    """The smallest value that 95 % of all do not exceed; None of nothing."""
    return sorted(values)[-(-len(values) * 95 // 100) - 1] if values else None


def report_of(notebooks: Sequence[NotebookReport], machine: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON report: {"notebooks": [...], "cells": [...], "totals": {...}, "machine": {...}}.

    Each of "notebooks" has its own "totals" and no cells; each of "cells" names its "notebook".
    """
    cells = [{"notebook": nb.notebook, **asdict(cell)} for nb in notebooks for cell in nb.cells]
    summaries = []
    for nb in notebooks:
        summary = {key: value for key, value in vars(nb).items() if key != "cells"}
        summaries.append({**summary, "totals": asdict(totals_of(nb.cells))})
    everything = totals_of(cell for nb in notebooks for cell in nb.cells)
    return {"notebooks": summaries, "cells": cells, "totals": asdict(everything), "machine": dict(machine)}


def machine_of(pool: Pool) -> dict[str, Any]:
    """What the figures depend on. `delays`: virtual GPUs imitated attach times; None if that is not known."""
    return {
        "device": pool.device, "gpus": pool.gpus, "hosts": 1 + len(pool.more_endpoints), "embedded": pool.embedded,
        "delays": pool.delays, "cpus": os.cpu_count(), "python": platform.python_version(),
        "platform": platform.platform(),
    }  # fmt: skip
