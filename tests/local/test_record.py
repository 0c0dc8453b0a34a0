from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from looseleaf.errors import Corrupt
from looseleaf.local.record import (
    ClusterRecord,
    ServiceRecord,
    cluster_processes,
    is_process,
    process_started_s,
    read_record,
    remove_record,
    write_record,
)


def record(tmp_path: Path) -> ClusterRecord:
    return ClusterRecord(
        cluster_id="c-1", supervisor_pid=os.getpid(), supervisor_started_s=process_started_s(os.getpid()),
        state="ready", data=str(tmp_path),
        run_dir=str(tmp_path), device="none", gpus_per_host=0, hosts=["h0"], kernel_sockets={},
        started_unix_ms=1, services={"scheduler": ServiceRecord(address="unix:/x", log="/y", pid=3, state="serving")},
    )


def test_record_round_trip_is_private_and_knows_its_supervisor(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    write_record(tmp_path, record(tmp_path))
    found = read_record(tmp_path)
    assert found == record(tmp_path)
    assert found.alive
    assert stat.S_IMODE((tmp_path / "cluster.json").stat().st_mode) == 0o600
    remove_record(tmp_path)
    remove_record(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"services": {"a": 3}}', "{" * 100, '{"services": {}, "odd": 1}'])
def test_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(Corrupt, match="CLUSTER_RECORD_CORRUPT"):
        read_record(tmp_path)


def test_reused_pid_and_zombie_are_not_the_process() -> None:
    assert not is_process(os.getpid(), process_started_s(os.getpid()) - 100)
    child = subprocess.Popen(["true"])
    began_s = process_started_s(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_process(child.pid, began_s)
    child.wait()
    assert process_started_s(child.pid) == 0.0


def test_descendants_are_found_by_their_mark() -> None:
    env = {**os.environ, "LOOSELEAF_CLUSTER_ID": "c-test-mark"}
    with subprocess.Popen(["sh", "-c", "echo; read x"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          start_new_session=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert [process.pid for process in cluster_processes("c-test-mark")] == [child.pid]
        assert cluster_processes("c-test") == []
