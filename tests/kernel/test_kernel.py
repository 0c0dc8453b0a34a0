"""Cells of a real kernel process: routing, outputs, state, input, interrupts."""

from __future__ import annotations

from typing import Any


def test_cpu_cell_runs_in_the_kernel_as_usual(notebook: Any) -> None:
    outcome = notebook.ok("import os\nprint('hi')\nos.getpid()")
    assert outcome.text == "hi\n" and outcome.result == str(notebook.pid)
    assert outcome.report["label"] == "cpu" and outcome.report["path"] == "cpu"
    assert notebook.log() == "" or "ERROR" not in notebook.log()


def test_gpu_cell_runs_elsewhere_with_the_kernels_state(notebook: Any, daemon: Any) -> None:
    notebook.ok("x = 20")
    outcome = notebook.ok("%%gpu\ny = x + 22\nprint('on the worker')\ny")
    assert outcome.text == "on the worker\n" and outcome.result == "42"
    assert notebook.ok("print(y, x)").text == "42 20\n"
