"""`looseleaf run` against the kernel tests' fake daemon."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

import nbformat
import pytest

from looseleaf.cli import run as run_command
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
    assert "NOTEBOOK_MISSING" in said and "NOTEBOOK_UNREADABLE" in said and said.count(" OUTPUT_UNWRITABLE:") == 2
    assert not Path(out).exists()


def test_run_several_notebooks_with_reports_and_parameters(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write(tmp_path / "good.ipynb", "steps = 1", "print(steps, names, raw)", c0={"tags": ["parameters"]})
    bad = write(tmp_path / "bad.ipynb", "1 / 0", "never = 1")
    report, junit = tmp_path / "r.json", tmp_path / "j.xml"
    (tmp_path / "p.yaml").write_text("steps: 2\nnames: [a, b]\n")
    code = main([
        "run", str(good), str(bad), "-o", str(tmp_path / "out"), "-j", "2", "-f", str(tmp_path / "p.yaml"),
        "-p", "steps", "3", "-r", "raw", "3", "--report", str(report), "--junit", str(junit),
        "--endpoint", str(daemon.path),
    ])  # fmt: skip
    said = capsys.readouterr()
    assert code == 1, said.err
    cells = nbformat.read(tmp_path / "out" / "good.ipynb", as_version=4).cells
    assert cells[1].metadata.tags == ["injected-parameters"] and cells[2].outputs[0]["text"] == "3 ['a', 'b'] 3\n"
    assert "bad.ipynb has no cell tagged parameters" in said.err and "[2/2] " in said.err
    assert "good.ipynb: ran, 3 CPU and 0 GPU cells" in said.out and "\n1 of 2 notebooks ran to the end\n" in said.out
    assert "bad.ipynb: cell c0 failed: ZeroDivisionError" in said.err
    found = json.loads(report.read_text())
    assert [nb["outcome"] for nb in found["notebooks"]] == ["ok", "cell_failed"] and len(found["cells"]) == 5
    suites = ET.parse(junit).getroot()
    assert [suite.get("failures") for suite in suites] == ["0", "1"] and suites.get("tests") == "6"


@pytest.mark.parametrize(
    "arguments",
    [
        ["-p", "x"], ["-p"], ["-p", "1x", "3"], ["-p=x=3"], ["-f", "absent.yaml"], ["-j", "0"], ["-j", "65"],
        ["--report", "in.ipynb.out"], ["second/in.ipynb"],
    ],
)  # fmt: skip
def test_run_wrong_usage_is_2_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "second").mkdir()
    for name in ("in.ipynb", "second/in.ipynb"):
        write(tmp_path / name, "1")
    # An endpoint that nobody serves: a run that began would say so, not start a cluster.
    assert main(["run", "in.ipynb", "-o", "in.ipynb.out", "--endpoint", "nobody.sock", *arguments]) == 2
    assert not (tmp_path / "in.ipynb.out").exists()


def test_run_failure_of_the_system_is_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.ipynb", "%%gpu\n1")
    nobody = str(tmp_path / "nobody.sock")
    assert main(["run", str(source), "-o", str(tmp_path / "out.ipynb"), "--endpoint", nobody]) == 3
    assert "NO_CLUSTER" in capsys.readouterr().err


def test_run_cluster_that_does_not_start_is_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOOSELEAF_RUN_DIR", str(tmp_path / "nobody"))
    # Nothing starts in this time on any machine.
    monkeypatch.setenv("LOOSELEAF_START_TIMEOUT_S", "0.05")
    source = write(tmp_path / "in.ipynb", "1")
    assert main(["run", str(source), "-o", str(tmp_path / "out.ipynb"), "--device", "emulated"]) == 3
    assert "CLUSTER_START_FAILED" in capsys.readouterr().err
    assert not (tmp_path / "out.ipynb").exists()


def test_run_interrupt_is_130_and_what_was_executed_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The cell itself asks for the interrupt: it certainly runs then.
    code = (
        f"import os, signal, threading\nprint('waits', flush=True)\nos.kill({os.getpid()}, signal.SIGINT)\n"
        # In short waits: Python sees a signal that comes right before a wait only after it.
        "for _ in range(2000):\n    threading.Event().wait(0.05)"
    )
    source, out = write(tmp_path / "in.ipynb", code), tmp_path / "out.ipynb"
    assert main(["run", str(source), "-o", str(out), "--endpoint", str(tmp_path / "nobody.sock")]) == 130
    assert [output.output_type for output in nbformat.read(out, as_version=4).cells[0].outputs] == ["stream", "error"]
    assert "cell c0 was interrupted: KeyboardInterrupt" in capsys.readouterr().err


def test_run_help_tells_options_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for words in ("--jobs", "--fail-fast", "--junit", "--no-delays", "NAME VALUE", "Exit codes: 0 all cells ran"):
        assert words in said


def test_page_about_batch_names_every_option_and_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "batch.md").read_text(encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["run", "--help"]) == 0
    # Each option's row begins with its names.
    rows = re.findall(r"^│[ *]+(--[a-z-]+)(?: +(-[a-z]))?", capsys.readouterr().out, re.MULTILINE)
    assert {("--jobs", "-j"), ("--parameters", "-p"), ("--no-delays", "")} <= set(rows)
    words = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", page))
    for name, short in rows:
        assert name == "--help" or {name, short} & words, name
    for code in (0, run_command.EXIT_CELL_FAILED, run_command.EXIT_USAGE, run_command.EXIT_SYSTEM_FAILED, 130):
        assert f"| {code} | " in page


@pytest.mark.slow
@pytest.mark.cluster
def test_run_without_a_cluster_starts_one_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    # Sockets lie there: the path has to be short.
    place = tempfile.TemporaryDirectory()
    request.addfinalizer(place.cleanup)
    folders = Path(place.name)
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
    assert found["machine"]["delays"] is True
    assert found["cells"][1]["label"] == "gpu" and found["cells"][1]["worker"] != found["notebooks"][0]["kernel_pid"]
    assert list(folders.iterdir()) == []
    # The run's cluster keeps to its own folder.
    assert not (tmp_path / "nobody").exists()
