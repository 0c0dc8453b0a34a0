"""The import cache over real zygotes: nodes are built, forked from, die, hang and are done without."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cache_host import Host
from daemon_fakes import until, within

from looseleaf.services.worker_daemon import zygote_node
from looseleaf.services.worker_daemon.core.zygote_facts import Verdict
from looseleaf.services.worker_daemon.core.zygote_nodes import NodeState, TreeKey

SEED = 20261201
FORKS = 2000


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
    # Only what is stopped on purpose may be late.
    monkeypatch.setattr(zygote_node, "NODE_FORK_TIMEOUT_S", 20.0)
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


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1_800)
async def test_two_thousand_forks_with_random_kills_leave_nothing_behind(host: Host) -> None:
    """Zygotes are killed and stopped at random while forks run side by side; every request gets a worker."""
    rng = random.Random(SEED)
    wishes = [[], ["tail_one"], ["tail_two"], ["tail_one", "tail_two"], ["tail_one", "raises"]]
    served = 0
    while served < FORKS:
        forks = [asyncio.create_task(host.fork(rng.choice(wishes))) for _ in range(rng.randrange(1, 6))]
        if rng.random() < 0.1:
            await asyncio.sleep(0)
            pids = [pid for pid in host.zygotes.pids if pid]
            victim, how = rng.choice(pids), rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
            host.reaper.signal(victim, how)
        workers = await asyncio.gather(*forks)
        assert len(set(workers)) == len(workers)
        served += len(workers)
        host.close_channels()
    assert not host.cache.rules._requests
