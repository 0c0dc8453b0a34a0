"""papermill's own program and functions with our engine, against the kernel tests' fake daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from batch_fixtures import write_notebook_of

from looseleaf.errors import InvalidArgument
from looseleaf.kernel.install import KERNEL_MODULE, kernel_spec

papermill = pytest.importorskip("papermill")


@pytest.fixture
def jupyter_path(daemon: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for kernelspecs, the only one; kernels of ours that look for a daemon find the fake one."""
    folder = tmp_path / "jupyter"
    for name in ("JUPYTER_PATH", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("LOOSELEAF_ENDPOINT", str(daemon.path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return folder


def add_spec(folder: Path, name: str, **changes: Any) -> None:
    """A kernelspec in `folder`."""
    (folder / "kernels" / name).mkdir(parents=True)
    (folder / "kernels" / name / "kernel.json").write_text(json.dumps({**kernel_spec(), **changes}))


def execute(source: Path, **options: Any) -> Any:
    """The executed notebook, as papermill wrote it."""
    target = source.with_name("out.ipynb")
    try:
        papermill.execute_notebook(source, target, engine_name="looseleaf", progress_bar=False, **options)
    finally:
        assert list(Path(tempfile.gettempdir()).iterdir()) == []
    return nbformat.read(target, as_version=4)


def test_engine_is_found_by_its_entry_point() -> None:
    from papermill.engines import papermill_engines

    from looseleaf.batch.papermill_engine import LooseLeafEngine

    assert papermill_engines.get_engine("looseleaf") is LooseLeafEngine


@pytest.mark.slow
def test_papermill_program_runs_a_notebook_with_parameters_and_progress(jupyter_path: Path, tmp_path: Path) -> None:
    source = write_notebook_of(
        tmp_path / "in.ipynb", "x = 1", "%%gpu\nprint('gpu', x)", "x * 2", c0={"tags": ["parameters"]}
    )
    nb = nbformat.read(source, as_version=4)
    nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nb, source)
    command = [sys.executable, "-m", "papermill", "--engine", "looseleaf", "in.ipynb", "out.ipynb", "-p", "x", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "Executing: 100%" in done.stderr and "4/4" in done.stderr
    written = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    assert written.metadata.kernelspec == nb.metadata.kernelspec
    assert [cell.source for cell in written.cells[:2]] == ["x = 1", "# Parameters\nx = 3\n"]
    assert written.cells[2].outputs[0]["text"] == "gpu 3\n" and written.cells[3].outputs[0]["data"]["text/plain"] == "6"
    assert {cell.metadata.papermill.status for cell in written.cells} == {"completed"}
    assert "looseleaf" not in json.dumps(written).lower()


@pytest.mark.slow
def test_failing_cell_is_papermills_failure_and_is_written(jupyter_path: Path, tmp_path: Path) -> None:
    source = write_notebook_of(tmp_path / "in.ipynb", "print('kept')", "%%gpu\nraise ValueError('mine')", "never = 1")
    with pytest.raises(papermill.PapermillExecutionError, match="mine"):
        execute(source, kernel_name="python3")
    written = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    statuses = [cell.metadata.papermill.status for cell in written.cells if "papermill" in cell.metadata]
    assert statuses == ["completed", "failed", "pending"]
    outputs = [cell.outputs for cell in written.cells if cell.cell_type == "code"]
    assert outputs[0][0]["text"] == "kept\n" and outputs[1][0]["ename"] == "ValueError" and outputs[2] == []


@pytest.mark.slow
def test_cell_over_the_execution_timeout_ends_the_run(jupyter_path: Path, tmp_path: Path) -> None:
    from nbclient.exceptions import CellTimeoutError

    source = write_notebook_of(tmp_path / "in.ipynb", "import threading\nthreading.Event().wait(100)")
    with pytest.raises(CellTimeoutError):
        execute(source, kernel_name="python3", execution_timeout=1)
    assert (tmp_path / "out.ipynb").exists()


def test_named_kernelspec_of_ours_is_started_as_it_is(jupyter_path: Path, tmp_path: Path) -> None:
    add_spec(jupyter_path, "mine", env={**kernel_spec()["env"], "MARK": "its own"})
    source = write_notebook_of(tmp_path / "in.ipynb", "import os\nos.environ.get('MARK')")
    assert execute(source, kernel_name="mine").cells[0].outputs[0]["data"]["text/plain"] == "'its own'"


@pytest.mark.parametrize(
    "name",
    ["kernel-of-another-machine", *(pytest.param(name, marks=pytest.mark.slow) for name in ("python3", None))],
)
def test_any_other_python_kernel_becomes_ours(jupyter_path: Path, tmp_path: Path, name: str | None) -> None:
    source = write_notebook_of(tmp_path / "in.ipynb", "type(get_ipython().kernel).__module__")
    written = execute(source, kernel_name=name)
    assert written.cells[0].outputs[0]["data"]["text/plain"] == f"'{KERNEL_MODULE}.kernel'"


def test_kernel_of_another_language_is_refused(jupyter_path: Path, tmp_path: Path) -> None:
    add_spec(jupyter_path, "ir", argv=["R"], language="R")
    source = write_notebook_of(tmp_path / "in.ipynb", "1")
    with pytest.raises(InvalidArgument, match="KERNEL_NOT_PYTHON"):
        execute(source, kernel_name="ir")


def test_engine_is_loaded_by_papermill_only() -> None:
    code = "import looseleaf.batch.several, looseleaf.cli.run, sys; print('papermill' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
                          env=dict(os.environ))  # fmt: skip
    assert done.stdout.strip() == "False"
