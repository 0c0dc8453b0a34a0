"""Generations of zygotes over stand-ins for the zygotes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from daemon_fakes import until, within
from generations_rig import GenerationsRig, StandIn

from looseleaf.environment import Environment
from looseleaf.errors import LooseLeafError
from looseleaf.services.worker_daemon import generations as generations_module


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[GenerationsRig]:
    made = GenerationsRig(tmp_path)
    await made.generations.start()
    yield made
    await made.generations.stop()
    assert all(zygote.stopped for zygote in made.made)


async def test_forks_of_one_environment_come_from_one_zygote(rig: GenerationsRig) -> None:
    assert [await rig.fork(), await rig.fork()] == [1, 1]
    assert rig.generations.pids == [1] and rig.generations.imports == ("module_1",)


async def test_fork_after_an_install_comes_from_a_new_zygote(rig: GenerationsRig) -> None:
    before = await rig.generations.environment_id()
    rig.install("pkg")
    assert await rig.fork() == 2
    assert await rig.generations.environment_id() not in ("", before)
    await until(lambda: rig.made[0].stopped)
    assert rig.generations.pids == [2]


async def test_fork_under_way_keeps_its_zygote_through_an_install(rig: GenerationsRig) -> None:
    rig.made[0].may_fork.clear()
    slow = asyncio.create_task(rig.fork())
    await until(lambda: rig.generations._rules.newest.forks == 1)
    rig.install("pkg")
    assert await rig.fork() == 2
    assert not rig.made[0].stopped
    rig.made[0].may_fork.set()
    assert await within(slow) == 1
    await until(lambda: rig.made[0].stopped)


async def test_install_is_noticed_while_nobody_asks(rig: GenerationsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations_module, "LOOK_INTERVAL_S", 0.001)
    eager = GenerationsRig(rig.folder)
    await eager.generations.start()
    rig.install("pkg")
    await until(lambda: len(eager.made) == 2)
    await eager.generations.stop()


async def test_zygote_that_tells_no_environment_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "begin", lambda self: self.on_ready())
    rig = GenerationsRig(tmp_path)
    await rig.generations.start()
    rig.install("pkg")
    assert (await rig.generations.environment_id(), await rig.fork()) == ("", 1)
    await rig.generations.stop()


async def test_many_looks_at_once_start_one_zygote(rig: GenerationsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter(range(100))
    ids = {0: "before", 1: "after"}
    monkeypatch.setattr(Environment, "identify", lambda _self: ids.get(next(asked), "after"))
    found = await within(asyncio.gather(*(rig.generations.environment_id() for _ in range(5))))
    # In the order in which they looked, whichever thread was quicker.
    assert found == ["before", *["after"] * 4]
    assert rig.generations.pids == [2]


async def test_fork_of_a_host_that_stops_is_refused(tmp_path: Path) -> None:
    rig = GenerationsRig(tmp_path)
    await rig.generations.start()
    await rig.generations.stop()
    with pytest.raises(LooseLeafError, match="ZYGOTE_DOWN"):
        await rig.fork()
