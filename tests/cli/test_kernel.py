"""`looseleaf kernel`: the kernelspec of this environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from looseleaf.cli.main import main


@pytest.fixture(autouse=True)
def jupyter_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jupyter's folders of this test's own."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "user"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "user"))
    return tmp_path


def test_install_list_and_uninstall(jupyter_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", "install", "--user", "--name", "ll-test", "--endpoint", "/run/k.sock"]) == 0
    spec = json.loads((jupyter_folders / "user" / "kernels" / "ll-test" / "kernel.json").read_text())
    assert spec["argv"] == [sys.executable, "-m", "looseleaf.kernel", "-f", "{connection_file}"]
    assert spec["display_name"] == "Python 3 (LooseLeaf)" and spec["interrupt_mode"] == "message"
    assert spec["env"]["CUDA_VISIBLE_DEVICES"] == "" and spec["env"]["LOOSELEAF_ENDPOINT"] == "/run/k.sock"
    assert spec["metadata"]["debugger"] is True
    capsys.readouterr()
    assert main(["kernel", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [item["python"] for item in found if item["name"] == "ll-test"] == [sys.executable]
    assert main(["kernel", "uninstall", "--name", "ll-test"]) == 0
    assert main(["kernel", "uninstall", "--name", "ll-test"]) == 3
    assert "KERNELSPEC_UNKNOWN" in capsys.readouterr().err


def test_install_contradictory_or_unusable_wishes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", "install", "--user", "--sys-prefix"]) == 2
    assert main(["kernel", "install", "--user", "--name", "no/such name"]) == 2
    said = capsys.readouterr().err
    assert "OPTIONS_CONTRADICT" in said and "KERNELSPEC_NAME_REFUSED" in said
