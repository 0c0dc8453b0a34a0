"""`looseleaf run` against the kernel tests' fake daemon."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nbformat
import pytest

from looseleaf.cli.main import main

sys.path.insert(0, str(Path(__file__).parents[1] / "batch"))
from batch_fixtures import FakeDaemon, daemon
from batch_fixtures import write_notebook_of as write

__all__ = ["daemon"]


def test_run_writes_notebook_and_report_and_shows_the_table(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.ipynb", "x = 1", "%%gpu\nx + 41")
    out, report = tmp_path / "out.ipynb", tmp_path / "r.json"
    code = main(["run", str(source), "-o", str(out), "--report", str(report), "--endpoint", str(daemon.path)])
    said = capsys.readouterr()
    assert code == 0, said.err
    assert nbformat.read(out, as_version=4).cells[1].outputs[0]["data"]["text/plain"] == "42"
    cells = json.loads(report.read_text())["cells"]
    assert [(cell["id"], cell["label"], cell["worker"]) for cell in cells] == [("c0", "cpu", None), ("c1", "gpu", 4242)]
    for word in ("%%gpu asks for the GPU", "cold", "4242", "1 GPU cells, 1 CPU cells", "processes: kernel ", str(out)):
        assert word in said.out


def test_run_failing_cell_is_written_shown_and_exit_code_1(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.ipynb", "print('kept')", "1 / 0", "never = 1")
    out = tmp_path / "out.ipynb"
    assert main(["run", str(source), "-o", str(out), "--endpoint", str(daemon.path)]) == 1
    said = capsys.readouterr()
    assert "cell c1 failed: ZeroDivisionError: division by zero" in said.err and "c0" in said.out
    cells = nbformat.read(out, as_version=4).cells
    assert cells[0].outputs[0]["text"] == "kept\n" and cells[1].outputs[0]["ename"] == "ZeroDivisionError"


def test_run_bad_paths_are_refused_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "in.ipynb", "1")
    broken = tmp_path / "broken.ipynb"
    broken.write_text("{")
    out = str(tmp_path / "out.ipynb")
    absent, nowhere = str(tmp_path / "absent.ipynb"), str(tmp_path / "no" / "out.ipynb")
    for source, target in ((absent, out), (str(broken), out), (str(good), nowhere), (str(good), str(tmp_path))):
        assert main(["run", source, "-o", target]) == 2, (source, target)
    said = capsys.readouterr().err
    assert "NOTEBOOK_MISSING" in said and "NOTEBOOK_UNREADABLE" in said and said.count("OUTPUT_UNWRITABLE") == 2
    assert not Path(out).exists()


@pytest.mark.slow
@pytest.mark.cluster
def test_run_without_a_cluster_starts_one_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = tmp_path / "tmp"
    folders.mkdir()
    monkeypatch.setenv("LOOSELEAF_RUN_DIR", str(tmp_path / "nobody"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setattr("tempfile.tempdir", str(folders))
    source = write(tmp_path / "in.ipynb", "import torch", "torch.ones(3, device='cuda').sum().item()")
    out, report = tmp_path / "out.ipynb", tmp_path / "r.json"
    arguments = ["run", str(source), "-o", str(out), "--report", str(report), "--gpus", "1", "--device", "emulated"]
    code = main(arguments)
    assert code == 0, capsys.readouterr().err
    assert nbformat.read(out, as_version=4).cells[1].outputs[0]["data"]["text/plain"] == "3.0"
    found = json.loads(report.read_text())
    assert found["machine"]["embedded"] and found["machine"]["device"] == "emulated"
    assert found["cells"][1]["label"] == "gpu" and found["cells"][1]["worker"] != found["machine"]["kernel_pid"]
    assert list(folders.iterdir()) == []
