from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import structlog
from daemon_fakes import FakeReaper, Parts, until

from looseleaf.errors import NotFound
from looseleaf.ids import SessionId
from looseleaf.protocol.rpc import Reply
from looseleaf.services.worker_daemon.eviction_news import EvictionNews
from looseleaf.services.worker_daemon.generations import ZygoteGenerations
from looseleaf.services.worker_daemon.import_cache import CacheSettings, ImportCache
from looseleaf.services.worker_daemon.log_ids import with_ids
from looseleaf.services.worker_daemon.state_requests import StateOwner
from looseleaf.services.worker_daemon.zygote import Zygote, ZygoteSettings


async def test_handler_has_its_connections_session_and_its_messages_ids() -> None:
    owner = StateOwner()
    seen: list[dict[str, Any]] = []

    async def handle(body: dict[str, Any], _fds: list[int]) -> Reply:
        seen.append(structlog.contextvars.get_contextvars())
        if body:
            raise NotFound("SESSION_UNKNOWN")
        return Reply({})

    handlers = with_ids(owner, {"submit": handle})
    await handlers["submit"]({}, [])
    owner.session_id = SessionId("s-1")
    with pytest.raises(NotFound):
        await handlers["submit"]({"execution_id": "x-1", "cell_id": 7, "worker_id": "", "source": "secret = 1"}, [])
    assert seen == [{}, {"session": "s-1", "execution": "x-1"}]
    assert structlog.contextvars.get_contextvars() == {}


async def test_tasks_that_all_sessions_share_have_no_ids_of_the_cell_that_began_them(parts: Parts) -> None:
    seen: dict[str, dict[str, Any]] = {}

    def look(task: str) -> None:
        seen[task] = structlog.contextvars.get_contextvars()

    async def forget(_keys: Sequence[Any]) -> None:
        look("news")

    class Quiet(Zygote):
        """Starts no process."""

        async def _start(self) -> None:
            look("keeper")
            self._exited = asyncio.get_running_loop().create_future()

        async def stop(self) -> None:
            if self._keeper is not None:
                self._keeper.cancel()

    def new_zygote(learned: tuple[str, ...] = ()) -> Zygote:
        return Quiet(ZygoteSettings("python", ()), FakeReaper())

    async def work(name: str) -> None:
        look(name)

    reaper: Any = FakeReaper()
    cache = ImportCache(CacheSettings(new_zygote), reaper)
    news, generations, zygote = EvictionNews(forget), ZygoteGenerations(new_zygote, cache), new_zygote()
    with structlog.contextvars.bound_contextvars(session="s-1", execution="x-1"):
        await generations.start()
        assert seen.pop("keeper"), "started by the call itself"
        news.add([(b"r" * 16, 1)])
        zygote.begin()
        generations._start(work("given up"))
        parts.pool()._start(work("ended worker"))
    await until(lambda: len(seen) == 4)
    assert seen == {"news": {}, "keeper": {}, "given up": {}, "ended worker": {}}
    await zygote.stop()
    await news.stop()
    await generations.stop()
