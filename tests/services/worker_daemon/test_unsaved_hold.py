"""Executions that leave variables which cannot be saved, and such that need them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgpack
import pytest
from daemon_fakes import ScriptedWorker, manifest_of, prepare_well, run_well, saved_reply, until, within
from execution_bench import ONE, Bench, dying, hang, messages_of

from looseleaf.errors import CapacityExceeded, LooseLeafError, Unavailable
from looseleaf.ids import WorkerId
from looseleaf.recipe.gpu_line import KEEP_S_MAX
from looseleaf.services.worker_daemon.core.worker_ends import SPENT
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.save_patience import SavePatience
from looseleaf.services.worker_daemon.unsaved_hold import WISHED
from looseleaf.units import GIB, MIB


def unsaved_after(*rows: dict[str, Any]) -> Any:
    """A cell whose save reports these unsaved variables."""

    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await run_well(worker, request)
        reasons = {"reason": "GENERATOR", "path": "x"}
        return {**saved_reply(), "unsaved": [{**reasons, **row} for row in rows]}

    return run


IT = {"name": "it", "here": True, "alive": True}
CLOSED = {"name": "closed", "here": True, "alive": False}
ELSEWHERE = {"name": "elsewhere", "here": False, "alive": False}


async def test_worker_is_kept_for_variables_that_live_in_it_only(bench: Bench) -> None:
    bench.parts.script.run = unsaved_after(IT, CLOSED, ELSEWHERE)
    _execution, saved = await bench.run()
    assert [(item.name, item.here) for item in saved.unsaved] == [("it", True), ("closed", True), ("elsewhere", False)]
    assert saved.unsaved_kept_s == 60.0
    hold = bench.reports.all[-1].worker.hold
    assert list(hold.names) == ["it"] and 0 < hold.left_s <= 60 and hold.epoch == ONE


@pytest.mark.parametrize(("rows", "keep_s"), [((IT,), 0.0), ((CLOSED, ELSEWHERE), 60.0), ((), 60.0)])
async def test_worker_is_kept_for_nothing_that_nobody_can_use(bench: Bench, rows: Any, keep_s: float) -> None:
    bench.parts.script.run, bench.keep_unsaved_s = unsaved_after(*rows), keep_s
    _execution, saved = await bench.run()
    assert saved.unsaved_kept_s == 0.0 and not bench.reports.all[-1].worker.HasField("hold")


async def test_worker_is_kept_for_as_long_as_the_person_asked(bench: Bench) -> None:
    _execution, saved = await bench.run(context=msgpack.packb({"keep_s": 30.0}))
    hold = bench.reports.all[-1].worker.hold
    assert list(hold.names) == [WISHED] and 0 < hold.left_s <= 30 and saved.unsaved_kept_s == 0.0
    bench.parts.script.run = unsaved_after(IT)
    [facts] = bench.pool.facts()
    _execution, saved = await bench.run(worker_id=facts.worker_id, context=msgpack.packb({"keep_s": 1e9}))
    assert saved.unsaved_kept_s == 60.0 and facts.kept == {"it", WISHED}
    assert facts.held_until_s <= time.monotonic() + KEEP_S_MAX
    # A save without a wish ends it.
    bench.parts.script.run = unsaved_after()
    await bench.run(worker_id=facts.worker_id)
    assert not facts.held(time.monotonic())


async def test_worker_whose_cell_ran_out_of_gpu_memory_ends_unless_a_variable_lives_there_only(bench: Bench) -> None:
    def out_of_memory(*rows: dict[str, Any]) -> Any:
        async def run(worker: ScriptedWorker, request: Any) -> Any:
            reply = {"status": "error", "ename": "OutOfMemoryError"}
            await worker.tell("ended", request, reply=reply, run_s=0.5, first_touch_s=0.1)
            return {**saved_reply(), "unsaved": [{"reason": "GENERATOR", "path": "x", **row} for row in rows]}

        return run

    bench.parts.script.run = out_of_memory(IT)
    await bench.run()
    [facts] = bench.pool.facts()
    [process] = bench.parts.forker.workers
    # An end that was begun would have taken the worker from the next cell.
    assert facts.stage is Stage.COMPLETED and facts.end is None and "shutdown" not in process.asked
    bench.parts.script.run = out_of_memory()
    _execution, saved = await bench.run(worker_id=facts.worker_id)
    assert saved.worker_id == facts.worker_id and bench.parts.forker.workers == [process]
    await until(lambda: not bench.pool.facts())
    assert facts.end == SPENT


async def test_hold_begins_anew_with_each_save_and_ends_when_the_variable_is_gone(bench: Bench) -> None:
    bench.parts.script.run = unsaved_after(IT)
    await bench.run()
    [facts] = bench.pool.facts()
    facts.held_until_s = before_s = time.monotonic()
    await bench.run(worker_id=facts.worker_id)
    assert facts.held_until_s >= before_s + 60
    bench.parts.script.run = unsaved_after()
    await bench.run(worker_id=facts.worker_id)
    assert not facts.held(time.monotonic()) and not facts.unsaved


async def test_required_worker_is_asked_whether_the_variables_live_there(bench: Bench) -> None:
    bench.parts.script.run = unsaved_after(IT)
    await bench.run()
    [facts] = bench.pool.facts()
    asked: list[Any] = []

    async def prepare(worker: ScriptedWorker, request: Any) -> Any:
        asked.append(request["needed"])
        return await prepare_well(worker, request)

    bench.parts.script.prepare = prepare
    _execution, saved = await bench.run(worker_id=facts.worker_id, required=True, needed_names=["it"])
    assert asked == [["it"]] and saved.error_reason == "" and saved.worker_id == facts.worker_id


async def test_required_worker_that_has_another_value_is_not_given_the_cell(bench: Bench) -> None:
    await bench.run()
    [facts] = bench.pool.facts()

    async def prepare(worker: ScriptedWorker, request: Any) -> Any:
        return {**await prepare_well(worker, request), "not_live": ["it"]}

    bench.parts.script.prepare = prepare
    execution, saved = await bench.run(worker_id=facts.worker_id, required=True, needed_names=["it"])
    assert saved.error_reason == "UNSAVED_GONE" and "'it'" in saved.error_message
    assert "nothing was run" in saved.error_message and execution._times.started_s is None


async def test_required_worker_that_is_gone_is_not_replaced(bench: Bench) -> None:
    _execution, saved = await bench.run(worker_id=WorkerId("w-gone"), required=True, needed_names=["it"])
    assert saved.error_reason == "UNSAVED_GONE" and bench.parts.forker.workers == []
    assert "nothing was run" in saved.error_message


async def test_required_worker_that_dies_before_the_cell_is_not_replaced(bench: Bench) -> None:
    bench.parts.script.run = unsaved_after(IT)
    await bench.run()
    [facts] = bench.pool.facts()
    bench.parts.script.prepare = dying()
    _execution, saved = await bench.run(worker_id=facts.worker_id, required=True, needed_names=["it"])
    assert saved.error_reason == "UNSAVED_GONE" and "SIGKILL" in saved.error_message
    assert len(bench.parts.forker.workers) == 1
    await until(lambda: bool(bench.pool.ended_holders.told(time.monotonic())))
    assert "SIGKILL" in bench.pool.ended_holders.told(time.monotonic())[0].why


async def test_killed_holder_is_told_with_its_cause(bench: Bench) -> None:
    bench.parts.script.run = unsaved_after(IT)
    await bench.run()
    [facts] = bench.pool.facts()
    bench.parts.script.run = hang
    execution = bench.start(worker_id=facts.worker_id)
    running = asyncio.create_task(execution.run())
    await until(lambda: facts.stage is Stage.RUNNING)
    execution.interrupt(kill=True)
    await within(running)
    await until(lambda: bool(bench.pool.ended_holders.told(time.monotonic())))
    assert "as the person asked" in bench.pool.ended_holders.told(time.monotonic())[0].why


async def test_person_is_told_of_a_save_that_waits_for_room(bench: Bench) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await run_well(worker, request)
        full = CapacityExceeded(
            "TENANT_FULL", "full", needed_bytes=2 * GIB, available_bytes=MIB, largest_sessions=["s-a"]
        )
        assert execution._worker is not None
        execution._worker.requests._store_full = full
        return saved_reply()

    bench.parts.script.run = run
    execution = bench.start()
    await within(execution.run())
    saved = bench.checked(execution)
    texts = [
        output["text"] for event in messages_of(execution) if event.HasField("output")
        for output in [msgpack.unpackb(event.output)] if output.get("name") == "stderr"
    ]  # fmt: skip
    assert saved.error_reason == "" and len(texts) == 1
    for part in ("are saved", f"version {saved.version}", "TENANT_FULL", "2.0 GiB", "1.0 MiB", "session rm", "s-a"):
        assert part in texts[0]


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (CapacityExceeded("STORE_FULL", "", needed_bytes=GIB, available_bytes=0), ("STORE_FULL", "1.0 GiB", "rm")),
        (Unavailable("STORE_DOWN", ""), ("the store does not take them (STORE_DOWN)",)),
    ],
)
async def test_person_is_told_of_a_save_that_is_held_up(
    bench: Bench, why: LooseLeafError, told: tuple[str, ...]
) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await run_well(worker, request)
        assert execution._worker is not None
        execution._worker.requests.patience.on_held_up(why)
        return saved_reply()

    bench.parts.script.run = run
    execution = bench.start()
    await within(execution.run())
    assert bench.checked(execution).error_reason == ""
    [text] = [
        output["text"] for event in messages_of(execution) if event.HasField("output")
        for output in [msgpack.unpackb(event.output)] if output.get("name") == "stderr"
    ]  # fmt: skip
    for part in ("not saved yet", "GPU is held", *told):
        assert part in text


async def test_cell_stopped_while_the_store_is_away_ends_and_says_that_its_save_is_in_doubt(bench: Bench) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await run_well(worker, request)
        assert execution._worker is not None
        execution._worker.requests.patience = SavePatience(3600.0, last_patience_s=0.02)
        body = {"manifest": manifest_of([], parent=1), "parent": 1, "epoch": 1, "execution_id": "x-1"}
        await worker.link.request("commit", body)

    bench.parts.script.run = run
    bench.parts.store.may_commit.clear()
    execution = bench.start()
    running = asyncio.create_task(execution.run())
    await until(lambda: execution._worker is not None and bool(execution._worker.requests._commits))
    execution.interrupt(kill=True)
    await within(running)
    saved = bench.checked(execution)
    assert saved.error_reason and saved.version == 1
    assert "lost" not in saved.error_message and "the next cell sees them if so" in saved.error_message
