"""Who makes way for a lease of its GPU."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from daemon_fakes import SESSION, until, within
from pool_rig import ONE, OTHER, RECIPE, WHY, hang, holder, lease_of

from looseleaf.errors import (
    CapacityExceeded,
    Unavailable,
)
from looseleaf.ids import Epoch
from looseleaf.services.worker_daemon.core.worker_ends import EARLIER_OWNER, MADE_WAY
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.gpu_room import make_way
from looseleaf.services.worker_daemon.preparation import prepare_ahead


async def test_make_way_waits_for_a_worker_that_is_ending(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, SESSION, ONE) as worker:
        worker.facts.gpus = (0,)
    evicting = asyncio.create_task(pool.evict(worker.facts.worker_id, WHY))
    await asyncio.sleep(0)
    await within(make_way(pool, lease_of(OTHER), but=None))
    assert worker.lost.done() and await evicting


async def test_make_way_ends_a_preparation_on_the_gpu_but_no_cell(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, OTHER, ONE) as worker:
        worker.facts.gpus, worker.facts.stage = (0,), Stage.COMPLETED
    parts.script.prepare = hang
    preparing = asyncio.create_task(prepare_ahead(pool, worker.facts.worker_id, OTHER, ONE, RECIPE))
    await until(lambda: worker.facts.users == 1)
    await within(make_way(pool, lease_of(OTHER), but=None))
    with pytest.raises(Unavailable, match="WORKER_LOST"):
        await within(preparing)
    async with pool.reserved(None, OTHER, ONE) as running:
        running.facts.gpus, running.facts.stage = (0,), Stage.RUNNING
        with pytest.raises(Unavailable, match="GPU_OCCUPIED"):
            await make_way(pool, lease_of(OTHER), but=None)
        await make_way(pool, lease_of(OTHER), but=running)


async def test_holder_makes_way_for_nobody_before_its_time_and_then_for_anybody(parts: Any) -> None:
    pool = parts.pool(workers_max=1)
    worker = await holder(pool)
    assert not await pool.evict(worker.facts.worker_id, WHY)
    with pytest.raises(Unavailable, match="GPU_OCCUPIED"):
        await make_way(pool, lease_of(OTHER), but=None)
    with pytest.raises(CapacityExceeded, match="WORKERS_FULL"):
        async with pool.reserved(None, OTHER, ONE):
            pass
    worker.facts.hold({"it"}, {"it"}, time.monotonic())
    await within(make_way(pool, lease_of(OTHER), but=None))
    assert worker.lost.done()
    [ended] = pool.ended_holders.told(time.monotonic())
    assert (ended.worker_id, ended.why) == (worker.facts.worker_id, MADE_WAY.sentence)
    assert pool.ended_holders.told(time.monotonic() + 601) == []


async def test_holder_of_an_earlier_epoch_makes_way_for_its_sessions_new_owner(parts: Any) -> None:
    pool = parts.pool()
    worker = await holder(pool)
    await within(make_way(pool, lease_of(SESSION, epoch=2), but=None))
    assert worker.lost.done() and pool.ended_holders.told(time.monotonic())[0].why == EARLIER_OWNER.sentence


async def test_holder_of_an_earlier_epoch_makes_way_for_others_that_know_of_the_newer_one(parts: Any) -> None:
    pool = parts.pool()
    worker = await holder(pool)
    assert not await pool.evict_for_others(worker.facts.worker_id, ONE)
    assert await within(pool.evict_for_others(worker.facts.worker_id, Epoch(2)))
    assert pool.ended_holders.told(time.monotonic())[0].why == EARLIER_OWNER.sentence


async def test_holder_that_is_prepared_for_its_session_makes_way_for_nobody_before_its_time(parts: Any) -> None:
    pool = parts.pool()
    worker = await holder(pool)
    async with pool.reserved(worker.facts.worker_id, SESSION, ONE):
        with pytest.raises(Unavailable, match="GPU_OCCUPIED"):
            await make_way(pool, lease_of(OTHER), but=None)
        assert not worker.lost.done()
        worker.facts.hold({"it"}, {"it"}, time.monotonic())
        await within(make_way(pool, lease_of(OTHER), but=None))
    await until(lambda: bool(pool.ended_holders.told(time.monotonic())))
    assert pool.ended_holders.told(time.monotonic())[0].why == MADE_WAY.sentence
