from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from looseleaf.errors import InvalidArgument, LooseLeafError, NotFound, PreconditionFailed, Timeout, Unavailable
from looseleaf.local.cluster import LocalCluster, clear_dead, tail, wait_for
from looseleaf.local.probe import get_pool, health_state
from looseleaf.local.record import cluster_processes, leftover_sockets, read_record, remove_record, write_record

from .conftest import COMMANDS

LIMIT_S = 40.0
pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One cluster for the tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("shared") / "d"
    with LocalCluster.start(
        commands=COMMANDS, data=folder, device="emulated", gpus=2, hosts=2, restart_delay_s_min=0.0,
    ) as cluster:
        yield cluster


async def test_started_cluster_serves_everywhere_and_lists_all_hosts(shared: LocalCluster) -> None:
    cluster = shared
    record = cluster.record
    assert record.state == "ready"
    assert {service.state for service in record.services.values()} == {"serving"}
    assert [await health_state(service.address) for service in record.services.values()] == ["SERVING"] * 5
    pool = await get_pool(cluster.address("scheduler"))
    assert {host.host.host_id: host.gpu_count for host in pool.hosts} == {"h0": 2, "h1": 2}
    assert cluster.kernel_socket("h1") == cluster.run_dir / "kernel-h1.sock"
    with pytest.raises(InvalidArgument, match="SERVICE_UNKNOWN"):
        cluster.address("nonsense")


def test_lost_service_is_started_again_and_counted(shared: LocalCluster) -> None:
    cluster = shared
    old = cluster.pid("scheduler")
    cluster.kill("scheduler")
    cluster.wait_serving("scheduler", LIMIT_S, other_than=old)
    record = cluster.record.services["scheduler"]
    assert (record.restarts, record.last_exit) == (1, "was ended by SIGKILL")
    old = cluster.pid("checkpoint-store")
    cluster.restart("checkpoint-store", LIMIT_S)
    assert cluster.pid("checkpoint-store") != old
    with pytest.raises(Timeout, match="SERVICE_NOT_SERVING"):
        cluster.wait_serving("frontend", 0.0, other_than=cluster.pid("frontend"))


def test_second_start_on_the_same_data_is_refused_and_harms_nothing(shared: LocalCluster) -> None:
    cluster = shared
    data = Path(cluster.record.data)
    with pytest.raises(PreconditionFailed, match="CLUSTER_RUNNING"):
        LocalCluster.start(commands=COMMANDS, data=data, device="none")
    with pytest.raises(Unavailable) as caught:
        LocalCluster.start(commands=COMMANDS, data=data, run_dir=data / "other", device="none")
    assert "another cluster uses" in caught.value.message
    assert cluster.record.state == "ready"


def test_service_that_fails_to_start_is_named_with_its_log_and_nothing_is_left(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "scheduler")
    with pytest.raises(Unavailable) as caught:
        start()
    assert caught.value.reason == "CLUSTER_START_FAILED"
    assert caught.value.fields["service"] == "scheduler"
    assert "exited with code 7" in caught.value.message
    assert "planted failure" in caught.value.fields["log_tail"]
    assert processes_of(tmp_path) == []
    assert list((tmp_path / "d" / "run").iterdir()) == []


def test_service_that_never_serves_fails_the_start_in_time(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The first to be started: however slow the machine is, no other can be late.
    monkeypatch.setenv("FAKE_HANG", "checkpoint-store")
    with pytest.raises(Unavailable) as caught:
        start(start_timeout_s=1.0)
    assert caught.value.fields["service"] == "checkpoint-store"
    assert "after 1 s it does not say SERVING" in caught.value.message
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_killed_supervisor_leaves_no_process_and_the_folder_to_the_next_cluster(start: Any) -> None:
    cluster = start(detached=True)
    record = cluster.record
    assert len(cluster_processes(record.cluster_id)) == 5
    os.kill(record.supervisor_pid, signal.SIGKILL)
    assert wait_for(lambda: cluster_processes(record.cluster_id) == [], LIMIT_S)
    assert leftover_sockets(cluster.run_dir) == []
    assert read_record(cluster.run_dir) is not None
    clear_dead(cluster.run_dir)
    assert read_record(cluster.run_dir) is None
    next_one = replace(record, cluster_id="c-next")
    write_record(cluster.run_dir, next_one)
    assert cluster.stop() == []
    assert read_record(cluster.run_dir) == next_one
    remove_record(cluster.run_dir)


@pytest.mark.slow
def test_interrupted_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_HANG", "checkpoint-store")
    with creator(tmp_path, "detached=True") as process:
        assert wait_for(lambda: bool(services_of(tmp_path)), LIMIT_S)
        process.send_signal(signal.SIGINT)
        process.wait()
    assert processes_of(tmp_path) == []
    assert list((tmp_path / "d" / "run").iterdir()) == []


@pytest.mark.slow
def test_killed_creator_takes_an_embedded_cluster_with_it(tmp_path: Path) -> None:
    with creator(tmp_path, "detached=False") as process:
        assert process.stdout is not None
        cluster_id = process.stdout.readline().strip()
        assert len(cluster_processes(cluster_id)) == 5
        process.kill()
    assert wait_for(lambda: cluster_processes(cluster_id) == [], LIMIT_S)
    assert list((tmp_path / "d" / "run").iterdir()) == []


@pytest.mark.slow
def test_detached_cluster_outlives_its_creator(tmp_path: Path) -> None:
    with creator(tmp_path, "detached=True") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    cluster = LocalCluster.attach(tmp_path / "d" / "run")
    cluster.restart("frontend", LIMIT_S)
    assert cluster.stop() == cluster.stop() == []
    assert processes_of(tmp_path) == []
    with pytest.raises(NotFound, match="CLUSTER_NOT_RUNNING"):
        LocalCluster.attach(cluster.run_dir)


@pytest.mark.slow
def test_stop_ends_what_services_left_behind_or_would_not_end(
    start: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_ORPHAN", "1")
    monkeypatch.setenv("FAKE_SLOW_STOP", "frontend")
    cluster = start(stop_timeout_s=0.5)
    assert any(process.name() == "sleep" for process in cluster_processes(cluster.record.cluster_id))
    cluster.stop()
    assert cluster_processes(cluster.record.cluster_id) == []
    text = tail(Path(cluster.record.data) / "logs" / "supervisor.log", 50)
    assert "service_killed" in text
    assert "leftover_removed" in text


def test_bad_setting_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="CONFIG_INVALID"):
        LocalCluster.start(data=tmp_path / "d", hosts=0)
    with pytest.raises(LooseLeafError, match="SOCKET_PATH_TOO_LONG"):
        LocalCluster.start(data=tmp_path / ("x" * 100), device="none")
    assert list(tmp_path.iterdir()) == []


def creator(tmp_path: Path, arguments: str) -> subprocess.Popen[str]:
    """A process that starts a cluster, prints its id and waits."""
    code = (
        "import sys, pathlib; from looseleaf.local.cluster import LocalCluster\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r}); from conftest import COMMANDS\n"
        f"c = LocalCluster.start(commands=COMMANDS, data=pathlib.Path({str(tmp_path / 'd')!r}), device='none', "
        f"{arguments})\nprint(c.record.cluster_id, flush=True); sys.stdin.read()\n"
    )
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, cwd=root,
    )


def services_of(tmp_path: Path) -> list[Path]:
    return leftover_sockets(tmp_path / "d" / "run")


def processes_of(tmp_path: Path) -> list[int]:
    """Processes whose command line names the test's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if any(str(tmp_path) in part for part in command):
            found.append(process.pid)
    return found
