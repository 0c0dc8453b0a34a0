"""The kernel's connection: quick refusals while there is no daemon."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from looseleaf.devices.description import GpuDescription
from looseleaf.errors import InvalidArgument, Unavailable
from looseleaf.kernel.link import SILENT_RETRY_S_MAX, DaemonLink
from looseleaf.kernel_config import KernelConfig


@pytest.fixture
def config(tmp_path: Path) -> KernelConfig:
    return KernelConfig(endpoint=str(tmp_path / "d.sock"), connect_timeout_s=5.0, reconnect_interval_s=1000.0)


def link_to(config: KernelConfig) -> DaemonLink:
    return DaemonLink(config, lambda _message: None)


def test_connect_without_a_daemon_says_how_to_start_one(config: KernelConfig) -> None:
    with pytest.raises(Unavailable, match="looseleaf up") as caught:
        link_to(config).connect("s-1", "t", insist=False)
    assert caught.value.reason == "NO_CLUSTER" and config.endpoint in caught.value.message


def test_connect_soon_after_a_failure_is_refused_unless_somebody_insists(
    config: KernelConfig, new_daemon: Any
) -> None:
    link = link_to(config)
    with pytest.raises(Unavailable):
        link.connect("s-1", "t", insist=False)
    gpu = GpuDescription("NVIDIA H100", 80 << 30, 9, 0, 132)
    daemon = new_daemon(host={"gpus": 2, "device": "cuda", "gpu_memory_bytes": 1 << 30, "gpu": gpu.message()})
    with pytest.raises(Unavailable):
        link.connect("s-1", "t", insist=False)
    assert daemon.count("hello") == 0
    _connection, new = link.connect("s-1", "title", insist=True)
    hello = daemon.wait_for("hello")
    assert new and (hello["session_id"], hello["title"], hello["role"]) == ("s-1", "title", "kernel")
    assert link.welcome is not None and (link.welcome.gpus, link.welcome.device) == (2, "cuda")
    assert link.welcome.gpu == gpu
    assert link.connect("s-1", "title", insist=False)[1] is False
    link.close()


def test_connect_to_a_silent_daemon_waits_ever_longer_between_tries(config: KernelConfig) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(config.endpoint)
        listener.listen()
        link = link_to(replace(config, connect_timeout_s=0.05))
        waits = []
        for _ in range(2):
            with pytest.raises(Unavailable, match="NO_CLUSTER"):
                link.connect("s-1", "t", insist=True)
            waits.append(link._next_try_s)
    assert waits[1] > waits[0] and waits[1] - waits[0] < SILENT_RETRY_S_MAX


def test_connect_with_a_strange_answer_leaves_no_connection(config: KernelConfig, new_daemon: Any) -> None:
    new_daemon(host={"device": "abacus"})
    link = link_to(config)
    with pytest.raises(InvalidArgument, match="abacus"):
        link.connect("s-1", "t", insist=True)
    assert link.live is None and link.current is None
