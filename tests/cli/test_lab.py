"""`looseleaf lab` with a stand-in for JupyterLab on the search path."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from looseleaf.cli.main import main
from looseleaf.config import ClusterConfig
from looseleaf.kernel_config import KernelConfig
from looseleaf.local import lab as lab_module
from looseleaf.local.cluster import LocalCluster
from looseleaf.local.lab import LabServer
from looseleaf.local.record import FILE_NAME, ClusterRecord, process_started_s, write_record

# Writes down how it was called; then ends, or does what FAKE_LAB says.
FAKE_LAB = f"""#!{sys.executable}
import json, os, signal, sys
words = ("JUPYTER_PATH", "LOOSELEAF_CLUSTER_ID", *(word for word in os.environ if word.startswith("LOOSELEAF_")))
def told(**more):
    found = {{"argv": sys.argv[1:], "session": os.getsid(0) == os.getpid(), **more}}
    found |= {{word: os.environ.get(word) for word in words}}
    open(os.environ["FAKE_LAB_TOLD"], "w").write(json.dumps(found))
number = int(os.environ.get("FAKE_LAB_SIGNALS", "0"))
if number:
    def ended(number, frame):
        told(ended_by=number)
        sys.exit(9)
    signal.signal(signal.SIGTERM, ended)
    os.kill(os.getppid(), number)
    while True:
        signal.pause()
told()
sys.exit(int(os.environ.get("FAKE_LAB_CODE", "0")))
"""


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the stand-in writes down how it was called."""
    for name in list(os.environ):
        if name.startswith(("LOOSELEAF_", "XDG_", "JUPYTER_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "jupyter-lab").write_text(FAKE_LAB)
    (programs / "jupyter-lab").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LAB_TOLD", str(tmp_path / "told"))
    return tmp_path / "told"


@pytest.fixture
def running(tmp_path: Path) -> ClusterRecord:
    """The record of a running cluster whose supervisor is this very process; no service is asked anything here."""
    run_dir = tmp_path / "d" / "run"
    run_dir.mkdir(parents=True)
    record = ClusterRecord(
        cluster_id="c-lab", supervisor_pid=os.getpid(), supervisor_started_s=process_started_s(os.getpid()),
        state="ready", data=str(tmp_path / "d"), run_dir=str(run_dir), device="emulated", gpus_per_host=2,
        hosts=["h0"], kernel_sockets={"h0": str(run_dir / "kernel-h0.sock")}, started_unix_ms=1,
    )  # fmt: skip
    write_record(run_dir, record)
    assert record.alive
    return record


def test_running_cluster_is_used_and_its_kernelspec_found(
    running: ClusterRecord, told: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_PATH", "/mine")
    Path("nb").mkdir()
    assert main(["lab", "nb", "--data", running.data, "--no-browser", "--", "--port=1"]) == 0
    assert "2 GPU(s), device emulated; the cluster ran already and goes on" in capsys.readouterr().out
    seen = json.loads(told.read_text())
    assert seen["argv"] == ["--no-browser", "--port=1", "nb", "--MultiKernelManager.default_kernel_name=looseleaf"]
    first, second = seen["JUPYTER_PATH"].split(os.pathsep)
    spec = json.loads(Path(first, "kernels", "looseleaf", "kernel.json").read_text())
    assert spec["argv"][:3] == [sys.executable, "-m", "looseleaf.kernel"] and second == "/mine"
    assert (seen["LOOSELEAF_DATA"], seen["LOOSELEAF_RUN_DIR"]) == (running.data, running.run_dir)
    assert seen["LOOSELEAF_CLUSTER_ID"] is None and seen["session"]


@pytest.mark.parametrize("setting", ["LOOSELEAF_ENDPOINT", "LOOSELEAF_KERNEL_RUN_DIR", "endpoint", "run_dir"])
def test_kernels_of_lab_find_its_cluster_whatever_else_is_configured(
    running: ClusterRecord, told: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    if setting.startswith("LOOSELEAF_"):
        monkeypatch.setenv(setting, "/elsewhere")
    else:
        Path("looseleaf.toml").write_text(f'[kernel]\n{setting} = "/elsewhere"\n')
    assert main(["lab", "--data", running.data]) == 0
    seen = {name: value for name, value in json.loads(told.read_text()).items() if name.startswith("LOOSELEAF_")}
    environ = {"HOME": os.environ["HOME"], **{name: value for name, value in seen.items() if value is not None}}
    spec = json.loads(Path(running.data, "jupyter", "kernels", "looseleaf", "kernel.json").read_text())
    found = KernelConfig.load({**environ, **spec["env"]})
    assert str(found.kernel_socket()) == running.kernel_sockets["h0"]


def test_signal_that_is_ignored_stays_ignored(running: ClusterRecord, told: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server = LabServer([sys.executable, "-c", "import os, signal; os.kill(os.getppid(), signal.SIGHUP)"], running,
                           owned=False)  # fmt: skip
        assert server.run() == 0 and server._signals_seen == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_lab_without_a_question_and_is_no_failure(
    running: ClusterRecord, told: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("FAKE_LAB_SIGNALS", str(int(number)))
    # Whoever started the tests in the background may have it ignored.
    before = signal.signal(number, signal.default_int_handler)
    try:
        assert main(["lab", "--data", running.data]) == 0
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert json.loads(told.read_text())["ended_by"] == signal.SIGTERM


def test_lab_that_fails_is_a_failure_and_another_wish_is_refused(
    running: ClusterRecord, told: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LAB_CODE", "3")
    assert main(["lab", "--data", running.data, "--gpus", "2"]) == 1
    assert "JupyterLab ended with exit code 3" in capsys.readouterr().err
    told.unlink()
    assert main(["lab", "--data", running.data, "--gpus", "3"]) == 5
    assert "CLUSTER_RUNNING" in capsys.readouterr().err and not told.exists()


def test_own_cluster_begins_before_lab_and_ends_after_it(
    running: ClusterRecord, told: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    class Started:
        record = running

        def __enter__(self) -> Started:
            steps.append(f"up, lab {'ended' if told.exists() else 'not yet'}")
            return self

        def __exit__(self, *_exc: object) -> None:
            steps.append(f"down, lab {'ended' if told.exists() else 'not yet'}")

    def start(config: ClusterConfig) -> Started:
        assert (config.gpus, config.device, config.emulated_delays) == (2, "emulated", False)
        return Started()

    monkeypatch.setattr(LocalCluster, "start", start)
    Path(running.run_dir, FILE_NAME).unlink()
    words = ["--device", "emulated", "--gpus", "2", "--no-emulated-delays"]
    assert main(["lab", "--data", running.data, *words]) == 0
    assert "the cluster ends with JupyterLab" in capsys.readouterr().out
    # The mark by which the supervisor ends Lab if this program is killed.
    assert json.loads(told.read_text())["LOOSELEAF_CLUSTER_ID"] == "c-lab"
    assert steps == ["up, lab not yet", "down, lab ended"]


def test_missing_lab_and_missing_path_are_told_before_anything_starts(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["lab", "none.ipynb", "--data", str(tmp_path / "d")]) == 2
    assert "NOTEBOOK_MISSING" in capsys.readouterr().err
    monkeypatch.setattr(lab_module, "PROGRAM", "no-such-jupyter-lab")
    assert main(["lab", "--data", str(tmp_path / "d")]) == 5
    said = capsys.readouterr().err
    assert 'JUPYTERLAB_MISSING: JupyterLab is not installed here: pip install "looseleaf[lab]"' in said
    assert not (tmp_path / "d").exists()
