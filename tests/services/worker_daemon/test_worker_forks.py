"""Forks that fail, and the next way to try."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_fakes import SESSION, until, within
from pool_rig import ONE

from looseleaf.errors import (
    CapacityExceeded,
    Unavailable,
)
from looseleaf.services.worker_daemon import worker_process


async def test_failed_fork_gives_its_place_back(parts: Any) -> None:
    pool = parts.pool(workers_max=1)
    parts.forker.errors = [Unavailable("FORK_FAILED", "no memory")]
    with pytest.raises(Unavailable, match="FORK_FAILED"):
        async with pool.reserved(None, SESSION, ONE):
            pass
    async with pool.reserved(None, SESSION, ONE):
        assert len(pool.facts()) == 1


async def test_fork_that_failed_is_tried_again_while_there_is_another_way(parts: Any) -> None:
    pool = parts.pool()
    parts.forker.errors = [Unavailable("ZYGOTE_FAILED", "it ended"), Unavailable("FORK_FAILED", "no memory")]
    parts.forker.again = True
    async with pool.reserved(None, SESSION, ONE, ["torch", "pandas"]) as worker:
        assert parts.forker.requested == [["torch", "pandas"]]
    spoiled = RuntimeError("Cannot re-initialize CUDA in forked subprocess")
    with pytest.raises(RuntimeError):
        async with pool.reserved(worker.facts.worker_id, SESSION, ONE):
            raise spoiled
    assert parts.forker.failures == [(worker.facts.pid, spoiled)]


async def test_what_fails_before_the_fork_is_asked_for_is_not_tried_again(parts: Any) -> None:
    pool, tries = parts.pool(), []

    def confine(worker_id: str) -> Any:
        tries.append(worker_id)
        raise CapacityExceeded("NO_GROUP", "no control group can be made")

    confiner: Any = SimpleNamespace(confine=confine)
    pool._forks._limits = replace(pool._forks._limits, confiner=confiner)
    parts.forker.again = True
    with pytest.raises(CapacityExceeded, match="NO_GROUP"):
        async with pool.reserved(None, SESSION, ONE):
            pass
    assert len(tries) == 1 and parts.forker.workers == []


async def test_version_that_a_worker_is_for_is_asked_for_while_it_is_forked(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def manifest(_session: str, version: int = 0, known_version: int = 0) -> Any:
        assert (version, known_version) == (7, 0)
        asked.set()
        return SimpleNamespace()

    async def fork_once_asked(*arguments: Any) -> Any:
        await within(asked.wait())
        return await fork(*arguments)

    fork = parts.forker.fork
    monkeypatch.setattr(parts.store, "manifest", manifest)
    monkeypatch.setattr(parts.forker, "fork", fork_once_asked)
    async with parts.pool().reserved(None, SESSION, ONE, (), 7):
        pass


OF_THE_CALL: ContextVar[bool] = ContextVar("of_the_call", default=False)


@pytest.mark.parametrize("how", ["refused", "given up"])
async def test_version_asked_for_a_worker_that_never_came_is_waited_for_no_longer(
    parts: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()
    seen: list[bool] = []

    async def manifest(_session: str, **_versions: int) -> Any:
        seen.append(OF_THE_CALL.get())
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fork(*_arguments: Any) -> int:
        await within(asked.wait())
        if how == "given up":
            await asyncio.Event().wait()
        raise Unavailable("FORK_FAILED", "no memory")

    monkeypatch.setattr(parts.store, "manifest", manifest)
    monkeypatch.setattr(parts.forker, "fork", fork)

    async def use() -> None:
        OF_THE_CALL.set(True)
        async with parts.pool().reserved(None, SESSION, ONE, (), 7):
            pass

    using = asyncio.create_task(use())
    await within(asked.wait())
    if how == "given up":
        using.cancel()
    with pytest.raises(Unavailable if how == "refused" else asyncio.CancelledError):
        await within(using)
    await within(ended.wait())
    # Nor is it asked with what is the call's own, as its deadline is.
    assert seen == [False]


@pytest.mark.parametrize("how", ["hangs", "ends"])
async def test_worker_that_never_says_a_word_is_replaced_in_the_same_call(
    parts: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    told: list[str] = []
    if how == "hangs":
        monkeypatch.setattr(worker_process, "HELLO_TIMEOUT_S", 0.05)
    parts.script.hello, parts.forker.again = False, True

    def stillborn() -> None:
        told.append("stillborn")
        parts.script.hello = True
        monkeypatch.setattr(worker_process, "HELLO_TIMEOUT_S", 20.0)

    monkeypatch.setattr(parts.forker, "stillborn", stillborn)
    monkeypatch.setattr(parts.forker, "served", lambda: told.append("served"))

    async def use() -> None:
        async with parts.pool().reserved(None, SESSION, ONE) as worker:
            assert worker.facts.pid == parts.forker.workers[1].pid

    using = asyncio.create_task(use())
    await until(lambda: bool(parts.forker.workers))
    if how == "ends":
        parts.forker.workers[0].die(-11)
    await within(using)
    assert told == ["stillborn", "served"]
