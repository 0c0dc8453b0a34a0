"""Faults of ours in what the import cache does beside the forks: none of them stops what comes after."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from daemon_fakes import FakeReaper, until

from looseleaf.errors import Timeout, Unavailable
from looseleaf.services.worker_daemon import import_cache as import_cache_module
from looseleaf.services.worker_daemon.core import zygote_events as ev
from looseleaf.services.worker_daemon.core.zygote_facts import ForkProbe, ProbeKey, ProbeResult, Verdict
from looseleaf.services.worker_daemon.core.zygote_nodes import TreeKey, TreeLimits
from looseleaf.services.worker_daemon.import_cache import CacheSettings, ImportCache
from looseleaf.services.worker_daemon.zygote_node import ZygoteNode

KEY = TreeKey(1)
ENDED = "it ended"


class Base:
    """Serves, without a process."""

    environment_id = "e-1"
    pid = 0
    seconds: dict[str, float] = {}
    modules: frozenset[str] = frozenset()
    private_bytes = 1

    def __init__(self) -> None:
        self.sampled = 0

    async def pss_bytes(self) -> int | None:
        self.sampled += 1
        if self.sampled == 1:
            raise TypeError("planted")
        return 1


class Prober:
    """Finds everything clean, but the first time."""

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.asked = 0

    async def probe(self, key: ProbeKey, fork: ForkProbe) -> ProbeResult:
        self.asked += 1
        if self.faults:
            raise self.faults.pop()
        return ProbeResult(key, Verdict.CLEAN, dict.fromkeys(key.imports, 1.0), 1, frozenset(key.imports))


def cache_with(prober: Prober) -> tuple[ImportCache, Base]:
    none: Any = None
    reaper: Any = FakeReaper()
    cache, base = ImportCache(CacheSettings(none, TreeLimits(retry_s=0.0), prober), reaper), Base()
    stand_in: Any = base
    cache.open(KEY, stand_in)
    cache.base_ready(KEY)
    return cache, base


def use(cache: ImportCache, number: int) -> None:
    cache.tell(ev.Requested(number, KEY, frozenset({"pandas"})))
    cache.tell(ev.Forked(number, 0.01))


async def test_probe_that_breaks_is_told_and_the_next_is_made() -> None:
    prober = Prober(TypeError("planted"))
    cache, _base = cache_with(prober)
    for number in range(1, 4):
        use(cache, number)
        await until(lambda: cache.rules.builds.making is None)
    assert prober.asked == 2
    await cache.stop()


@pytest.mark.parametrize(
    ("fault", "refused"),
    [
        (TypeError("planted"), {}),
        (Timeout("ZYGOTE_TIMEOUT", "the parent is stopped", name=""), {}),
        (Unavailable("FORK_FAILED", "no memory"), {}),
        (Timeout("ZYGOTE_TIMEOUT", "it hangs", name="pandas"), {"pandas": Verdict.HANG}),
        (Unavailable("ZYGOTE_FAILED", ENDED, name="pandas"), {"pandas": Verdict.PASSING}),
        (Unavailable("ZYGOTE_FAILED", ENDED, verdict="cuda", culprit="pandas"), {"pandas": Verdict.CUDA}),
    ],
)
async def test_build_that_fails_refuses_only_what_was_at_fault(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, refused: dict[str, Verdict]
) -> None:
    async def fail(*_args: Any) -> Any:
        raise fault

    monkeypatch.setattr(ZygoteNode, "build", fail)
    cache, _base = cache_with(Prober())
    for number in range(1, 3):
        use(cache, number)
        await until(lambda: cache.rules.builds.making is None)
    assert cache.rules.trees[KEY].refused == refused
    await cache.stop()


async def test_look_at_memory_that_breaks_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_cache_module, "SAMPLE_INTERVAL_S", 0.001)
    cache, base = cache_with(Prober())
    cache.start()
    await until(lambda: base.sampled > 1)
    await asyncio.sleep(0)
    await cache.stop()
