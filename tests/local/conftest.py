"""Clusters of tiny real gRPC services."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from looseleaf.local.cluster import LocalCluster
from looseleaf.local.record import cluster_processes, leftover_sockets

SCRIPT = Path(__file__).with_name("fake_services.py")
COMMANDS = {
    kind: [sys.executable, str(SCRIPT), kind] for kind in ("checkpoint-store", "scheduler", "frontend", "daemon")
}
FAST: dict[str, Any] = {"device": "emulated", "gpus": 2, "restart_delay_s_min": 0.0, "stop_timeout_s": 10.0}

Start = Callable[..., LocalCluster]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a cluster with data in the test's folder; afterwards nothing of it may be left."""
    clusters: list[LocalCluster] = []

    def begin(**settings: Any) -> LocalCluster:
        cluster = LocalCluster.start(commands=COMMANDS, **{"data": tmp_path / "d", **FAST, **settings})
        clusters.append(cluster)
        return cluster

    yield begin
    for cluster in clusters:
        cluster.stop()
    for cluster in clusters:
        assert cluster_processes(cluster.record.cluster_id) == []
        assert leftover_sockets(cluster.run_dir) == []
        assert not (cluster.run_dir / "cluster.json").exists()
