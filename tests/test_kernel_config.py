from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from looseleaf.kernel_config import ConfigError, KernelConfig


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return {"LOOSELEAF_RUN_DIR": str(tmp_path)}


def test_endpoint_of_the_environment_wins(environ: dict[str, str]) -> None:
    assert KernelConfig.load({**environ, "LOOSELEAF_ENDPOINT": "/a/kernel-h0.sock"}).kernel_socket() == Path(
        "/a/kernel-h0.sock")


def test_kernel_socket_is_the_first_that_exists_in_the_run_folder(environ: dict[str, str], tmp_path: Path) -> None:
    assert KernelConfig.load(environ).kernel_socket() == tmp_path / "kernel-h0.sock"
    (tmp_path / "kernel-h4.sock").touch()
    (tmp_path / "kernel-h2.sock").touch()
    assert KernelConfig.load(environ).kernel_socket() == tmp_path / "kernel-h2.sock"


def test_one_field_alone_is_what_it_is_among_all(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "looseleaf.toml").write_text("[kernel]\nparanoid = true\nconnect_timeout_s = 9\nsecret_names = ['A']\n")
    environ["LOOSELEAF_KERNEL_SECRET_NAMES"] = "B, C*"
    known = KernelConfig.load(environ)
    for entry in fields(KernelConfig):
        if entry.name != "run_dir":
            assert KernelConfig.load_one(entry.name, environ) == getattr(known, entry.name), entry.name
    assert known.secret_names == ("B", "C*") and known.paranoid


def test_one_field_is_refused_for_its_own_fault_only(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "looseleaf.toml").write_text("[kernel]\nparanoid = 'perhaps'\nconnect_timeout_s = 9\n")
    assert KernelConfig.load_one("connect_timeout_s", environ) == 9.0
    with pytest.raises(ConfigError, match=r"kernel\.paranoid"):
        KernelConfig.load_one("paranoid", environ)


def test_file_and_variables_are_typed_and_named_in_errors(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "looseleaf.toml").write_text("[kernel]\nconnect_timeout_s = 9\n")
    assert KernelConfig.load(environ).connect_timeout_s == 9.0
    assert KernelConfig.load({**environ, "LOOSELEAF_KERNEL_CONNECT_TIMEOUT_S": "1.5"}).connect_timeout_s == 1.5
    with pytest.raises(ConfigError, match="LOOSELEAF_KERNEL_CONNECT_TIMEOUT_S"):
        KernelConfig.load({**environ, "LOOSELEAF_KERNEL_CONNECT_TIMEOUT_S": "soon"})
    (tmp_path / "looseleaf.toml").write_text("[kernel]\nconect_timeout_s = 9\n")
    with pytest.raises(ConfigError, match="conect_timeout_s"):
        KernelConfig.load(environ)


@pytest.mark.parametrize(("text", "value"), [("0", False), ("off", False), ("False", False), ("1", True), ("on", True)])
def test_yes_and_no_are_read_as_people_write_them(environ: dict[str, str], text: str, value: bool) -> None:
    assert KernelConfig.load({**environ, "LOOSELEAF_KERNEL_COMMIT_IDLE": text}).commit_idle is value
    with pytest.raises(ConfigError, match="LOOSELEAF_KERNEL_COMMIT_IDLE"):
        KernelConfig.load({**environ, "LOOSELEAF_KERNEL_COMMIT_IDLE": "perhaps"})


def test_kernel_side_pulls_no_package_beyond_the_standard_library() -> None:
    code = "import sys, looseleaf.kernel_config; print(sorted({'pydantic','structlog','grpc'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_secret_names_come_from_a_list_or_a_variable(tmp_path: Path) -> None:
    (tmp_path / "looseleaf.toml").write_text('[kernel]\nsecret_names = ["MY_*", "*_PIN"]\n')
    environ = {"LOOSELEAF_CONFIG": str(tmp_path / "looseleaf.toml")}
    assert KernelConfig.load(environ).secret_names == ("MY_*", "*_PIN")
    assert KernelConfig.load({**environ, "LOOSELEAF_KERNEL_SECRET_NAMES": "A*, B*"}).secret_names == ("A*", "B*")
    assert KernelConfig.load({**environ, "LOOSELEAF_KERNEL_SECRET_NAMES": ""}).secret_names == ()
    (tmp_path / "looseleaf.toml").write_text("[kernel]\nsecret_names = [1]\n")
    with pytest.raises(ConfigError, match="secret_names"):
        KernelConfig.load(environ)
