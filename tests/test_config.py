from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from looseleaf.config import (
    ClusterConfig,
    ConfigError,
    DaemonConfig,
    FrontendConfig,
    SchedulerConfig,
    StoreConfig,
    default_run_dir,
)
from looseleaf.protocol.frames import FRAME_BYTES_MAX
from looseleaf.rpc.policy import MESSAGE_BYTES_MAX
from looseleaf.units import MIB


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, no variables of ours, and a project folder to stand in."""
    import os

    for name in list(os.environ):
        if name.startswith(("LOOSELEAF_", "XDG_")):
            monkeypatch.delenv(name)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(project)
    return tmp_path


def user_file(place: Path, text: str) -> None:
    path = place / "home" / ".config" / "looseleaf" / "looseleaf.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_precedence_is_user_project_environment_flag(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SchedulerConfig().lease_ttl_ms == 10_000
    user_file(place, "[scheduler]\nlease_ttl_ms = 1000\n")
    assert SchedulerConfig().lease_ttl_ms == 1000
    Path("looseleaf.toml").write_text("[scheduler]\nlease_ttl_ms = 2000\n")
    assert SchedulerConfig().lease_ttl_ms == 2000
    monkeypatch.setenv("LOOSELEAF_SCHEDULER_LEASE_TTL_MS", "3000")
    assert SchedulerConfig().lease_ttl_ms == 3000
    assert SchedulerConfig(lease_ttl_ms=4000).lease_ttl_ms == 4000


def test_project_file_is_found_from_a_subfolder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("looseleaf.toml").write_text("[store]\nversions_kept_max = 7\n")
    Path("deep/er").mkdir(parents=True)
    monkeypatch.chdir("deep/er")
    assert StoreConfig().versions_kept_max == 7


def test_chosen_file_replaces_all_others_and_must_exist(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("looseleaf.toml").write_text("[store]\nversions_kept_max = 7\n")
    (place / "other.toml").write_text("[store]\nsessions_max = 9\n")
    monkeypatch.setenv("LOOSELEAF_CONFIG", str(place / "other.toml"))
    assert (StoreConfig().versions_kept_max, StoreConfig().sessions_max) == (20, 9)
    monkeypatch.setenv("LOOSELEAF_CONFIG", str(place / "none.toml"))
    with pytest.raises(ConfigError, match="LOOSELEAF_CONFIG"):
        StoreConfig()


def test_unknown_key_and_bad_toml_are_errors_that_name_them() -> None:
    Path("looseleaf.toml").write_text("[scheduler]\nlease_tttl_ms = 1\n")
    with pytest.raises(ValidationError, match="lease_tttl_ms"):
        SchedulerConfig()
    Path("looseleaf.toml").write_text("[scheduler\n")
    with pytest.raises(ConfigError, match=r"looseleaf\.toml"):
        SchedulerConfig()


def test_value_out_of_bounds_is_refused() -> None:
    with pytest.raises(ValidationError, match="gpus"):
        DaemonConfig(gpus=-1)
    with pytest.raises(ValidationError, match="log_level"):
        DaemonConfig(log_level="loud")  # type: ignore[arg-type]


def test_every_grpc_message_limit_has_room_for_a_frame_of_the_worker_protocol() -> None:
    least = FRAME_BYTES_MAX + MIB
    assert DaemonConfig().message_bytes_max >= least
    assert least <= MESSAGE_BYTES_MAX
    with pytest.raises(ValidationError):
        DaemonConfig(message_bytes_max=FRAME_BYTES_MAX)


def test_addresses_follow_the_run_folder_unless_given(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOSELEAF_RUN_DIR", "/r")
    assert StoreConfig().listen == "unix:/r/checkpoint-store.sock"
    assert FrontendConfig().scheduler == "unix:/r/scheduler.sock"
    daemon = DaemonConfig(host_id="h3", store="127.0.0.1:7401")
    assert daemon.listen == "unix:/r/daemon-h3.sock"
    assert daemon.kernel_socket == Path("/r/kernel-h3.sock")
    assert (daemon.store, daemon.frontend) == ("127.0.0.1:7401", "unix:/r/frontend.sock")
    assert DaemonConfig(run_dir=Path("/q")).scheduler == "unix:/q/scheduler.sock"


def test_run_folder_follows_a_chosen_data_folder_for_cluster_and_kernel(
    place: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert default_run_dir() == place / "home/.local/state/looseleaf/run"
    assert ClusterConfig(data=Path("d")).run_dir == place / "project/d/run"
    assert ClusterConfig(data=Path("d"), run_dir=Path("/r")).run_dir == Path("/r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/x")
    assert default_run_dir() == Path("/x/looseleaf") == ClusterConfig().run_dir
    monkeypatch.setenv("LOOSELEAF_DATA", "/d")
    assert default_run_dir() == Path("/d/run") == ClusterConfig().run_dir
    monkeypatch.delenv("LOOSELEAF_DATA")
    Path("looseleaf.toml").write_text("[cluster]\ndata = '/e'\n")
    assert default_run_dir() == Path("/e/run") == ClusterConfig().run_dir


def test_switches_read_on_and_off() -> None:
    assert DaemonConfig(emulated_delays="off").emulated_delays is False  # type: ignore[arg-type]
    assert DaemonConfig(emulated_delays="on").emulated_delays is True  # type: ignore[arg-type]
