"""`looseleaf config`: shown with its origin, changed in place."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from looseleaf.cli.main import main
from looseleaf.config import ClusterConfig, DaemonConfig
from looseleaf.config_files import user_config_file
from looseleaf.kernel_config import KernelConfig

sys.path.insert(0, str(Path(__file__).parent))
import config_page


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in list(os.environ):
        if name.startswith(("LOOSELEAF_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return project


def said(capsys: Any, *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return str(out + err)


def test_show_tells_value_and_origin_as_text_and_json(capsys: Any, place: Path, monkeypatch: Any) -> None:
    Path("looseleaf.toml").write_text("[cluster]\ngpus = 3\n")
    monkeypatch.setenv("LOOSELEAF_TCP", "1")
    lines = {line.split()[0]: line.split()[1:] for line in said(capsys, "config", "show", "--origin").splitlines()}
    assert lines["cluster.gpus"] == ["3", f"{place}/looseleaf.toml:2"]
    assert lines["cluster.tcp"] == ["true", "LOOSELEAF_TCP"]
    assert lines["scheduler.lease_ttl_ms"] == ["10000", "default"]
    assert lines["kernel.endpoint"] == ["-", "default"]
    found = json.loads(said(capsys, "config", "show", "cluster", "--json"))
    assert found["files"] == [f"{place}/looseleaf.toml"]
    gpus = next(entry for entry in found["settings"] if entry["key"] == "cluster.gpus")
    assert (gpus["value"], gpus["origin"], gpus["variable"]) == (3, f"{place}/looseleaf.toml:2", "LOOSELEAF_GPUS")
    assert "did you mean cluster?" in said(capsys, "config", "show", "cluste", code=2)


def test_path_lists_files_in_the_order_in_which_they_win(capsys: Any, place: Path, monkeypatch: Any) -> None:
    Path("looseleaf.toml").touch()
    assert json.loads(said(capsys, "config", "path", "--json")) == [
        {"path": str(user_config_file()), "kind": "user", "exists": False},
        {"path": str(place / "looseleaf.toml"), "kind": "project", "exists": True},
    ]
    monkeypatch.setenv("LOOSELEAF_CONFIG", str(place / "looseleaf.toml"))
    assert said(capsys, "config", "path").splitlines()[1].split() == [
        "LOOSELEAF_CONFIG", str(place / "looseleaf.toml"), "read",
    ]  # fmt: skip


def test_set_keeps_comments_order_and_mode(capsys: Any, place: Path) -> None:
    path = Path("looseleaf.toml")
    path.write_text("# ours\n[store]\nsessions_max = 5 # few\n\n[cluster]\ngpus = 1  # one\n# end\n")
    path.chmod(0o640)
    assert "cluster.gpus = 2 in " in said(capsys, "config", "set", "cluster.gpus", "2", "--project")
    said(capsys, "config", "set", "cluster.device", "emulated", "--project")
    text = path.read_text()
    assert text.startswith("# ours\n[store]\nsessions_max = 5 # few\n\n[cluster]\ngpus = 2  # one\n")
    assert "# end\n" in text and 'device = "emulated"\n' in text
    assert path.stat().st_mode & 0o777 == 0o640
    assert (ClusterConfig().gpus, ClusterConfig().device) == (2, "emulated")
    assert os.listdir() == ["looseleaf.toml"]


@pytest.mark.parametrize(
    ("key", "text", "written", "read"),
    [
        ("cluster.tcp", "on", "tcp = true", lambda: ClusterConfig().tcp is True),
        ("daemon.host_id", "7", 'host_id = "7"', lambda: DaemonConfig().host_id == "7"),
        ("daemon.keep_warm_s", "1e2", "keep_warm_s = 100.0", lambda: DaemonConfig().keep_warm_s == 100),
        ("daemon.base_imports", '["numpy"]', 'base_imports = ["numpy"]',
         lambda: DaemonConfig().base_imports == ("numpy",)),
        ("cluster.data", "/d", 'data = "/d"', lambda: ClusterConfig().data == Path("/d")),
        ("kernel.paranoid", "off", "paranoid = false", lambda: KernelConfig.load().paranoid is False),
        ("kernel.secret_names", '["A*", "B"]', 'secret_names = ["A*", "B"]',
         lambda: KernelConfig.load().secret_names == ("A*", "B")),
        ("kernel.recover_timeout_s", "3", "recover_timeout_s = 3.0",
         lambda: KernelConfig.load().recover_timeout_s == 3),
    ],
)  # fmt: skip
def test_set_writes_what_the_setting_reads_into_the_users_file(
    capsys: Any, key: str, text: str, written: str, read: Any
) -> None:
    said(capsys, "config", "set", key, text)
    assert written in user_config_file().read_text().splitlines()
    assert user_config_file().stat().st_mode & 0o777 == 0o600
    assert read()


@pytest.mark.parametrize(
    ("key", "text", "why"),
    [
        ("cluster.hosts", "99", "must be less than or equal to 16"),
        ("cluster.device", "gpu", "must be 'auto', 'cuda', 'emulated' or 'none'"),
        ("cluster.hostz", "1", "did you mean cluster.hosts"),
        ("clutter.hosts", "1", "did you mean cluster?"),
        ("cluster", "1", "there is no such setting"),
        ("scheduler.lease_ttl_ms", "20000", "must not exceed dead_after_s"),
        ("kernel.paranoid", "perhaps", "must be true or false"),
    ],
)  # fmt: skip
def test_set_refuses_what_would_not_be_read_and_writes_nothing(capsys: Any, key: str, text: str, why: str) -> None:
    assert why in said(capsys, "config", "set", key, text, code=2)
    assert not user_config_file().exists()


def test_set_says_what_wins_over_it_and_refuses_a_broken_file(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("LOOSELEAF_GPUS", "4")
    assert "here LOOSELEAF_GPUS wins, with 4" in said(capsys, "config", "set", "cluster.gpus", "2")
    user_config_file().write_text("[cluster\n")
    assert "is not valid TOML" in said(capsys, "config", "set", "cluster.gpus", "3", code=2)
    assert user_config_file().read_text() == "[cluster\n"


def test_page_has_every_setting_as_the_models_have_it() -> None:
    """If this fails after a change that is meant: `python tests/cli/config_page.py`."""
    text = config_page.PAGE.read_text(encoding="utf-8")
    assert config_page.page(text) == text
