"""The kernel's connection: quick refusals while there is no daemon."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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


def test_try_aside_keeps_nobody_waiting_and_is_never_made_twice(config: KernelConfig, new_daemon: Any) -> None:
    link = link_to(replace(config, connect_timeout_s=60.0))

    async def silent() -> None:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.setblocking(False)
            listener.bind(config.endpoint)
            listener.listen()
            tries = [asyncio.create_task(link.open_aside("s-1", "t", insist=True)) for _ in range(3)]
            # The loop serves others: nobody has answered the hello yet.
            kernel, _address = await loop.sock_accept(listener)
            assert await loop.sock_recv(kernel, 1) and not any(task.done() for task in tries)
            tries[0].cancel()
            kernel.close()
            ends = await asyncio.gather(*tries, return_exceptions=True)
            assert isinstance(ends[0], asyncio.CancelledError), ends
            told = [end for end in ends if isinstance(end, Unavailable)]
            assert [end.reason for end in told] == ["NO_CLUSTER"], ends
            with pytest.raises(BlockingIOError):
                listener.accept()
        # A failure is heard of once, and counts for those who do not insist.
        await link.open_aside("s-1", "t", insist=False)
        with pytest.raises(Unavailable):
            link.connect("s-1", "t", insist=False)

    asyncio.run(silent())
    Path(config.endpoint).unlink()
    daemon = new_daemon()

    async def answered() -> None:
        await asyncio.gather(*(link.open_aside("s-1", "t", insist=True) for _ in range(2)))
        assert link.current is None, "nobody has taken it"
        assert link.connect("s-1", "t", insist=True)[1] is True
        await link.open_aside("s-1", "t", insist=True)
        assert link.connect("s-1", "t", insist=True)[1] is False
        link.close()
        # Somebody who cannot wait for the loop takes what is being made.
        task = asyncio.create_task(link.open_aside("s-1", "t", insist=True))
        await asyncio.sleep(0)
        assert link.connect("s-1", "t", insist=True)[1] is True
        await task
        link.close()
        # Made for nobody any more.
        task = asyncio.create_task(link.open_aside("s-1", "t", insist=True))
        await asyncio.sleep(0)
        link.close()
        await task
        assert link.live is None

    asyncio.run(answered())
    assert daemon.count("hello") == 3 and daemon.wait_for("hello", 3)


def test_connection_that_comes_after_an_interrupt_is_closed(config: KernelConfig) -> None:
    class Interrupted(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            if not self.done():
                raise KeyboardInterrupt
            return super().result(timeout)

    link, opening, closed = link_to(config), Interrupted(), []
    link._opening = opening
    with pytest.raises(KeyboardInterrupt):
        link.connect("s-1", "t", insist=True)
    opening.set_result((SimpleNamespace(close=lambda: closed.append(True)), {}))
    assert closed == [True] and link.current is None
