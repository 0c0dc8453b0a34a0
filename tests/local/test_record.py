from __future__ import annotations

import json
import os
import stat
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def read_or_refused(path: Path) -> None:
    try:
        found = read_record(path)
    except Corrupt as error:
        reason = error.reason
    else:
        reason = ""
        assert found is not None
        assert type(found.supervisor_pid) is int
        assert all(type(service.pid) is int for service in found.services.values())
    assert reason in ("", "CLUSTER_RECORD_CORRUPT")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_record_with_any_field_replaced_or_any_bytes_is_read_or_named(tmp_path: Path, data: st.DataObject) -> None:
    value = asdict(record(tmp_path))
    target = value
    if data.draw(st.booleans()):
        value["services"]["scheduler"] = target = asdict(ServiceRecord("a", "b"))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(json_values)
    content = json.dumps(value).encode()
    place = data.draw(st.none() | st.integers(0, len(content)))
    if place is not None:
        content = content[:place] + data.draw(st.binary(max_size=4)) + content[place + data.draw(st.integers(0, 3)) :]
    (tmp_path / "cluster.json").write_bytes(content)
    read_or_refused(tmp_path)


def test_record_nested_without_end_is_named(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("[" * 100_000)
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
