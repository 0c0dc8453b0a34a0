"""Generations of zygotes over stand-ins for the zygotes: only what the folders hold is real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daemon_fakes import FakeReaper

from looseleaf.environment import Environment
from looseleaf.services.worker_daemon.generations import ZygoteGenerations
from looseleaf.services.worker_daemon.import_cache import CacheSettings, ImportCache


class StandIn:
    """A zygote that forks when it is let."""

    def __init__(self, number: int, folder: Path) -> None:
        self.pid = self.number = number
        self.imports = (f"module_{number}",)
        self.environment: Environment | None = None
        self.environment_id = ""
        self.on_ready: Callable[[], None] = lambda: None
        self.on_down: Callable[[bool], None] = lambda _hopeless: None
        self.seconds = {f"module_{number}": 0.1}
        self.modules: frozenset[str] = frozenset()
        self.private_bytes = 0
        self.may_fork = asyncio.Event()
        self.may_fork.set()
        self.stopped = False
        self._folder = folder

    async def start(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.environment = Environment("python", (str(self._folder),))
        self.environment_id = self.environment.identify()
        self.on_ready()

    async def fork(self, title: str, env: dict[str, str], fds: list[int]) -> int:
        await self.may_fork.wait()
        assert not self.stopped
        return self.number

    async def stop(self) -> None:
        self.stopped = True


class GenerationsRig:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[StandIn] = []
        new: Any = self._new
        reaper: Any = FakeReaper()
        self.generations = ZygoteGenerations(new, ImportCache(CacheSettings(new), reaper))

    def _new(self, learned: tuple[str, ...] = ()) -> StandIn:
        self.made.append(StandIn(len(self.made) + 1, self.folder))
        return self.made[-1]

    def install(self, name: str) -> None:
        (self.folder / f"{name}-1.0.dist-info").mkdir()

    async def fork(self) -> int:
        async with self.generations.request(["module_1"]) as request:
            number = await request.fork("ll-worker:w", {}, [])
            request.served()
            return number
