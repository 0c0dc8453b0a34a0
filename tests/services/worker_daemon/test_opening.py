"""Preparations that go on to a device: who has the GPU, and that a Run never waits for them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from functools import partial
from typing import Any

import pytest
from daemon_fakes import SESSION, ScriptedWorker, attach_well, until, within
from execution_bench import ONE, RECIPE, Bench, hang

from looseleaf.errors import CapacityExceeded, LooseLeafError, NotFound, Unavailable
from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId, WorkerId
from looseleaf.services.worker_daemon import gpu_room
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.core.worker_life import Stage, WorkerFacts
from looseleaf.services.worker_daemon.gpu_room import cleared, make_way
from looseleaf.services.worker_daemon.opening import Opening
from looseleaf.services.worker_daemon.preparation import prepare_ahead
from looseleaf.v1 import types_pb2

OTHER = SessionId("s-2")
COLD, PREPARED = types_pb2.START_PATH_COLD, types_pb2.START_PATH_PREPARED


def context(*gpus: int) -> Opening:
    return Opening(Stage.CONTEXT_READY, gpus or (0,), "emulated")


def device(*gpus: int) -> Opening:
    return Opening(Stage.DEVICE_READY, gpus or (0,), "emulated")


def lease_of_another(*gpus: int) -> HeldLease:
    return HeldLease(LeaseId("l-9"), OTHER, Epoch(1), ExecutionId("x-9"), gpus, None, 3, 10.0, 0.0, 1e12)


def watch_attaches(bench: Bench) -> list[tuple[int, list[int], bool]]:
    """Which worker was asked to attach which GPUs, and whether ahead of Run."""
    seen: list[tuple[int, list[int], bool]] = []

    async def attach(worker: ScriptedWorker, request: Any) -> Any:
        seen.append((worker.pid, request["gpus"], request.get("ahead", False)))
        return await attach_well(worker, request)

    bench.parts.script.attach = attach
    return seen


async def test_context_is_opened_and_its_gpu_stays_everybodys(bench: Bench) -> None:
    facts = (await prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, context(1))).worker.facts
    assert (facts.stage, facts.context_gpus, facts.gpus, facts.evictable) == (Stage.CONTEXT_READY, (1,), (), True)
    await make_way(bench.pool, lease_of_another(1), None)
    assert [each.worker_id for each in bench.pool.facts()] == [facts.worker_id]
    again = await prepare_ahead(bench.pool, facts.worker_id, SESSION, ONE, RECIPE, context(1))
    assert again.worker.facts is facts and facts.stage is Stage.CONTEXT_READY
    assert bench.parts.forker.workers[0].asked == ["prepare", "attach", "prepare"]


async def test_data_on_a_device_make_way_for_a_lease(bench: Bench) -> None:
    prepared = await prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, device(1))
    facts = prepared.worker.facts
    assert (facts.stage, facts.gpus, facts.context_gpus) == (Stage.DEVICE_READY, (1,), ())
    assert facts.resident_since_s > 0 and "attach" in prepared.stage_ms
    await make_way(bench.pool, lease_of_another(0), None)
    assert facts.stage is Stage.DEVICE_READY
    await within(make_way(bench.pool, lease_of_another(1), None))
    await until(lambda: not bench.pool.facts())


async def test_lease_ends_the_loading_of_data_at_once_and_they_stay_in_host_memory(bench: Bench) -> None:
    bench.parts.script.attach = hang
    preparing = asyncio.create_task(prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, device(0)))
    await until(lambda: bool(bench.parts.forker.workers) and "attach" in bench.parts.forker.workers[0].asked)
    assert bench.pool.facts()[0].gpus == (), "what a heartbeat tells is free for leases"
    await within(make_way(bench.pool, lease_of_another(0), None))
    facts = (await within(preparing)).worker.facts
    assert (facts.stage, facts.opened_gpus) == (Stage.HOST_READY, ())
    assert [worker.asked for worker in bench.parts.forker.workers] == [["prepare", "attach"], ["prepare"]]


async def test_context_that_is_being_opened_does_not_make_way(bench: Bench) -> None:
    bench.parts.script.attach = hang
    preparing = asyncio.create_task(prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, context(0)))
    await until(lambda: bool(bench.parts.forker.workers) and "attach" in bench.parts.forker.workers[0].asked)
    await within(make_way(bench.pool, lease_of_another(0), None))
    assert not preparing.done() and len(bench.pool.facts()) == 1
    preparing.cancel()
    await asyncio.gather(preparing, return_exceptions=True)


@pytest.mark.parametrize("wish", [context, device])
async def test_gpu_of_a_running_cell_is_not_opened(bench: Bench, wish: Any) -> None:
    asked: list[Collection[int]] = []
    opening = wish(0)
    opening.leased = lambda gpus: asked.append(gpus) or True
    facts = (await prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, opening)).worker.facts
    assert (asked, facts.stage, facts.opened_gpus) == ([(0,)], Stage.HOST_READY, ())


async def test_device_that_does_not_take_the_data_costs_no_preparation(bench: Bench) -> None:
    async def full(_worker: ScriptedWorker, _request: Any) -> Any:
        raise CapacityExceeded("GPU_FULL", "out of memory")

    bench.parts.script.attach = full
    facts = (await prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, device(0))).worker.facts
    assert (facts.stage, facts.opened_gpus, len(bench.parts.forker.workers)) == (Stage.HOST_READY, (), 2)
    assert facts.pid == bench.parts.forker.workers[1].pid


async def test_worker_that_finds_no_device_to_open_stays_host_ready(bench: Bench) -> None:
    async def none_yet(_worker: ScriptedWorker, _request: Any) -> Any:
        return {"opened": False}

    bench.parts.script.attach = none_yet
    facts = (await prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, device(0))).worker.facts
    assert (facts.stage, facts.opened_gpus, facts.loading_gpus) == (Stage.HOST_READY, (), ())


@pytest.mark.parametrize(
    ("before", "wish", "stage"),
    [
        (device(0), Opening(), Stage.HOST_READY), (device(0), context(0), Stage.CONTEXT_READY),
        (device(0), device(1), Stage.DEVICE_READY), (context(0), context(1), Stage.CONTEXT_READY),
    ])
async def test_worker_that_must_leave_its_device_is_replaced(
    bench: Bench, before: Opening, wish: Opening, stage: Stage,
) -> None:
    old = (await prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, before)).worker
    # As the scheduler asks who has no recipe: what it was prepared for counts.
    new = (await prepare_ahead(bench.pool, old.facts.worker_id, SESSION, ONE, None, wish)).worker
    assert new is not old and (new.facts.stage, new.facts.prepared_source_hash) == (stage, RECIPE.source_hash)
    assert new.facts.opened_gpus == (wish.gpus if stage is not Stage.HOST_READY else ())
    await within(old.lost)


async def test_worker_that_must_leave_its_context_is_replaced_and_one_without_stays(bench: Bench) -> None:
    old = (await prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, context(0))).worker
    new = (await prepare_ahead(bench.pool, old.facts.worker_id, SESSION, ONE, None, Opening(leave=True))).worker
    assert new is not old and (new.facts.stage, new.facts.opened_gpus) == (Stage.HOST_READY, ())
    again = (await prepare_ahead(bench.pool, new.facts.worker_id, SESSION, ONE, None, Opening(leave=True))).worker
    assert again is new


@pytest.mark.parametrize("goes", [True, False])
async def test_data_come_to_a_gpu_once_its_last_worker_has_left(
    bench: Bench, goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_room, "CLEARED_WAIT_S", 20.0 if goes else 0.0)
    _execution, saved = await bench.run(gpus=(0,))
    opening = device(0)
    opening.cleared = partial(cleared, bench.pool)
    preparing = asyncio.create_task(prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, opening))
    if goes:
        await until(lambda: len(bench.parts.forker.workers) == 2 and "prepare" in bench.parts.forker.workers[1].asked)
        assert await bench.pool.evict_for_others(WorkerId(saved.worker_id), ONE)
    facts = (await within(preparing)).worker.facts
    assert facts.stage is (Stage.DEVICE_READY if goes else Stage.HOST_READY)


def waits_for_the_gpu(bench: Bench, entered: list[WorkerFacts]) -> Opening:
    """Data for GPU 0, once it is clear; tells which worker has begun to wait for that."""
    opening = device(0)

    async def noted(gpus: Collection[int], facts: WorkerFacts) -> bool:
        entered.append(facts)
        return await cleared(bench.pool, gpus, facts)

    opening.cleared = noted
    return opening


@pytest.mark.parametrize("preparations", [2, 3])
async def test_of_all_that_wait_for_one_gpu_only_one_lays_its_data_there(
    bench: Bench, preparations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_room, "CLEARED_WAIT_S", 1e6)
    _execution, saved = await bench.run(gpus=(0,))
    entered: list[WorkerFacts] = []
    tasks = [
        asyncio.create_task(
            prepare_ahead(bench.pool, None, SessionId(f"s-{number}"), ONE, RECIPE, waits_for_the_gpu(bench, entered)))
        for number in range(10, 10 + preparations)
    ]
    await until(lambda: len(entered) == preparations)
    assert await bench.pool.evict_for_others(WorkerId(saved.worker_id), ONE)
    stages = [prepared.worker.facts.stage for prepared in await within(asyncio.gather(*tasks))]
    assert sorted(stages) == [Stage.HOST_READY] * (preparations - 1) + [Stage.DEVICE_READY]


async def test_run_does_not_wait_for_the_gpu_that_its_workers_preparation_waits_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_room, "CLEARED_WAIT_S", 1e6)
    monkeypatch.setattr(gpu_room, "CLEARED_STEP_S", 0.001)
    holder = (await prepare_ahead(bench.pool, None, OTHER, ONE, RECIPE, device(0))).worker
    entered: list[WorkerFacts] = []
    preparing = asyncio.create_task(
        prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, waits_for_the_gpu(bench, entered)))
    await until(lambda: bool(entered))
    _execution, saved = await bench.run(worker_id=entered[0].worker_id, path=PREPARED, gpus=(1,))
    assert (saved.error_reason, saved.worker_id, entered[0].gpus) == ("", entered[0].worker_id, (1,))
    await within(preparing)
    assert not holder.lost.done()


async def test_context_serves_further_preparations_of_any_stage(bench: Bench) -> None:
    first = (await prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, context(0))).worker
    for wish, stage in ((Opening(), Stage.CONTEXT_READY), (device(0), Stage.DEVICE_READY)):
        again = (await prepare_ahead(bench.pool, first.facts.worker_id, SESSION, ONE, RECIPE, wish)).worker
        assert again is first and again.facts.stage is stage


async def test_worker_that_has_run_is_prepared_where_it_is(bench: Bench) -> None:
    _execution, saved = await bench.run(gpus=(0,))
    for wish in (Opening(), device(0), context(1)):
        again = await prepare_ahead(bench.pool, WorkerId(saved.worker_id), SESSION, ONE, RECIPE, wish)
        assert again.worker.facts.worker_id == saved.worker_id and again.worker.facts.gpus == (0,)
        assert again.worker.facts.prepared_stage is Stage.HOST_READY


async def test_worker_of_which_nobody_knows_the_recipe_is_ended(bench: Bench) -> None:
    with pytest.raises(NotFound, match="WORKER_UNKNOWN"):
        await prepare_ahead(bench.pool, WorkerId("w-gone"), SESSION, ONE, None)
    worker = (await prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, device(0))).worker
    worker.prepared_for = None
    with pytest.raises(NotFound, match="WORKER_UNKNOWN"):
        await prepare_ahead(bench.pool, worker.facts.worker_id, SESSION, ONE, None)
    await within(worker.lost)


@pytest.mark.parametrize("wish", [context(0), device(0)])
async def test_run_takes_over_what_was_opened_for_it(bench: Bench, wish: Opening) -> None:
    attaches = watch_attaches(bench)
    prepared = await prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, wish)
    pid, worker_id = prepared.worker.facts.pid, prepared.worker.facts.worker_id
    _execution, saved = await bench.run(worker_id=worker_id, path=PREPARED, gpus=(0,))
    assert (saved.worker_id, saved.path) == (worker_id, PREPARED)
    assert attaches == [(pid, [0], True), (pid, [0], False)]
    assert (saved.figures.gpu_resident_s > 0) is (wish.stage is Stage.DEVICE_READY)


async def test_run_on_another_gpu_gets_another_worker(bench: Bench) -> None:
    attaches = watch_attaches(bench)
    prepared = await prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, context(1))
    _execution, saved = await bench.run(worker_id=prepared.worker.facts.worker_id, path=PREPARED, gpus=(0,))
    assert saved.worker_id != prepared.worker.facts.worker_id and (saved.error_reason, saved.path) == ("", COLD)
    assert [gpus for _pid, gpus, _ahead in attaches] == [[1], [0]]


async def test_device_opened_under_other_settings_is_left_to_another_worker(bench: Bench) -> None:
    prepared = await prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, context(0))

    async def stale(worker: ScriptedWorker, _request: Any) -> Any:
        if worker.pid == prepared.worker.facts.pid:
            raise Unavailable("DEVICE_NOT_FRESH", "settings have changed")
        return {"stage_ms": {}, "mapped_bytes": 0}

    bench.parts.script.prepare = stale
    again = await prepare_ahead(bench.pool, prepared.worker.facts.worker_id, SESSION, ONE, RECIPE, context(0))
    assert again.worker is not prepared.worker and again.worker.facts.stage is Stage.CONTEXT_READY


@pytest.mark.parametrize("seed", range(25))
async def test_of_a_preparation_a_run_and_an_eviction_the_run_wins(bench: Bench, seed: int) -> None:
    """Research/provisioning.md §5, case 21: whichever comes when, nothing runs in a half-prepared worker."""
    chance = random.Random(seed)
    attaches = watch_attaches(bench)
    worker = (await prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE, Opening())).worker
    worker_id = worker.facts.worker_id

    async def later(work: Any) -> Any:
        for _ in range(chance.randrange(30)):
            await asyncio.sleep(0)
        return await work

    wish = chance.choice([context, device])(chance.randrange(2))
    preparing = asyncio.create_task(later(prepare_ahead(bench.pool, worker_id, SESSION, ONE, RECIPE, wish)))
    evicting = asyncio.create_task(later(bench.pool.evict_for_others(worker_id, ONE)))
    execution = bench.start(worker_id=worker_id, path=PREPARED, gpus=(0,))
    await within(asyncio.gather(later(execution.run()), preparing, evicting, return_exceptions=True))
    saved = bench.checked(execution)
    assert (saved.error_reason, saved.version) == ("", 2)
    ran = [each for each in bench.parts.forker.workers if "run" in each.asked]
    assert len(ran) == 1 and ran[0].asked.index("prepare") < ran[0].asked.index("run")
    # It has opened the lease's GPU and never another.
    assert {tuple(gpus) for pid, gpus, _ahead in attaches if pid == ran[0].pid} == {(0,)}
    for task in (preparing, evicting):
        if (error := task.exception()) is not None:
            assert isinstance(error, LooseLeafError), error
    assert evicting.result() in (True, False)
