"""Hosts that stand by: started and ended by requests over the supervisor's socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from looseleaf.errors import Unavailable
from looseleaf.ids import HostId
from looseleaf.local.host_pool import HostPool
from looseleaf.services.scheduler.core.shapes import HostShape
from looseleaf.services.scheduler.host_provider import LocalHosts


class Service:
    """A daemon that does as it is told."""

    def __init__(self) -> None:
        self.record = SimpleNamespace(state="stopped")
        self.calls: list[str] = []
        self.fails = False
        self.may_end = asyncio.Event()
        self.may_end.set()

    def start(self) -> None:
        if self.fails:
            raise OSError("no memory")
        self.calls.append("start")

    async def stop(self, timeout_s: float) -> None:
        self.calls.append("stop")
        await self.may_end.wait()


class Rig:
    """A pool of two hosts, and who watches them."""

    def __init__(self) -> None:
        self.services: dict[str, Any] = {"h1": Service(), "h2": Service()}
        self.watched: list[Any] = []
        self.changes = 0
        self.pool = HostPool(self.services, self.watch, self.changed, 2, 0.0, 5.0)

    def changed(self) -> None:
        self.changes += 1

    async def watch(self, service: Any) -> None:
        self.watched.append(service)
        await asyncio.Event().wait()

    async def until(self, **states: str) -> None:
        async with asyncio.timeout(10):
            while self.pool.states() != states:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_hosts_start_when_asked_for_and_stand_by_again_after_their_end() -> None:
    rig = Rig()
    assert rig.pool.ensure(1, 2) == ["h1"]
    assert rig.pool.states() == {"h1": "booting", "h2": "standby"}
    await rig.until(h1="up", h2="standby")
    assert rig.watched == [rig.services["h1"]]
    assert rig.pool.ensure(5, 2) == ["h2"]
    await rig.until(h1="up", h2="up")
    rig.services["h1"].may_end.clear()
    rig.pool.stop("h1")
    rig.pool.stop("h1")
    assert rig.pool.ensure(1, 2) == []
    rig.services["h1"].may_end.set()
    await rig.until(h1="standby", h2="up")
    assert rig.services["h1"].calls == ["start", "stop"]
    assert rig.services["h1"].record.state == "standby"
    assert rig.changes == 3
    assert rig.pool.ensure(1, 2) == ["h1"]
    await rig.until(h1="up", h2="up")
    await rig.pool.aclose()


async def test_host_that_cannot_be_executed_stands_by_again() -> None:
    rig = Rig()
    rig.services["h1"].fails = True
    rig.pool.ensure(1, 2)
    await rig.until(h1="standby", h2="standby")
    assert rig.watched == []


async def test_host_that_still_boots_is_ended_before_it_started() -> None:
    rig = Rig()
    rig.pool._boot_s = 3600.0
    rig.pool.ensure(1, 2)
    rig.pool.stop("h1")
    await rig.until(h1="standby", h2="standby")
    assert rig.services["h1"].calls == ["stop"]


async def test_scheduler_asks_over_the_socket(tmp_path: Path) -> None:
    rig, path = Rig(), tmp_path / "hosts.sock"
    server = await rig.pool.serve(path)
    provider = LocalHosts(path)
    assert await provider.shapes() == (HostShape(2),)
    assert await provider.ensure(3, HostShape(4)) == ()
    assert await provider.ensure(3, HostShape(2)) == ("h1", "h2")
    await rig.until(h1="up", h2="up")
    await provider.drain(HostId("h2"))
    listed = [(host.host_id, host.state, host.paid) for host in await provider.list()]
    assert listed == [("h1", "up", True), ("h2", "draining", True)]
    await provider.drain(HostId("h2"), undo=True)
    await provider.stop(HostId("h2"))
    await rig.until(h1="up", h2="standby")
    assert [host.host_id for host in await provider.list() if host.paid] == ["h1"]
    with pytest.raises(Unavailable, match="KeyError"):
        await provider.stop(HostId("h9"))
    server.close()
    await server.wait_closed()
    path.unlink(missing_ok=True)
    with pytest.raises(Unavailable) as raised:
        await provider.list()
    assert raised.value.reason == "PROVIDER_DOWN"
    await rig.pool.aclose()


@pytest.mark.parametrize("line", [b"", b"[]\n", b"{}\n", b'{"op": "dance"}\n', b'{"op": "ensure", "count": "x"}\n'])
async def test_malformed_request_is_answered_with_an_error_and_changes_nothing(line: bytes) -> None:
    rig = Rig()
    assert "error" in rig.pool.answer(line)
    assert rig.pool.states() == {"h1": "standby", "h2": "standby"}
