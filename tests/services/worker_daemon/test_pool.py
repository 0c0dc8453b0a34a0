from __future__ import annotations

import asyncio
import random
import signal
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_fakes import SESSION, Script, ScriptedWorker, parts_of_a_daemon, prepare_well, until, within
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.errors import (
    CapacityExceeded,
    Conflict,
    InvalidArgument,
    LooseLeafError,
    PreconditionFailed,
    Unavailable,
)
from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId, Version, WorkerId
from looseleaf.services.worker_daemon import worker_process
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.core.worker_ends import EARLIER_OWNER, INSTALLED_SINCE, MADE_WAY, WorkerEnd
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.pool import WorkerPool
from looseleaf.services.worker_daemon.worker_process import WorkerProcess
from looseleaf.v1 import recipe_pb2

ONE = Epoch(1)
OTHER = SessionId("s-2")
WHY = WorkerEnd("asked", "was tested")
RECIPE = recipe_pb2.ExecutionRecipe(version=1, names=["x"], imports=["json"], source_hash="h")


def lease_of(session: SessionId, epoch: int = 1) -> HeldLease:
    """Of GPU 0."""
    return HeldLease(LeaseId("l-1"), session, Epoch(epoch), ExecutionId("x-1"), (0,), None, 3, 10.0, 0.0, 1e12)


async def hang(_worker: ScriptedWorker, _request: Any) -> Any:
    await asyncio.Event().wait()


async def refuse(_worker: ScriptedWorker, _request: Any) -> Any:
    raise InvalidArgument("NO_GOOD", "refused")


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


async def test_reserved_waits_for_the_preparation_under_way(parts: Any) -> None:
    pool = parts.pool()
    done, order = asyncio.Event(), []

    async def prepare(worker: ScriptedWorker, request: Any) -> Any:
        await done.wait()
        order.append("prepared")
        return await prepare_well(worker, request)

    parts.script.prepare = prepare
    preparing = asyncio.create_task(pool.prepare_ahead(None, SESSION, ONE, RECIPE))
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


async def test_prepare_ahead_leaves_an_idle_host_ready_worker(parts: Any) -> None:
    pool = parts.pool()
    prepared = await pool.prepare_ahead(None, SESSION, ONE, RECIPE)
    facts = prepared.worker.facts
    assert (facts.stage, facts.version, facts.prepared_source_hash) == (Stage.HOST_READY, 1, "h")
    assert facts.evictable and prepared.mapped_bytes == 7 and set(prepared.stage_ms) == {
        "import", "restore", "total", "fork",
    }  # fmt: skip


async def test_prepare_ahead_that_fails_leaves_no_worker(parts: Any) -> None:
    pool = parts.pool()
    parts.script.prepare = refuse
    with pytest.raises(InvalidArgument, match="NO_GOOD"):
        await pool.prepare_ahead(None, SESSION, ONE, RECIPE)
    await until(lambda: not pool.facts())


async def test_prepare_ahead_on_a_worker_in_use_is_refused(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, SESSION, ONE) as worker:
        with pytest.raises(Conflict, match="WORKER_BUSY"):
            await pool.prepare_ahead(worker.facts.worker_id, SESSION, ONE, RECIPE)


async def test_prepare_ahead_in_an_old_epoch_is_refused(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, SESSION, Epoch(3)) as worker:
        pass
    with pytest.raises(PreconditionFailed, match="STALE_EPOCH"):
        await pool.prepare_ahead(worker.facts.worker_id, SESSION, Epoch(2), RECIPE)


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


async def test_worker_from_before_an_install_gets_no_cell_and_ends(parts: Any) -> None:
    pool = parts.pool()
    old = (await pool.prepare_ahead(None, SESSION, ONE, RECIPE)).worker
    parts.forker.installed = "e-2"
    new = (await pool.prepare_ahead(old.facts.worker_id, SESSION, ONE, RECIPE)).worker
    assert new is not old and new.facts.environment_id == "e-2"
    assert await within(old.lost) == "exited with code 0" and old.facts.end == INSTALLED_SINCE


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


async def test_worker_prepared_before_an_install_in_the_kernel_is_not_used_after_it(parts: Any) -> None:
    # Their folders may be others than this host's: only the kernel's word tells.
    pool = parts.pool()
    before, after = (recipe_pb2.ExecutionRecipe(version=1, environment_id=text) for text in ("k-1", "k-2"))
    old = (await pool.prepare_ahead(None, SESSION, ONE, before)).worker
    assert (await pool.prepare_ahead(old.facts.worker_id, SESSION, ONE, before)).worker is old
    assert pool.usable(old.facts.worker_id, SESSION, ONE, kernel_environment_id="k-2", even_outdated=True) is old
    assert (await pool.prepare_ahead(old.facts.worker_id, SESSION, ONE, after)).worker is not old


async def test_worker_with_modules_of_older_files_is_replaced(parts: Any) -> None:
    asked: list[bool] = []

    async def older_files(_worker: ScriptedWorker, request: Any) -> Any:
        asked.append(request["ahead"])
        if len(asked) == 1:
            raise Unavailable("OWN_FILES_CHANGED", "the file of helper has changed")
        return await prepare_well(_worker, request)

    parts.script.prepare = older_files
    pool = parts.pool()
    prepared = await within(pool.prepare_ahead(None, SESSION, ONE, RECIPE))
    assert asked == [True, True] and len(parts.forker.workers) == 2
    assert prepared.worker.facts.pid == parts.forker.workers[1].pid


async def test_make_way_waits_for_a_worker_that_is_ending(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, SESSION, ONE) as worker:
        worker.facts.gpus = (0,)
    evicting = asyncio.create_task(pool.evict(worker.facts.worker_id, WHY))
    await asyncio.sleep(0)
    await within(pool.make_way(lease_of(OTHER), but=None))
    assert worker.lost.done() and await evicting


async def test_make_way_ends_a_preparation_on_the_gpu_but_no_cell(parts: Any) -> None:
    pool = parts.pool()
    async with pool.reserved(None, OTHER, ONE) as worker:
        worker.facts.gpus, worker.facts.stage = (0,), Stage.COMPLETED
    parts.script.prepare = hang
    preparing = asyncio.create_task(pool.prepare_ahead(worker.facts.worker_id, OTHER, ONE, RECIPE))
    await until(lambda: worker.facts.users == 1)
    await within(pool.make_way(lease_of(OTHER), but=None))
    with pytest.raises(Unavailable, match="WORKER_LOST"):
        await within(preparing)
    async with pool.reserved(None, OTHER, ONE) as running:
        running.facts.gpus, running.facts.stage = (0,), Stage.RUNNING
        with pytest.raises(Unavailable, match="GPU_OCCUPIED"):
            await pool.make_way(lease_of(OTHER), but=None)
        await pool.make_way(lease_of(OTHER), but=running)


async def test_full_host_ends_a_completed_worker_before_a_prepared_one(parts: Any) -> None:
    pool = parts.pool(workers_max=2)
    prepared = (await pool.prepare_ahead(None, SESSION, ONE, RECIPE)).worker
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
    pool._limits = replace(pool._limits, confiner=confiner)
    parts.forker.again = True
    with pytest.raises(CapacityExceeded, match="NO_GROUP"):
        async with pool.reserved(None, SESSION, ONE):
            pass
    assert len(tries) == 1 and parts.forker.workers == []


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
                    await pool.prepare_ahead(known, session, ONE, RECIPE)
                case 1 if known is not None:
                    await pool.evict(known, WHY)
                case 2:
                    await pool.make_way(lease_of(OTHER), but=None)
                case _:
                    async with pool.reserved(known, session, ONE) as worker:
                        await pool.prepare(worker, RECIPE, Version(1))
                        worker.facts.gpus, worker.facts.stage = (0,), Stage.COMPLETED
        except LooseLeafError:
            pass
        assert len(pool.facts()) <= 3
        assert all(facts.users >= 0 for facts in pool.facts())


async def holder(pool: WorkerPool, left_s: float = 60.0) -> WorkerProcess:
    """A worker of SESSION on GPU 0 whose cell left the variable `it`."""
    async with pool.reserved(None, SESSION, ONE) as worker:
        worker.facts.gpus, worker.facts.stage = (0,), Stage.COMPLETED
        worker.facts.hold({"it"}, {"it"}, time.monotonic() + left_s)
    return worker


async def test_holder_makes_way_for_nobody_before_its_time_and_then_for_anybody(parts: Any) -> None:
    pool = parts.pool(workers_max=1)
    worker = await holder(pool)
    assert not await pool.evict(worker.facts.worker_id, WHY)
    with pytest.raises(Unavailable, match="GPU_OCCUPIED"):
        await pool.make_way(lease_of(OTHER), but=None)
    with pytest.raises(CapacityExceeded, match="WORKERS_FULL"):
        async with pool.reserved(None, OTHER, ONE):
            pass
    worker.facts.hold({"it"}, {"it"}, time.monotonic())
    await within(pool.make_way(lease_of(OTHER), but=None))
    assert worker.lost.done()
    [ended] = pool.ended_holders(time.monotonic())
    assert (ended.worker_id, ended.why) == (worker.facts.worker_id, MADE_WAY.sentence)
    assert pool.ended_holders(time.monotonic() + 601) == []


async def test_holder_of_an_earlier_epoch_makes_way_for_its_sessions_new_owner(parts: Any) -> None:
    pool = parts.pool()
    worker = await holder(pool)
    await within(pool.make_way(lease_of(SESSION, epoch=2), but=None))
    assert worker.lost.done() and pool.ended_holders(time.monotonic())[0].why == EARLIER_OWNER.sentence


async def test_holder_of_an_earlier_epoch_makes_way_for_others_that_know_of_the_newer_one(parts: Any) -> None:
    pool = parts.pool()
    worker = await holder(pool)
    assert not await pool.evict_for_others(worker.facts.worker_id, ONE)
    assert await within(pool.evict_for_others(worker.facts.worker_id, Epoch(2)))
    assert pool.ended_holders(time.monotonic())[0].why == EARLIER_OWNER.sentence


async def test_holder_that_is_prepared_for_its_session_makes_way_for_nobody_before_its_time(parts: Any) -> None:
    pool = parts.pool()
    worker = await holder(pool)
    async with pool.reserved(worker.facts.worker_id, SESSION, ONE):
        with pytest.raises(Unavailable, match="GPU_OCCUPIED"):
            await pool.make_way(lease_of(OTHER), but=None)
        assert not worker.lost.done()
        worker.facts.hold({"it"}, {"it"}, time.monotonic())
        await within(pool.make_way(lease_of(OTHER), but=None))
    await until(lambda: bool(pool.ended_holders(time.monotonic())))
    assert pool.ended_holders(time.monotonic())[0].why == MADE_WAY.sentence


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
    assert pool.ended_holders(time.monotonic()) == [], "nobody will ask"


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
    await until(lambda: bool(pool.ended_holders(time.monotonic())))
    assert "SIGSEGV" in pool.ended_holders(time.monotonic())[0].why


@pytest.mark.parametrize(("step", "survives"), [(refuse, True), (hang, False)])
async def test_failed_preparation_costs_no_variable_that_lives_in_the_worker_only(
    parts: Any, step: Any, survives: bool
) -> None:
    pool = parts.pool()
    worker = await holder(pool)
    parts.script.prepare = step
    object.__setattr__(worker.limits, "prepare_s", 0.05)
    with pytest.raises(LooseLeafError):
        await within(pool.prepare_ahead(worker.facts.worker_id, SESSION, ONE, RECIPE))
    if survives:
        parts.script.prepare = prepare_well
        async with pool.reserved(worker.facts.worker_id, SESSION, ONE) as again:
            assert again is worker and again.facts.held(time.monotonic())
    else:
        await within(asyncio.shield(worker.lost))
