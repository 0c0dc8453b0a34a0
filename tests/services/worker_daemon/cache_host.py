"""A host of real zygotes for tests of the import cache."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

from daemon_fakes import until, within

from looseleaf.errors import LooseLeafError
from looseleaf.services.worker_daemon.core.zygote_facts import ForkProbe, ProbeKey, ProbeResult, Verdict
from looseleaf.services.worker_daemon.core.zygote_nodes import Node, TreeLimits
from looseleaf.services.worker_daemon.generations import ZygoteGenerations
from looseleaf.services.worker_daemon.import_cache import CacheSettings, ImportCache
from looseleaf.services.worker_daemon.reaper import Reaper
from looseleaf.services.worker_daemon.zygote import SINGLE_THREADED, Zygote, ZygoteSettings
from looseleaf.subreaper import become_subreaper

REPOSITORY = Path(__file__).resolve().parents[3]


class Believer:
    """A prober that takes everything for clean and slow to import."""

    async def probe(self, key: ProbeKey, fork: ForkProbe) -> ProbeResult:
        return ProbeResult(key, Verdict.CLEAN, dict.fromkeys(key.imports, 1.0), 1, frozenset(key.imports))


class Host:
    """A daemon's zygotes, with a base that has imported nothing of the tail."""

    def __init__(self, folder: Path) -> None:
        for name in ("tail_one", "tail_two", "raises"):
            # An import that takes no time gets no node.
            text = "raise ValueError('no licence')" if name == "raises" else "import time; time.sleep(0.05)"
            (folder / f"{name}.py").write_text(text)
        become_subreaper()
        self.reaper = Reaper()
        self.reaper.start()
        env = {**SINGLE_THREADED, "PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)])}
        settings = ZygoteSettings(sys.executable, (), env, str(folder / "zygote.log"))
        cache = ImportCache(
            CacheSettings(lambda: Zygote(settings, self.reaper), TreeLimits(), Believer(), str(folder / "zygote.log")),
            self.reaper,
        )
        self.zygotes = ZygoteGenerations(lambda _learned: Zygote(settings, self.reaper), cache)
        self.channels: list[socket.socket] = []
        self.ends: list[asyncio.Future[int]] = []

    @property
    def cache(self) -> ImportCache:
        return self.zygotes.cache

    def tail(self) -> dict[tuple[str, ...], Node]:
        return {node.added: node for node in self.cache.rules.nodes.values() if not node.is_base}

    async def fork(self, imports: Iterable[str]) -> int:
        """A worker's pid, by as many attempts as it takes."""
        null = os.open(os.devnull, os.O_RDWR)
        try:
            async with self.zygotes.request(imports) as request:
                while True:
                    ours, theirs = socket.socketpair()
                    self.channels.append(ours)
                    with theirs:
                        try:
                            pid = await request.fork("ll-worker:w", {}, [theirs.fileno(), null, null, null])
                            self.ends.append(self.reaper.exit_status(pid))
                            request.served()
                            return pid
                        except LooseLeafError:
                            if not request.again:
                                raise
        finally:
            os.close(null)

    async def node_for(self, *imports: str) -> Node:
        """The node that these get, after as many workers as that takes."""
        while True:
            await self.fork(imports)
            await until(lambda: self.cache.rules.builds.making is None)
            found = [node for node in self.tail().values() if set(imports) <= node.imports and node.lives]
            if found:
                return found[0]

    def where(self, pid: int) -> int:
        """The node that a worker was forked from."""
        return self.cache._workers[pid][0]

    def close_channels(self) -> None:
        """Ends the workers."""
        for channel in self.channels:
            channel.close()
        self.channels.clear()

    async def stop(self) -> None:
        await self.zygotes.stop()
        self.close_channels()
        await within(asyncio.gather(*self.ends))
        assert not self.cache._workers
        self.reaper.stop()
