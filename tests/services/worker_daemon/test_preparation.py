"""Workers made ready before Run."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from daemon_fakes import SESSION, ScriptedWorker, prepare_well, until, within
from pool_rig import ONE, RECIPE, hang, holder, refuse

from looseleaf.errors import (
    Conflict,
    InvalidArgument,
    LooseLeafError,
    PreconditionFailed,
    Unavailable,
)
from looseleaf.ids import Epoch
from looseleaf.services.worker_daemon.core.worker_ends import INSTALLED_SINCE
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.preparation import prepare_ahead
from looseleaf.v1 import recipe_pb2


async def test_reserved_waits_for_the_preparation_under_way(parts: Any) -> None:
    pool = parts.pool()
    done, order = asyncio.Event(), []

    async def prepare(worker: ScriptedWorker, request: Any) -> Any:
        await done.wait()
        order.append("prepared")
        return await prepare_well(worker, request)

    parts.script.prepare = prepare
    preparing = asyncio.create_task(prepare_ahead(pool, None, SESSION, ONE, RECIPE))
    await until(lambda: bool(pool.facts()))
    worker_id = pool.facts()[0].worker_id

    async def use() -> None:
        async with pool.reserved(worker_id, SESSION, ONE):
            order.append("used")

    using = asyncio.create_task(use())
    await until(lambda: pool.facts()[0].users == 2)
    done.set()
    await within(asyncio.gather(preparing, using))
    assert order == ["prepared", "used"] and pool.facts()[0].users == 0


async def test_prepare_ahead_leaves_an_idle_host_ready_worker(parts: Any) -> None:
    pool = parts.pool()
    prepared = await prepare_ahead(pool, None, SESSION, ONE, RECIPE)
    facts = prepared.worker.facts
    assert (facts.stage, facts.version, facts.prepared_source_hash) == (Stage.HOST_READY, 1, "h")
    assert facts.evictable and prepared.mapped_bytes == 7 and set(prepared.stage_ms) == {
        "import", "restore", "total", "fork",
    }  # fmt: skip


async def test_prepare_ahead_that_fails_leaves_no_worker(parts: Any) -> None:
    pool = parts.pool()
    parts.script.prepare = refuse
    with pytest.raises(InvalidArgument, match="NO_GOOD"):
        await prepare_ahead(pool, None, SESSION, ONE, RECIPE)
    await until(lambda: not pool.facts())


async def test_prepare_ahead_on_a_worker_in_use_is_refused(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, SESSION, ONE) as worker:
        with pytest.raises(Conflict, match="WORKER_BUSY"):
            await prepare_ahead(pool, worker.facts.worker_id, SESSION, ONE, RECIPE)


async def test_prepare_ahead_in_an_old_epoch_is_refused(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, SESSION, Epoch(3)) as worker:
        pass
    with pytest.raises(PreconditionFailed, match="STALE_EPOCH"):
        await prepare_ahead(pool, worker.facts.worker_id, SESSION, Epoch(2), RECIPE)


async def test_worker_from_before_an_install_gets_no_cell_and_ends(parts: Any) -> None:
    pool = parts.pool()
    old = (await prepare_ahead(pool, None, SESSION, ONE, RECIPE)).worker
    parts.forker.installed = "e-2"
    new = (await prepare_ahead(pool, old.facts.worker_id, SESSION, ONE, RECIPE)).worker
    assert new is not old and new.facts.environment_id == "e-2"
    assert await within(old.lost) == "exited with code 0" and old.facts.end == INSTALLED_SINCE


async def test_worker_prepared_before_an_install_in_the_kernel_is_not_used_after_it(parts: Any) -> None:
    # Their folders may be others than this host's: only the kernel's word tells.
    pool = parts.pool()
    before, after = (recipe_pb2.ExecutionRecipe(version=1, environment_id=text) for text in ("k-1", "k-2"))
    old = (await prepare_ahead(pool, None, SESSION, ONE, before)).worker
    assert (await prepare_ahead(pool, old.facts.worker_id, SESSION, ONE, before)).worker is old
    assert pool.usable(old.facts.worker_id, SESSION, ONE, kernel_environment_id="k-2", even_outdated=True) is old
    assert (await prepare_ahead(pool, old.facts.worker_id, SESSION, ONE, after)).worker is not old


async def test_worker_with_modules_of_older_files_is_replaced(parts: Any) -> None:
    asked: list[bool] = []

    async def older_files(_worker: ScriptedWorker, request: Any) -> Any:
        asked.append(request["ahead"])
        if len(asked) == 1:
            raise Unavailable("OWN_FILES_CHANGED", "the file of helper has changed")
        return await prepare_well(_worker, request)

    parts.script.prepare = older_files
    pool = parts.pool()
    prepared = await within(prepare_ahead(pool, None, SESSION, ONE, RECIPE))
    assert asked == [True, True] and len(parts.forker.workers) == 2
    assert prepared.worker.facts.pid == parts.forker.workers[1].pid


@pytest.mark.parametrize(("step", "survives"), [(refuse, True), (hang, False)])
async def test_failed_preparation_costs_no_variable_that_lives_in_the_worker_only(
    parts: Any, step: Any, survives: bool
) -> None:
    pool = parts.pool()
    worker = await holder(pool)
    parts.script.prepare = step
    object.__setattr__(worker.limits, "prepare_s", 0.05)
    with pytest.raises(LooseLeafError):
        await within(prepare_ahead(pool, worker.facts.worker_id, SESSION, ONE, RECIPE))
    if survives:
        parts.script.prepare = prepare_well
        async with pool.reserved(worker.facts.worker_id, SESSION, ONE) as again:
            assert again is worker and again.facts.held(time.monotonic())
    else:
        await within(asyncio.shield(worker.lost))
