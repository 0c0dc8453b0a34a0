"""The program against a cluster of tiny real gRPC services, in this process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from looseleaf.cli import exits
from looseleaf.cli.main import COMMAND_MODULES, build_app, main
from looseleaf.config import ClusterConfig
from looseleaf.kernel.journal_files import journal_root
from looseleaf.local import cluster as cluster_module
from looseleaf.local.cluster import LocalCluster, wait_for
from looseleaf.local.plan import ClusterPlan, make_plan
from looseleaf.local.record import CLUSTER_ID_VARIABLE, ClusterRecord, cluster_processes, write_record

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "local" / "fake_services.py"
COMMANDS = {
    kind: [sys.executable, str(SCRIPT), kind] for kind in ("checkpoint-store", "scheduler", "frontend", "daemon")
}
LIMIT_S = 40.0


def fake_plan(config: ClusterConfig, *, commands: Mapping[str, Sequence[str]] | None = None) -> ClusterPlan:
    return make_plan(config, commands=COMMANDS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a running cluster."""
    folder = tmp_path_factory.mktemp("cli") / "d"
    with LocalCluster.start(commands=COMMANDS, data=folder, device="emulated", gpus=2):
        yield folder


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("LOOSELEAF_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def run(capsys: Any, *arguments: Any) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


def test_every_command_module_registers_and_help_is_quick() -> None:
    names = {command.callback.__name__ for command in build_app().registered_commands if command.callback}
    assert {"up", "down", "status", "health", "doctor", "queue", "hosts", "workers", "lab", "serve"} <= names
    assert len(COMMAND_MODULES) == len(set(COMMAND_MODULES))
    code = (
        "import sys; from looseleaf.cli.main import main; main(['--help']);"
        "print([name for name in ('grpc', 'torch', 'numpy', 'pydantic', 'textual', 'google.protobuf', 'jupyter_client',"
        " 'tomlkit') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=True)
    assert done.stdout.strip().endswith("[]")


def test_usage_error_and_version_have_their_codes(capsys: Any) -> None:
    assert run(capsys, "nonsense")[0] == 2
    code, out, _err = run(capsys, "--version")
    assert (code, out.startswith("looseleaf ")) == (0, True)


def test_commands_without_a_cluster_say_so_in_one_message(capsys: Any) -> None:
    for command in (["status"], ["hosts"], ["session", "list"], ["health", "scheduler"]):
        code, out, err = run(capsys, *command)
        assert (code, out) == (3, "")
        assert err.startswith("looseleaf: CLUSTER_NOT_RUNNING: ")
    code, out, _err = run(capsys, "down")
    assert (code, "no cluster runs" in out) == (0, True)


# `doctor` loads torch each time.
@pytest.mark.parametrize("command", ["up", "down", "status", pytest.param("doctor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none"])
def test_data_folder_that_cannot_be_is_named(capsys: Any, command: str, place: str) -> None:
    # A short name: one that is too long for a socket is told first.
    with tempfile.TemporaryDirectory(prefix="ll-") as folder:
        Path(folder, "file").touch()
        code, out, err = run(capsys, command, "--data", Path(folder, place))
    assert str(Path(folder, place)) in out + err
    if command == "up":
        assert (code, out) == (2, "") and err.startswith("looseleaf: CONFIG_INVALID: ")


def test_bad_settings_are_named(capsys: Any, tmp_path: Path) -> None:
    code, _out, err = run(capsys, "up", "--data", tmp_path / "d", "--hosts", "99")
    wanted = "CONFIG_INVALID: cluster.hosts = '99' (--hosts): must be less than or equal to 16"
    assert (code, wanted in err) == (2, True)
    (tmp_path / "looseleaf.toml").write_text("[cluster\n")
    code, _out, err = run(capsys, "status")
    assert (code, "looseleaf.toml is not valid TOML" in err) == (2, True)


@pytest.mark.cluster
def test_status_shows_services_and_hosts(capsys: Any, data: Path) -> None:
    code, out, _err = run(capsys, "status", "--data", data)
    assert code == 0
    assert out.count("serving") == 4
    assert "daemon-h0.sock" in out
    code, out, _err = run(capsys, "status", "--data", data, "--json")
    found = json.loads(out)
    assert (found["healthy"], found["pool"]["hosts"][0]["gpu_count"]) == (True, 2)


@pytest.mark.cluster
def test_watch_as_json_ends_quietly_when_its_reader_goes(data: Path) -> None:
    command = [sys.executable, "-m", "looseleaf.cli.main", "status", "--watch", "--json", "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        # A look at a busy machine may come too late: the next one does not.
        assert any(json.loads(line)["healthy"] for line in process.stdout)
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (exits.PIPE_CLOSED, "")


@pytest.mark.cluster
def test_status_of_a_cluster_with_a_part_down_is_unhealthy(capsys: Any, data: Path) -> None:
    cluster = LocalCluster.attach(data / "run")
    cluster.pause("frontend")
    try:
        assert wait_for(lambda: cluster.record.services["frontend"].state == "unresponsive", LIMIT_S)
        assert run(capsys, "status", "--data", data)[0] == 4
    finally:
        cluster.resume("frontend")
    assert wait_for(lambda: cluster.record.services["frontend"].state == "serving", LIMIT_S)


@pytest.mark.cluster
def test_pool_commands_print_tables_and_json(capsys: Any, data: Path) -> None:
    assert "2 run(s) wait" in run(capsys, "queue", "--data", data)[1]
    assert json.loads(run(capsys, "queue", "--data", data, "--json")[1])["queued_runs"] == 2
    assert "emulated" in run(capsys, "hosts", "--data", data)[1]
    assert json.loads(run(capsys, "hosts", "--data", data, "--json")[1])[0]["host"]["host_id"] == "h0"
    assert "there is no worker" in run(capsys, "workers", "--data", data)[1]
    assert json.loads(run(capsys, "workers", "--data", data, "--json")[1]) == []
    [host] = json.loads(run(capsys, "workers", "--tree", "--data", data, "--json")[1])
    assert (host["host_id"], host["zygotes"], host["workers"]) == ("h0", [], [])
    assert "h0: " in run(capsys, "workers", "--tree", "--data", data)[1]


@pytest.mark.leaks_ok("gRPC keeps a call whose last event finds its event loop closed; a program has but one loop")
@pytest.mark.cluster
def test_rpc_commands_list_describe_and_call(capsys: Any, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "looseleaf.v1.SchedulerService" in run(capsys, "rpc", "list", "scheduler", "--data", data)[1]
    listed = run(capsys, "rpc", "list", "scheduler", "looseleaf.v1.SchedulerService", "--data", data)[1]
    assert "GetPool(looseleaf.v1.GetPoolRequest)" in listed
    services = json.loads(run(capsys, "rpc", "list", "scheduler", "--data", data, "--json")[1])
    assert "looseleaf.v1.SchedulerService" in services
    address = f"unix:{data}/run/scheduler.sock"
    assert "uint32 gpu_count = 2;" in run(capsys, "rpc", "describe", address, "looseleaf.v1.HostState")[1]
    code, out, _err = run(capsys, "rpc", "call", address, "looseleaf.v1.SchedulerService/GetPool", "{}")
    assert (code, json.loads(out)["queued_runs"]) == (0, 2)
    for text, code in (("{", 2), ('{"odd": 1}', 2)):
        assert run(capsys, "rpc", "call", address, "looseleaf.v1.SchedulerService/GetPool", text)[0] == code
    assert run(capsys, "rpc", "call", address, "looseleaf.v1.SchedulerService/Nothing")[0] == 3
    assert run(capsys, "rpc", "call", address, "looseleaf.v1.SchedulerService/GetExecution")[0] == 5


@pytest.mark.cluster
def test_sessions_are_listed_shown_completed_and_a_malformed_id_is_refused(
    capsys: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"unix:{data}/run/checkpoint-store.sock"
    method = "looseleaf.v1.CheckpointStoreService/OpenSession"
    assert run(capsys, "rpc", "call", address, method, '{"session_id": "s-7"}')[0] == 0
    assert "s-7" in run(capsys, "session", "list", "--data", data)[1]
    assert json.loads(run(capsys, "session", "list", "--data", data, "--json")[1])[0]["session_id"] == "s-7"
    shown = json.loads(run(capsys, "session", "show", "s-7", "--data", data, "--json")[1])
    assert (shown["session_id"], shown["variables"], shown["workers"]) == ("s-7", 0, [])
    assert "s-7" in run(capsys, "session", "show", "s-7", "--data", data)[1]
    with monkeypatch.context() as patch:
        patch.setenv("LOOSELEAF_DATA", str(data))
        patch.setenv("_LOOSELEAF_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", "looseleaf\nsession\nshow\ns-")
        patch.setenv("COMP_CWORD", "3")
        assert run(capsys)[1].split() == ["s-7"]
    code, _out, err = run(capsys, "session", "rm", "../x", "--yes", "--data", data)
    assert (code, "ID_MALFORMED" in err) == (2, True)


@pytest.mark.cluster
def test_deleted_session_leaves_no_outputs_also_if_it_was_never_saved(capsys: Any, data: Path) -> None:
    address = f"unix:{data}/run/checkpoint-store.sock"
    method = "looseleaf.v1.CheckpointStoreService/OpenSession"
    assert run(capsys, "rpc", "call", address, method, '{"session_id": "s-saved"}')[0] == 0
    root = journal_root(data / "run")
    for session_id in ("s-saved", "s-unsaved", "s-other"):
        (root / session_id).mkdir(parents=True)
        (root / session_id / "000001.0").write_text("{}\n")
    for session_id in ("s-saved", "s-unsaved"):
        assert run(capsys, "session", "rm", session_id, "--yes", "--data", data)[0] == 0
        code, _out, err = run(capsys, "session", "rm", session_id, "--yes", "--data", data)
        assert (code, "SESSION_UNKNOWN" in err) == (3, True)
    assert [folder.name for folder in root.iterdir()] == ["s-other"]


@pytest.mark.cluster
def test_health_by_name_and_address(capsys: Any, data: Path) -> None:
    assert run(capsys, "health", "scheduler", "--data", data)[:2] == (0, "SERVING\n")
    assert run(capsys, "health", f"{data}/run/frontend.sock")[:2] == (0, "SERVING\n")
    state = json.loads(run(capsys, "health", "frontend", "--data", data, "--json")[1])
    assert state == {"address": f"unix:{data}/run/frontend.sock", "service": "", "state": "SERVING"}
    code, _out, err = run(capsys, "health", f"unix:{data}/run/none.sock")
    assert (code, "SERVICE_DOWN" in err) == (4, True)


@pytest.mark.cluster
def test_up_and_down_from_nothing_to_nothing(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "make_plan", fake_plan)
    up = ["up", "--data", tmp_path / "d", "--device", "emulated", "--gpus", "2", "--tcp"]
    code, out, _err = run(capsys, *up)
    assert (code, "1 host, 2 GPU(s) each, device emulated" in out) == (0, True)
    record = LocalCluster.attach(tmp_path / "d" / "run").record
    assert record.services["scheduler"].address.startswith("127.0.0.1:")
    try:
        code, out, _err = run(capsys, *up)
        assert (code, "runs already" in out) == (0, True)
        code, _out, err = run(capsys, "up", "--data", tmp_path / "d", "--gpus", "3")
        assert (code, "CLUSTER_RUNNING" in err) == (5, True)
    finally:
        code, out, _err = run(capsys, "down", "--data", tmp_path / "d")
    assert (code, "no process, socket or shared memory is left" in out) == (0, True)
    assert cluster_processes(record.cluster_id) == []


def test_down_after_a_killed_supervisor_cleans_up(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "ORPHAN_GRACE_S", 0.0)
    run_dir = tmp_path / "d" / "run"
    run_dir.mkdir(parents=True)
    with subprocess.Popen(
        ["sleep", "600"], env={**os.environ, CLUSTER_ID_VARIABLE: "c-gone"}, start_new_session=True
    ) as left, socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(run_dir / "scheduler.sock"))
        stale.close()
        write_record(run_dir, ClusterRecord(
            cluster_id="c-gone", supervisor_pid=left.pid, supervisor_started_s=1.0, state="ready",
            data=str(tmp_path / "d"), run_dir=str(run_dir), device="none", gpus_per_host=0, hosts=[],
            kernel_sockets={}, started_unix_ms=1,
        ))
        code, out, _err = run(capsys, "down", "--data", tmp_path / "d")
        assert cluster_processes("c-gone") == []
    assert (code, "was gone already" in out) == (0, True)
    assert list(run_dir.iterdir()) == []


def test_failed_up_shows_the_end_of_the_log(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A start that fails without any process; real ones that fail are in `tests/local`.
    monkeypatch.setattr(sys, "executable", "/bin/false")
    (tmp_path / "d" / "logs").mkdir(parents=True)
    (tmp_path / "d" / "logs" / "supervisor.log").write_text("planted line\n")
    code, _out, err = run(capsys, "up", "--data", tmp_path / "d", "--device", "none")
    assert code == 4
    assert "planted line" in err
    assert "CLUSTER_START_FAILED: supervisor did not start: " in err


@pytest.mark.parametrize("command", ["status", "down", "hosts", "doctor"])
def test_data_option_names_its_own_cluster_whatever_the_environment_says(
    data: Path, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("LOOSELEAF_DATA", str(data))
    monkeypatch.setenv("LOOSELEAF_RUN_DIR", str(data / "run"))
    _, out, err = run(capsys, command, "--data", tmp_path / "other")
    assert str(tmp_path / "other" / "run") in out + err and str(data) not in out + err
    assert run(capsys, "status")[0] == 0
