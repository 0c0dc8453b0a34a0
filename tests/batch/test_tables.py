"""A batch run's report as text."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from looseleaf.batch.report import CellRecord, NotebookReport, totals_of
from looseleaf.batch.tables import (
    COLUMNS,
    cell_table,
    delays_line,
    host_line,
    notebook_line,
    process_line,
    row,
    total_lines,
    unsaved_lines,
)

GPU = CellRecord(
    "train", label="gpu", reason="It needs `model[0]` on the GPU.", path="prepared", closure=["a", "b"], live_names=9,
    packages=["a", "b", "c", "d", "e", "f", "g"], prepare_ms=12.4, start_ms=31.0, run_s=1.234, save_ms=56.0,
    dirty_regions=2, total_regions=40, bytes_moved=4 << 20, worker=777, gpu_held_s=2.0, gpu_pinned_s=1.0,
)  # fmt: skip
CPU = CellRecord("plot", reason="Nothing uses the GPU.", live_names=3, run_s=0.5, error={"ename": "E", "evalue": "x"})


def test_row_of_a_gpu_cell_has_every_figure() -> None:
    assert row(GPU) == [
        "train", "GPU: It needs `model[0]` on the GPU.", "2/9", "a, b, c, d, e +2", "prepared", "12", "31", "1.23",
        "56", "2/40", "4.0", "777",
    ]  # fmt: skip
    assert len(row(GPU)) == len(COLUMNS)


def test_row_of_a_cpu_cell_leaves_gpu_figures_out() -> None:
    assert row(CPU) == ["plot", "CPU: Nothing uses the GPU.", "0/3", "-", "cpu", "-", "-", "0.50", "-", "-", "-", "-"]


def test_table_shows_texts_as_they_are() -> None:
    console = Console(file=io.StringIO(), width=240)
    console.print(cell_table([GPU, CPU]))
    # Square brackets are rich's own marks unless they are told not to be.
    assert "`model[0]`" in console.file.getvalue()  # type: ignore[attr-defined]


def test_lines_tell_gpu_time_starts_and_processes() -> None:
    lines = total_lines(totals_of([GPU, CPU]))
    assert lines[0] == "1 GPU cells, 1 CPU cells"
    assert "held 2.00" in lines[1] and "pinned 1.00" in lines[1] and "resident" in lines[1]
    for share in ("immediate (50 ms) 100%", "started within 1 s 100%", "prepared before Run 100%", "warm worker 0%"):
        assert share in lines[2]
    assert lines[3:] == [
        "start after Run: median 31 ms, p95 31 ms", "prepare: median 12 ms, p95 12 ms",
        "run: median 1.23 s, p95 1.23 s", "save: median 56 ms, p95 56 ms", "saved: 4.0 MiB moved",
    ]  # fmt: skip
    assert total_lines(totals_of([CPU])) == ["0 GPU cells, 1 CPU cells"]
    assert process_line([GPU, CPU], 42) == "processes: kernel 42 (CPU cells), GPU workers 777"
    assert process_line([CPU], None) == "processes: kernel - (CPU cells), no GPU worker"


def test_unsaved_values_are_told_by_cell_and_place() -> None:
    cell = CellRecord("c", unsaved=[{"name": "it", "reason": "LIVE_ITERATOR", "path": "it[0]"}])
    again = replace(cell, id="d", unsaved=[*cell.unsaved, {"name": "t", "reason": "THREAD", "path": "t"}])
    assert unsaved_lines([cell, CPU]) == ["c: it was not saved (LIVE_ITERATOR at it[0])"]
    assert unsaved_lines([cell, CPU, again]) == [
        "c, d: it was not saved (LIVE_ITERATOR at it[0])", "d: t was not saved (THREAD at t)"]


def test_delays_are_told_where_they_matter() -> None:
    assert "imitate" in delays_line("emulated", True) and "--no-delays" in delays_line("emulated", True)
    assert "without" in delays_line("emulated", False)
    assert delays_line("cuda", False) == delays_line("", None) == ""


def test_notebook_line_tells_what_became_of_it() -> None:
    def line(outcome: str, failure: str = "", cell: str = "") -> str:
        return notebook_line(NotebookReport("a.ipynb", "o", outcome, failure, cell, 1, 0.1, 2.34, [GPU, CPU]))

    assert line("ok") == "a.ipynb: ran, 1 CPU and 1 GPU cells in 2.3 s"
    assert line("skipped") == "a.ipynb: skipped"
    assert line("cell_failed", "E: x", "plot").startswith("a.ipynb: failed at cell plot (E: x), ")
    assert line("interrupted", "KeyboardInterrupt: ").startswith("a.ipynb: was interrupted (")


def test_hosts_are_told_where_there_are_several() -> None:
    cells = [CellRecord(str(n), label="gpu", worker=5, host=host) for n, host in enumerate(["h1", "h0", "h1"])]
    assert host_line(cells) == "by host: h0 1, h1 2"
    assert host_line(cells[:1]) == host_line([GPU, CPU]) == ""
