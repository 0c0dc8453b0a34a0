"""The import cache over real zygotes: nodes are built, forked from, die, hang and are done without."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from daemon_fakes import until, within

from looseleaf.errors import LooseLeafError
from looseleaf.services.worker_daemon import zygote_node
from looseleaf.services.worker_daemon.core.zygote_facts import ForkProbe, ProbeKey, ProbeResult, Verdict
from looseleaf.services.worker_daemon.core.zygote_nodes import Node, NodeState, TreeKey, TreeLimits
from looseleaf.services.worker_daemon.generations import ZygoteGenerations
from looseleaf.services.worker_daemon.import_cache import CacheSettings, ImportCache
from looseleaf.services.worker_daemon.reaper import Reaper, become_subreaper
from looseleaf.services.worker_daemon.zygote import SINGLE_THREADED, Zygote, ZygoteSettings

REPOSITORY = Path(__file__).resolve().parents[3]


class Believer:
    """A prober that takes everything for clean and slow to import."""

    def known(self, key: ProbeKey) -> ProbeResult | None:
        return ProbeResult(key, Verdict.CLEAN, dict.fromkeys(key.imports, 1.0), 1, frozenset(key.imports))

    async def probe(self, key: ProbeKey, fork: ForkProbe) -> ProbeResult:
        result = self.known(key)
        assert result is not None
        return result


class Host:
    """A daemon's zygotes, with a base that has imported nothing of the tail."""

    def __init__(self, folder: Path) -> None:
        for name in ("tail_one", "tail_two", "raises"):
            # An import that takes no time gets no node.
            text = "raise OSError('no licence')" if name == "raises" else "import time; time.sleep(0.05)"
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

    async def stop(self) -> None:
        await self.zygotes.stop()
        for channel in self.channels:
            channel.close()
        await within(asyncio.gather(*self.ends))
        assert not self.cache._workers
        self.reaper.stop()


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    made = Host(tmp_path)
    await made.zygotes.start()
    yield made
    await made.stop()


async def test_tree_of_real_zygotes_grows_and_outlives_its_parts(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host for all of it: each start of a base costs a second."""
    cache = host.cache
    key = TreeKey(1)
    middle = await within(host.node_for("tail_one"))
    leaf = await within(host.node_for("tail_one", "tail_two"))
    assert leaf.parent == middle.id and cache.pid_of(leaf) and cache.pid_of(middle) in host.zygotes.pids
    assert host.where(await within(host.fork(["tail_one", "json"]))) == middle.id

    # Its memory is asked of itself.
    await within(cache.sample())
    assert leaf.pss_bytes > 0 and cache.figures.pss_bytes > leaf.pss_bytes

    # A middle node dies: what was forked from it goes on.
    worker = await within(host.fork(["tail_one", "tail_two"]))
    os.kill(cache.pid_of(middle), signal.SIGKILL)
    await until(lambda: middle.state is NodeState.DEAD)
    os.kill(worker, 0)
    assert host.where(await within(host.fork(["tail_one", "tail_two"]))) == leaf.id

    # A node that is stopped is killed, and the worker comes from the nearest ancestor that serves.
    monkeypatch.setattr(zygote_node, "NODE_FORK_TIMEOUT_S", 0.2)
    os.kill(cache.pid_of(leaf), signal.SIGSTOP)
    base = cache.rules.trees[key].base
    assert host.where(await within(host.fork(["tail_one", "tail_two"]))) == base
    assert not {middle.id, leaf.id} & cache.rules.nodes.keys()
    monkeypatch.setattr(zygote_node, "NODE_FORK_TIMEOUT_S", 20.0)

    # An import that fails in the node is refused by name, and asked of no node again.
    for _ in range(3):
        await within(host.fork(["raises"]))
        await until(lambda: cache.rules.builds.making is None)
    assert cache.rules.trees[key].refused == {"raises": Verdict.ERROR}

    # What is poisoned goes; its worker lives.
    node = await within(host.node_for("tail_one"))
    worker = await within(host.fork(["tail_one"]))
    host.zygotes.failed(worker, RuntimeError("Cannot re-initialize CUDA in forked subprocess."))
    assert node.id not in cache.rules.nodes and cache.rules.trees[key].refused["tail_one"] is Verdict.CUDA
    os.kill(worker, 0)

    # A fork that nobody waits for any more is forgotten.
    waiting = asyncio.create_task(host.fork(["tail_one"]))
    await until(lambda: bool(cache.rules._requests))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not cache.rules._requests and host.zygotes._rules.newest.forks == 0

    # With no base at all a worker gets a process of its own.
    cache.base_down(key, hopeless=True)
    pid = await within(host.fork(["tail_one"]))
    os.kill(pid, 0)
    assert pid not in cache._workers
