from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jupyter_core.paths
import pytest

from looseleaf.cli import checks
from looseleaf.cli.main import main
from looseleaf.config import ClusterConfig


@pytest.fixture
def config(tmp_path: Path) -> ClusterConfig:
    return ClusterConfig(data=tmp_path / "d")


def test_all_checks_give_a_finding_and_fail_only_with_advice(
    config: ClusterConfig, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "check_torch", lambda _python: checks.Check("torch", "ok", "not asked here"))
    found = checks.run_checks(config)
    assert len(found) == 15
    assert len({check.name for check in found}) == 15
    assert all(check.finding for check in found)
    assert all(check.advice for check in found if check.state == "warn")


def test_interpreter_without_torch_fails_with_advice(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import no_such_package'\n")
    python.chmod(0o700)
    found = checks.check_torch(str(python))
    assert (found.state, "No module named" in found.finding) == ("fail", True)


def test_folder_that_others_can_write_fails(config: ClusterConfig) -> None:
    config.run_dir.mkdir(parents=True)
    config.run_dir.chmod(0o777)
    assert checks.check_sockets(config).state == "fail"
    config.run_dir.chmod(0o700)
    assert checks.check_sockets(config).state == "ok"


def test_settings_that_are_wrong_fail_and_mistyped_variables_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOSELEAF_CONFIG", raising=False)
    assert checks.check_settings().state == "ok"
    monkeypatch.setenv("LOOSELEAF_SCHEDULER_LEASE_TLL_MS", "1")
    found = checks.check_settings()
    assert found.state == "warn" and "LOOSELEAF_SCHEDULER_LEASE_TTL_MS is" in found.finding
    (tmp_path / "looseleaf.toml").write_text("[frontend]\nsessions_max = 0\n")
    found = checks.check_settings()
    assert found.state == "fail" and "looseleaf.toml:2" in found.finding


def test_full_disk_warns_then_fails(config: ClusterConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "DISK_BYTES_WARN", 1 << 60)
    assert checks.check_disk(config.data).state == "warn"
    monkeypatch.setattr(checks, "DISK_BYTES_FAIL", 1 << 60)
    assert checks.check_disk(config.data).state == "fail"


def test_kernelspec_is_found_when_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for others in ("ENV_JUPYTER_PATH", "SYSTEM_JUPYTER_PATH"):
        monkeypatch.setattr(jupyter_core.paths, others, [])
    assert checks.check_jupyter().state == "warn"
    folder = tmp_path / "kernels" / "looseleaf"
    folder.mkdir(parents=True)
    spec = {"argv": [sys.executable, "-m", "looseleaf.kernel", "-f", "{connection_file}"],
            "display_name": "Python 3 (LooseLeaf)", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    assert checks.check_jupyter().state == "ok"
    spec["argv"][0] = "python"
    monkeypatch.setenv("PATH", str(tmp_path))
    (folder / "kernel.json").write_text(json.dumps(spec))
    assert checks.check_jupyter().state == "ok"
    spec["argv"] = ["/no/such/python", "-m", "looseleaf.kernel"]
    (folder / "kernel.json").write_text(json.dumps(spec))
    assert checks.check_jupyter().state == "fail"


def test_check_that_cannot_run_is_a_failure_not_a_crash(tmp_path: Path) -> None:
    python = tmp_path / "python"
    for script in ("exit 0", "echo not what was asked for"):
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o700)
        found = checks._guarded("torch", lambda: checks.check_torch(str(python)))
        assert (found.state, "cannot be checked" in found.finding) == ("fail", True)
    found = checks._guarded("torch", lambda: checks.check_torch(str(tmp_path / "none")))
    assert (found.state, "No such file" in found.finding) == ("fail", True)


def test_doctor_prints_json_and_its_exit_code_follows(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    for state, code in (("warn", 0), ("fail", 1)):
        monkeypatch.setattr(checks, "run_checks", lambda _config, s=state: [checks.Check("x", s, "found", "do")])
        assert main(["doctor", "--data", str(tmp_path / "d"), "--json"]) == code
        assert json.loads(capsys.readouterr().out)["ok"] is (code == 0)
        assert main(["doctor", "--data", str(tmp_path / "d")]) == code
        assert "-> do" in capsys.readouterr().out
