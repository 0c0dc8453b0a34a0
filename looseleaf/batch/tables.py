"""A batch run's report as text for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from looseleaf.batch.report import CellRecord, NotebookReport, Totals, totals_of
from looseleaf.units import MIB

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS: Final = (
    "cell", "runs on", "closure", "packages", "path", "prepare ms", "start ms", "run s", "save ms", "dirty/total",
    "MiB moved", "worker",
)  # fmt: skip
# Their texts are long and may take several lines.
TEXTS: Final = frozenset({"runs on", "packages"})
LEFT: Final = TEXTS | {"cell", "path"}
PACKAGES_SHOWN_MAX: Final = 5


def cell_table(cells: list[CellRecord]) -> Table:
    """One row per cell; needs rich."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in COLUMNS:
        table.add_column(title, justify="left" if title in LEFT else "right", no_wrap=title not in TEXTS)
    for cell in cells:
        table.add_row(*map(Text, row(cell)), style="red" if cell.error else None)
    return table


def row(cell: CellRecord) -> list[str]:
    """The texts of one cell, in the order of COLUMNS; `-` where a figure does not apply."""
    gpu = cell.label == "gpu"
    return [
        cell.id,
        f"{cell.label.upper()}: {cell.reason}" if cell.reason else cell.label.upper(),
        f"{len(cell.closure)}/{cell.live_names}",
        _packages(cell.packages),
        cell.path or "-",
        _number(cell.prepare_ms if gpu else None, ".0f"),
        _number(cell.start_ms if gpu else None, ".0f"),
        f"{cell.run_s:.2f}",
        _number(cell.save_ms if gpu else None, ".0f"),
        f"{cell.dirty_regions}/{cell.total_regions}" if gpu else "-",
        f"{cell.bytes_moved / MIB:.1f}" if gpu else "-",
        str(cell.worker) if cell.worker else "-",
    ]


def total_lines(totals: Totals) -> list[str]:
    """What the run took of the GPUs and how soon its GPU cells started."""
    lines = [f"{totals.gpu_cells} GPU cells, {totals.cpu_cells} CPU cells"]
    if not totals.gpu_cells:
        return lines
    held, resident, pinned = totals.gpu_s_held, totals.gpu_s_resident, totals.gpu_s_pinned
    lines.append(f"GPU seconds: held {held:.2f} (of these pinned {pinned:.2f}), resident beside that {resident:.2f}")
    shares = (
        ("immediate (50 ms)", totals.immediate_share), ("started within 1 s", totals.starts_within_1s),
        ("prepared before Run", totals.prepared_share), ("on their warm worker", totals.warm_share),
    )  # fmt: skip
    lines.append("GPU cells: " + ", ".join(f"{name} {share:.0%}" for name, share in shares if share is not None))
    quantiles = (
        ("start after Run", "ms", ".0f", totals.start_ms_p50, totals.start_ms_p95),
        ("prepare", "ms", ".0f", totals.prepare_ms_p50, totals.prepare_ms_p95),
        ("run", "s", ".2f", totals.run_s_p50, totals.run_s_p95),
        ("save", "ms", ".0f", totals.save_ms_p50, totals.save_ms_p95),
    )
    lines.extend(
        f"{name}: median {low:{form}} {unit}, p95 {high:{form}} {unit}"
        for name, unit, form, low, high in quantiles
        if low is not None and high is not None
    )
    lines.append(f"saved: {totals.bytes_moved / MIB:.1f} MiB moved")
    return lines


def delays_line(device: str, delays: bool | None) -> str:
    """Whether the figures hold imitated times; empty where that is no question."""
    if device != "emulated" or delays is None:
        return ""
    if delays:
        return "virtual GPUs imitate a real attach: 0.3 s to open a device, copies at 20 GB/s (--no-delays: not at all)"
    return "virtual GPUs without the times of a real attach"


def notebook_line(report: NotebookReport) -> str:
    """One notebook in a line: what became of it, in what time, and why it stopped."""
    totals = totals_of(report.cells)
    counts = f"{totals.cpu_cells} CPU and {totals.gpu_cells} GPU cells in {report.wall_s:.1f} s"
    if report.outcome == "skipped":
        return f"{report.notebook}: skipped"
    if report.outcome == "ok":
        return f"{report.notebook}: ran, {counts}"
    where = f" at cell {report.failed_cell}" if report.failed_cell else ""
    verb = "was interrupted" if report.outcome == "interrupted" else "failed"
    return f"{report.notebook}: {verb}{where} ({report.failure}), {counts}"


def host_line(cells: list[CellRecord]) -> str:
    """How many GPU cells each host ran; empty if there were not several."""
    counts = Counter(cell.host for cell in cells if cell.worker and cell.host)
    return "by host: " + ", ".join(f"{host} {counts[host]}" for host in sorted(counts)) if len(counts) > 1 else ""


def process_line(cells: list[CellRecord], kernel_pid: int | None) -> str:
    """The processes that ran the cells."""
    workers = list(dict.fromkeys(cell.worker for cell in cells if cell.worker))
    gpu = f"GPU workers {', '.join(map(str, workers))}" if workers else "no GPU worker"
    return f"processes: kernel {kernel_pid or '-'} (CPU cells), {gpu}"


def unsaved_lines(cells: list[CellRecord]) -> list[str]:
    """What could not be saved and after which cells, one line each."""
    where: dict[str, list[str]] = {}
    for cell in cells:
        for item in cell.unsaved:
            what = f"{item.get('name')} was not saved ({item.get('reason')} at {item.get('path')})"
            where.setdefault(what, []).append(cell.id)
    return [f"{', '.join(found)}: {what}" for what, found in where.items()]


def _packages(packages: list[str]) -> str:
    more = len(packages) - PACKAGES_SHOWN_MAX
    return ", ".join(packages[:PACKAGES_SHOWN_MAX]) + (f" +{more}" if more > 0 else "") if packages else "-"


def _number(value: Any, form: str) -> str:
    return "-" if value is None else format(float(value), form)
