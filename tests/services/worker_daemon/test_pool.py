"""Who gets a worker, who ends, and that the counts are right whatever happens."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from typing import Any

import pytest
from daemon_fakes import SESSION, Script, ScriptedWorker, parts_of_a_daemon, prepare_well, until, within
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_rig import ONE, OTHER, RECIPE, WHY, holder, lease_of

from looseleaf.errors import (
    CapacityExceeded,
    InvalidArgument,
    LooseLeafError,
)
from looseleaf.ids import Epoch, SessionId, Version, WorkerId
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.gpu_room import make_way
from looseleaf.services.worker_daemon.pool import WorkerPool
from looseleaf.services.worker_daemon.preparation import prepare_ahead


async def test_reserved_worker_is_reused_by_its_session_only(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, SESSION, ONE) as first:
        assert first.facts.users == 1
    async with pool.reserved(first.facts.worker_id, SESSION, ONE) as again:
        assert again is first
    async with pool.reserved(first.facts.worker_id, OTHER, ONE) as other:
        assert other is not first
    assert (first.facts.users, other.facts.users, len(parts.forker.workers)) == (0, 0, 2)


async def test_reserved_in_a_newer_epoch_gets_a_new_worker_and_the_old_one_ends(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, SESSION, ONE) as old:
        pass
    async with pool.reserved(old.facts.worker_id, SESSION, Epoch(2)) as new:
        assert new is not old
        await within(old.lost)


async def test_reserved_worker_of_a_failed_user_is_killed(parts: Any) -> None:
    pool = parts.pool()
    with pytest.raises(ZeroDivisionError):
        async with pool.reserved(None, SESSION, ONE) as worker:
            raise ZeroDivisionError
    await within(worker.lost)
    await until(lambda: not pool.facts())
    assert worker.facts.users == 0 and parts.forker.workers[0].signals == [signal.SIGKILL]


async def test_user_that_gives_up_waiting_harms_nobody(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, SESSION, ONE) as worker:

        async def use() -> None:
            async with pool.reserved(worker.facts.worker_id, SESSION, ONE):
                pass

        waiting = asyncio.create_task(use())
        await until(lambda: worker.facts.users == 2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await pool.prepare(worker, RECIPE, Version(1))
    assert worker.facts.users == 0 and not parts.forker.workers[0].signals


async def test_prepare_with_an_older_recipe_does_not_take_the_version_back(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, SESSION, ONE) as worker:
        await pool.prepare(worker, RECIPE, Version(6))
        await pool.prepare(worker, RECIPE, Version(5))
    assert worker.facts.version == 6


async def test_evict_of_a_worker_in_use_is_refused_and_of_an_unknown_one_is_done(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, SESSION, ONE) as worker:
        assert not await pool.evict(worker.facts.worker_id, WHY)
    assert await pool.evict(worker.facts.worker_id, WHY)
    assert await pool.evict(worker.facts.worker_id, WHY)
    assert worker.lost.result() == "exited with code 0"


async def test_workers_of_a_session_are_told_to_end_all_at_once(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, SESSION, ONE) as first, pool.reserved(None, SESSION, ONE) as second:
        pass
    evicting = asyncio.create_task(pool.evict_session(SESSION))
    # It begins, and so do its own tasks; no answer of a worker has come by then.
    for _ in range(2):
        await asyncio.sleep(0)
    assert first.ending and second.ending and not first.lost.done()
    assert await within(evicting) == 2


async def test_worker_that_is_ending_is_not_handed_out(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, SESSION, ONE) as worker:
        pass
    evicting = asyncio.create_task(pool.evict(worker.facts.worker_id, WHY))
    await asyncio.sleep(0)
    async with pool.reserved(worker.facts.worker_id, SESSION, ONE) as other:
        assert other is not worker
    assert await within(evicting)


async def test_install_ends_no_worker_that_runs_or_holds_what_no_version_has(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, SESSION, ONE) as running, pool.reserved(None, OTHER, ONE) as holder:
        holder.facts.hold(["gen"], ["gen"], time.monotonic() + 60)
    running.facts.stage = Stage.RUNNING
    parts.forker.installed = "e-2"
    await pool.look_at_environment()
    assert not pool._background - {t for t in pool._background if "_forget_when_lost" in repr(t.get_coro())}
    assert pool.usable(running.facts.worker_id, SESSION, ONE) is None
    # The cell that needs `gen` runs there, as it would in a process that goes on.
    assert pool.usable(holder.facts.worker_id, OTHER, ONE) is holder
    running.facts.stage = Stage.COMPLETED


async def test_full_host_ends_a_completed_worker_before_a_prepared_one(parts: Any) -> None:
    pool = parts.pool(workers_max=2)
    prepared = (await prepare_ahead(pool, None, SESSION, ONE, RECIPE)).worker
    async with pool.reserved(None, SESSION, ONE) as completed:
        completed.facts.stage = Stage.COMPLETED
    async with pool.reserved(None, OTHER, ONE):
        assert completed.lost.done() and not prepared.lost.done()


async def test_full_host_refuses_when_all_workers_are_in_use(parts: Any) -> None:
    pool = parts.pool(workers_max=1)
    async with pool.reserved(None, SESSION, ONE):
        with pytest.raises(CapacityExceeded, match="WORKERS_FULL"):
            async with pool.reserved(None, OTHER, ONE):
                pass


async def test_forks_at_once_do_not_exceed_the_limit(parts: Any) -> None:
    pool = parts.pool(workers_max=3)

    async def use(number: int) -> bool:
        try:
            async with pool.reserved(None, SessionId(f"s-{number}"), ONE):
                await asyncio.sleep(0)
                assert len(pool.facts()) <= 3
        except CapacityExceeded:
            return False
        return True

    done = await within(asyncio.gather(*(use(number) for number in range(8))))
    assert sum(done) >= 3


async def test_completed_worker_goes_at_once_when_none_is_kept(parts: Any) -> None:
    pool = parts.pool(keep_s=0)
    async with pool.reserved(None, SESSION, ONE) as worker:
        worker.facts.stage = Stage.COMPLETED
    await within(worker.lost)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_pool_in_random_worlds_keeps_its_counts(seed: int) -> None:
    """Whatever fails, dies or is evicted: no user is left behind, and the limit holds."""
    asyncio.run(_random_world(random.Random(seed)))


async def _random_world(chance: random.Random) -> None:
    async def prepare(worker: ScriptedWorker, request: Any) -> Any:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        what = chance.randrange(6)
        if what == 0:
            worker.die(-9)
        elif what == 1:
            raise InvalidArgument("NO_GOOD", "refused")
        return await prepare_well(worker, request)

    async with parts_of_a_daemon(Script(prepare=prepare)) as parts:
        pool = parts.pool(workers_max=3)
        await asyncio.wait_for(asyncio.gather(*(_visitor(pool, chance) for _ in range(6))), 60)
        await pool.stop()
        await until(lambda: not pool.facts())


async def _visitor(pool: WorkerPool, chance: random.Random) -> None:
    for _ in range(5):
        session = SessionId(f"s-{chance.randrange(3)}")
        known = chance.choice([None, *(facts.worker_id for facts in pool.facts())])
        try:
            match chance.randrange(4):
                case 0:
                    await prepare_ahead(pool, known, session, ONE, RECIPE)
                case 1 if known is not None:
                    await pool.evict(known, WHY)
                case 2:
                    await make_way(pool, lease_of(OTHER), but=None)
                case _:
                    async with pool.reserved(known, session, ONE) as worker:
                        await pool.prepare(worker, RECIPE, Version(1))
                        worker.facts.gpus, worker.facts.stage = (0,), Stage.COMPLETED
        except LooseLeafError:
            pass
        assert len(pool.facts()) <= 3
        assert all(facts.users >= 0 for facts in pool.facts())


async def test_released_holder_is_an_ordinary_worker(parts: Any) -> None:
    pool = parts.pool()
    worker = await holder(pool)
    changes = parts.changes
    pool.release_unsaved(worker.facts.worker_id, OTHER, ["it"])
    pool.release_unsaved(WorkerId("w-unknown"), SESSION, ["it"])
    assert worker.facts.held(time.monotonic()) and parts.changes == changes
    pool.release_unsaved(worker.facts.worker_id, SESSION, ["it"])
    assert parts.changes == changes + 1
    assert await pool.evict(worker.facts.worker_id, WHY)
    assert pool.ended_holders.told(time.monotonic()) == [], "nobody will ask"


async def test_host_that_keeps_no_warm_workers_keeps_holders_for_their_time(parts: Any) -> None:
    pool = parts.pool(keep_s=0)
    worker = await holder(pool)
    await asyncio.sleep(0)
    assert not worker.ending
    assert pool.roster.expired(time.monotonic()) == []
    assert pool.roster.expired(time.monotonic() + 60) == [worker.facts]


async def test_holder_that_crashes_is_told_with_its_cause(parts: Any) -> None:
    pool = parts.pool()
    worker = await holder(pool)
    parts.forker.workers[-1].die(-11)
    await within(asyncio.shield(worker.lost))
    await until(lambda: bool(pool.ended_holders.told(time.monotonic())))
    assert "SIGSEGV" in pool.ended_holders.told(time.monotonic())[0].why
