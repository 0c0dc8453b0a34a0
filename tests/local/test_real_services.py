"""The supervisor with the real services; zygotes import little, so that the start is quick.

What sessions notice of restarts is in `tests/cluster`.
"""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from looseleaf.local.cluster import LocalCluster, wait_for
from looseleaf.local.probe import get_pool
from looseleaf.local.record import cluster_processes, leftover_sockets
from looseleaf.rpc.client import open_channel
from looseleaf.v1 import checkpoint_store_pb2
from looseleaf.v1.checkpoint_store_pb2_grpc import CheckpointStoreServiceStub

LIMIT_S = 60.0
pytestmark = [pytest.mark.cluster, pytest.mark.slow]


async def open_session(cluster: LocalCluster, session_id: str) -> list[str]:
    """Opens a session and returns the ids of all."""
    async with open_channel(cluster.address("checkpoint-store"), peer="store") as channel:
        store = CheckpointStoreServiceStub(channel)
        request = checkpoint_store_pb2.OpenSessionRequest(
            request_id=f"r-{session_id}", session_id=session_id, create=True)
        await store.OpenSession(request, timeout_s=LIMIT_S)
        found = await store.ListSessions(checkpoint_store_pb2.ListSessionsRequest(), timeout_s=LIMIT_S)
    return sorted(head.session_id for head in found.sessions)


async def test_real_cluster_starts_survives_losses_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOOSELEAF_DAEMON_BASE_IMPORTS", '["json"]')
    data = tmp_path / "d"
    cluster = LocalCluster.start(data=data, device="emulated", gpus=2, detached=True)
    try:
        record = cluster.record
        assert {service.state for service in record.services.values()} == {"serving"}
        (host,) = (await get_pool(cluster.address("scheduler"))).hosts
        assert (host.gpu_count, host.device_kind, host.liveness) == (2, "emulated", "alive")
        assert cluster.kernel_socket().is_socket()
        assert stat.S_IMODE(data.stat().st_mode) == stat.S_IMODE(cluster.run_dir.stat().st_mode) == 0o700
        assert await open_session(cluster, "s-1") == ["s-1"]
        before = cluster.pid("daemon-h0")
        cluster.kill("daemon-h0")
        cluster.wait_serving("daemon-h0", LIMIT_S, other_than=before)
        os.kill(record.supervisor_pid, signal.SIGKILL)
        assert wait_for(lambda: cluster_processes(record.cluster_id) == [], LIMIT_S)
        assert leftover_sockets(cluster.run_dir) == []
        with LocalCluster.start(data=data, device="none") as second:
            assert await open_session(second, "s-2") == ["s-1", "s-2"]
            second_id = second.record.cluster_id
        assert cluster_processes(second_id) == []
    finally:
        cluster.stop()
    assert list(cluster.run_dir.iterdir()) == []
