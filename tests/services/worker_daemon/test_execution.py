from __future__ import annotations

import asyncio
import signal
from typing import Any

import msgpack
import pytest
from daemon_fakes import (
    SESSION,
    Parts,
    ScriptedWorker,
    attach_well,
    manifest_of,
    prepare_well,
    run_well,
    saved_reply,
    until,
    within,
)
from execution_bench import ONE, RECIPE, Bench, dying, hang, messages_of, reply_of

from looseleaf.errors import Conflict, Corrupt, InvalidArgument, Unavailable
from looseleaf.ids import ExecutionId, Version, WorkerId
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.preparation import prepare_ahead
from looseleaf.v1 import scheduler_pb2, types_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb

STARTED, FINISHED = scheduler_pb2.EXECUTION_STATE_STARTED, scheduler_pb2.EXECUTION_STATE_FINISHED
SAVED, FAILED = scheduler_pb2.EXECUTION_STATE_SAVED, scheduler_pb2.EXECUTION_STATE_FAILED


async def test_cell_runs_is_saved_and_reported(bench: Bench) -> None:
    execution, saved = await bench.run()
    assert (saved.version, saved.error_reason, saved.path, saved.host_id) == (2, "", types_pb2.START_PATH_COLD, "h0")
    assert (saved.figures.dirty_regions, saved.figures.run_s) == (3, 0.5)
    assert 0 <= saved.figures.gpu_pinned_s <= saved.figures.gpu_held_s
    assert [(item.name, item.reason) for item in saved.unsaved] == [("gen", "NOT_SERIALIZABLE")]
    stages = [message.stage.stage for message in messages_of(execution) if message.HasField("stage")]
    assert stages == [1, 3, 5, 6, 7]
    assert [report.state for report in bench.reports.all] == [STARTED, FINISHED, SAVED]
    worker = bench.reports.all[-1].worker
    assert (worker.stage, worker.version, worker.gpu_indices) == (Stage.COMPLETED, 2, [0])
    assert bench.parts.forker.workers[0].asked == ["prepare", "attach", "run"]


async def test_warm_worker_is_used_again_without_a_second_attach(bench: Bench) -> None:
    _execution, first = await bench.run()
    _execution, second = await bench.run(worker_id=WorkerId(first.worker_id), path=2)
    assert second.worker_id == first.worker_id and second.path == types_pb2.START_PATH_WARM
    assert second.figures.gpu_resident_s > 0
    assert bench.parts.forker.workers[0].asked == ["prepare", "attach", "run", "prepare", "run"]


async def test_prepared_worker_counts_its_preparation_not_the_refresh(bench: Bench) -> None:
    prepared = await prepare_ahead(bench.pool, None, SESSION, ONE, RECIPE)
    prepared.worker.facts.prepare_ms = 1234.0
    _execution, saved = await bench.run(worker_id=prepared.worker.facts.worker_id, path=1)
    assert saved.path == types_pb2.START_PATH_PREPARED and saved.figures.prepare_ms == 1234.0


async def test_worker_on_another_gpu_is_not_used(bench: Bench) -> None:
    _execution, first = await bench.run(gpus=(0,))
    _execution, second = await bench.run(worker_id=WorkerId(first.worker_id), path=2, gpus=(1,))
    assert second.worker_id != first.worker_id and second.path == types_pb2.START_PATH_COLD


async def test_worker_from_before_an_install_is_not_used_unless_no_other_will_do(bench: Bench) -> None:
    _execution, first = await bench.run()
    bench.parts.forker.installed = "e-2"
    _execution, second = await bench.run(worker_id=WorkerId(first.worker_id), path=2)
    assert second.worker_id != first.worker_id and second.path == types_pb2.START_PATH_COLD
    assert [facts.worker_id for facts in bench.pool.facts()] == [second.worker_id]
    bench.pool.usable(WorkerId(second.worker_id), SESSION, ONE).facts.hold(["gen"], ["gen"], 0.0)  # type: ignore[union-attr]
    bench.parts.forker.installed = "e-3"
    _execution, third = await bench.run(worker_id=WorkerId(second.worker_id), path=2, required=True)
    assert third.worker_id == second.worker_id and third.path == types_pb2.START_PATH_WARM


async def test_worker_with_modules_of_older_files_is_replaced_before_the_cell_runs(bench: Bench) -> None:
    asked: list[tuple[bool, bool]] = []

    async def older_files(worker: ScriptedWorker, request: Any) -> Any:
        asked.append((request["ahead"], request["keep_modules"]))
        if len(asked) == 2:
            raise Unavailable("OWN_FILES_CHANGED", "the file of helper has changed")
        return await prepare_well(worker, request)

    bench.parts.script.prepare = older_files
    _execution, first = await bench.run()
    _execution, second = await bench.run(worker_id=WorkerId(first.worker_id), path=2)
    assert second.worker_id != first.worker_id and second.error_reason == ""
    assert asked == [(False, False)] * 3
    assert [worker.asked.count("run") for worker in bench.parts.forker.workers] == [1, 1]


async def test_other_workers_on_the_gpu_make_way(bench: Bench) -> None:
    _execution, first = await bench.run()
    _execution, second = await bench.run(worker_id=None)
    assert second.worker_id != first.worker_id
    assert [facts.worker_id for facts in bench.pool.facts()] == [second.worker_id]


@pytest.mark.parametrize("step", ["prepare", "attach"])
async def test_worker_that_dies_before_the_cell_is_replaced_once(bench: Bench, step: str) -> None:
    wells = {"prepare": prepare_well, "attach": attach_well}

    async def die_first(worker: ScriptedWorker, request: Any) -> Any:
        if worker.pid == 1_000_000:
            return await dying()(worker, request)
        return await wells[step](worker, request)

    setattr(bench.parts.script, step, die_first)
    _execution, saved = await bench.run()
    assert (saved.version, saved.error_reason, len(bench.parts.forker.workers)) == (2, "", 2)


async def test_cell_that_a_dead_worker_had_is_never_started_again(bench: Bench) -> None:
    # Its `started` may have been lost with it: a second start could repeat what the first statement did.
    bench.parts.script.run = dying(-9)
    _execution, saved = await bench.run()
    assert saved.error_reason == "WORKER_LOST" and "while the cell ran" in saved.error_message
    assert len(bench.parts.forker.workers) == 1


async def test_workers_that_always_die_before_the_cell_end_it_with_their_cause(bench: Bench) -> None:
    bench.parts.script.prepare = dying(-9)
    execution, saved = await bench.run()
    assert saved.error_reason == "WORKER_LOST" and "nothing was run" in saved.error_message
    assert "SIGKILL" in reply_of(execution)["evalue"] and len(bench.parts.forker.workers) == 2
    assert bench.reports.all[-1].state == FAILED


async def test_zygote_that_dies_during_the_fork_is_tried_again(bench: Bench) -> None:
    bench.parts.forker.errors = [Unavailable("ZYGOTE_FAILED", "it ended")]
    _execution, saved = await bench.run()
    assert saved.error_reason == ""


async def test_worker_that_dies_in_the_cell_is_the_cells_error(bench: Bench) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await worker.tell("started", request)
        return await dying(-11)(worker, request)

    bench.parts.script.run = run
    execution, saved = await bench.run()
    assert (saved.error_reason, saved.version) == ("WORKER_LOST", 1)
    assert "while the cell ran" in saved.error_message and "changes are lost" in saved.error_message
    assert "version 1" in saved.error_message and reply_of(execution)["ename"] == "WORKER_LOST"
    assert [report.state for report in bench.reports.all] == [STARTED, FAILED]
    assert bench.reports.all[-1].worker.stage == Stage.GONE


async def test_worker_that_dies_in_its_save_keeps_the_cells_own_reply(bench: Bench) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await run_well(worker, request)
        return await dying()(worker, request)

    bench.parts.script.run = run
    execution, saved = await bench.run()
    assert reply_of(execution) == {"status": "ok"}
    assert saved.error_reason == "WORKER_LOST" and "being saved" in saved.error_message


async def test_worker_that_dies_after_its_commit_has_saved_the_cell(bench: Bench) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await run_well(worker, request)
        body = {"manifest": manifest_of([], parent=1), "parent": 1, "epoch": 1, "execution_id": request["execution_id"]}
        await worker.link.request("commit", body)
        return await dying()(worker, request)

    bench.parts.script.run = run
    _execution, saved = await bench.run()
    assert saved.version == 2 and "had been saved already (version 2)" in saved.error_message
    assert bench.reports.all[-1].state == SAVED


async def test_commit_of_an_earlier_cell_is_not_taken_for_this_ones(bench: Bench) -> None:
    _execution, first = await bench.run()
    worker = bench.pool.usable(WorkerId(first.worker_id), SESSION, ONE)
    assert worker is not None
    worker.requests.owner.committed = ExecutionId("x-1"), Version(7)

    async def refuse(_worker: ScriptedWorker, _request: Any) -> Any:
        raise Corrupt("UNIT_MISSING", "gone")

    bench.parts.script.prepare = refuse
    _execution, saved = await bench.run(worker_id=WorkerId(first.worker_id), version=8)
    assert (saved.version, saved.error_reason, bench.reports.all[-1].state) == (8, "UNIT_MISSING", FAILED)


async def test_save_that_is_refused_names_the_parent_version(bench: Bench) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await run_well(worker, request)
        raise Corrupt("CHECKSUM_MISMATCH", "bad bytes")

    bench.parts.script.run = run
    _execution, saved = await bench.run()
    assert saved.error_reason == "CHECKSUM_MISMATCH" and "version 1" in saved.error_message
    await until(lambda: not bench.pool.facts())


async def test_save_without_end_is_cut_off(parts: Parts) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await run_well(worker, request)
        await asyncio.Event().wait()

    parts.script.run = run
    bench = Bench(parts, parts.pool(save_s=0.05))
    _execution, saved = await bench.run()
    assert saved.error_reason == "SAVE_TIMEOUT" and "0.05 s" in saved.error_message


@pytest.mark.parametrize(
    ("start", "reason"),
    [({"context": b"\xc1"}, "CONTEXT_MALFORMED"), ({"context": msgpack.packb(3)}, "FIELD_MALFORMED")],
)
async def test_malformed_start_still_ends_the_execution(bench: Bench, start: dict[str, Any], reason: str) -> None:
    _execution, saved = await bench.run(**start)
    assert saved.error_reason == reason and "nothing was run" in saved.error_message


@pytest.mark.parametrize("error", [OSError("too many open files"), ZeroDivisionError("planted")])
async def test_fault_of_ours_still_ends_the_execution_without_its_text(bench: Bench, error: Exception) -> None:
    bench.parts.forker.errors = [error, error]
    _execution, saved = await bench.run()
    assert saved.error_reason == "BUG" and str(error) not in saved.error_message
    assert bench.reports.all[-1].reason == "BUG"


async def test_message_that_makes_no_sense_ends_the_worker_and_the_cell(bench: Bench) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await worker.tell("started", request)
        await worker.tell("output", request, message="no map")
        return saved_reply()

    bench.parts.script.run = run
    _execution, saved = await bench.run()
    assert saved.error_reason in ("WORKER_LOST", "FIELD_MALFORMED")


async def test_reply_that_makes_no_sense_is_an_error_not_a_save(bench: Bench) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await run_well(worker, request)
        return {**saved_reply(), "unsaved": [3]}

    bench.parts.script.run = run
    _execution, saved = await bench.run()
    assert saved.error_reason == "FIELD_MALFORMED"


async def test_cancelled_execution_is_ended_too(bench: Bench) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await worker.tell("started", request)
        await asyncio.Event().wait()

    bench.parts.script.run = run
    execution = bench.start()
    task = asyncio.create_task(execution.run())
    await until(lambda: bool(bench.reports.all))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(task)
    assert bench.checked(execution).error_reason == "HOST_STOPPED"
    assert bench.parts.forker.workers[0].signals == [signal.SIGKILL]


async def test_interrupt_reaches_the_running_cell(bench: Bench) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await worker.tell("started", request)
        await worker.interrupted.wait()
        await worker.tell("ended", request, reply={"status": "error", "ename": "KeyboardInterrupt"}, run_s=0.1)
        return saved_reply()

    bench.parts.script.run = run
    execution = bench.start()
    task = asyncio.create_task(execution.run())
    await until(lambda: bool(bench.reports.all))
    execution.interrupt(kill=False)
    await within(task)
    assert reply_of(execution)["ename"] == "KeyboardInterrupt" and bench.checked(execution).version == 2
    execution.interrupt(kill=False)
    assert bench.parts.forker.workers[0].signals == [signal.SIGINT], "after its end the worker is not interrupted"


async def test_interrupt_before_the_cell_starts_is_remembered(bench: Bench) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await worker.tell("started", request)
        await worker.interrupted.wait()
        await worker.tell("ended", request, reply={"status": "error"}, run_s=0.1)
        return saved_reply()

    bench.parts.script.run = run
    execution = bench.start()
    execution.interrupt(kill=False)
    await within(execution.run())
    assert bench.checked(execution).error_reason == ""


@pytest.mark.parametrize("step", ["prepare", "attach", "run"])
async def test_kill_ends_the_cell_in_every_stage(bench: Bench, step: str) -> None:
    setattr(bench.parts.script, step, hang)
    execution = bench.start()
    task = asyncio.create_task(execution.run())
    await until(lambda: bool(bench.parts.forker.workers) and step in bench.parts.forker.workers[0].asked)
    execution.interrupt(kill=True)
    await within(task)
    saved = bench.checked(execution)
    assert saved.error_reason == "WORKER_LOST" and "as the person asked" in saved.error_message
    assert len(bench.parts.forker.workers) == 1, "what was killed on purpose is not replaced"


async def test_kill_before_there_is_a_worker_ends_the_cell(bench: Bench) -> None:
    execution = bench.start()
    execution.interrupt(kill=True)
    await within(execution.run())
    assert bench.checked(execution).error_reason == "WORKER_LOST"
    assert "run" not in bench.parts.forker.workers[0].asked


async def test_cell_is_ended_for_a_reason_of_the_hosts_but_its_save_is_not(bench: Bench) -> None:
    bench.parts.script.run = hang
    execution = bench.start()
    task = asyncio.create_task(execution.run())
    await until(lambda: bool(bench.parts.forker.workers) and "run" in bench.parts.forker.workers[0].asked)
    execution.end(Conflict("CALLER_GONE", "the notebook is gone"))
    await within(task)
    assert bench.checked(execution).error_reason == "CALLER_GONE"

    may_save = asyncio.Event()

    async def run(worker: ScriptedWorker, request: Any) -> Any:
        reply = await run_well(worker, request)
        await may_save.wait()
        return reply

    bench.parts.script.run = run
    saving = bench.start()
    task = asyncio.create_task(saving.run())
    await until(lambda: any(report.state == FINISHED for report in bench.reports.all))
    saving.end(Conflict("CALLER_GONE", "the notebook is gone"))
    may_save.set()
    await within(task)
    assert bench.checked(saving).version == 2


async def test_input_reply_reaches_the_worker(bench: Bench) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await worker.tell("started", request)
        await worker.tell("input_request", request, prompt="name? ", password=False)
        await until(lambda: bool(worker.told))
        await worker.tell("ended", request, reply={"status": "ok"}, run_s=0.1)
        return saved_reply()

    bench.parts.script.run = run
    execution = bench.start()
    task = asyncio.create_task(execution.run())
    await until(lambda: any(message.HasField("input_request") for message in messages_of(execution)))
    await execution.input_reply(pb.InputReply(value="Ada", question=7))
    await within(task)
    told = {"t": "input_reply", "value": "Ada", "refused": False, "question": 7}
    assert bench.parts.forker.workers[0].told == [told]


LEFT = [{"kind": "thread", "name": "T"}]


def leaving(later: asyncio.Event | None = None) -> Any:
    """A cell that leaves a thread, which ends once `later` is set."""

    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await worker.tell("started", request)
        await worker.tell("ended", request, reply={"status": "ok"}, run_s=0.1, left=LEFT)

        async def end() -> None:
            if later is not None:
                await later.wait()
                await worker.tell("output", request, message={"type": "stream", "name": "stdout", "text": "late"})
                await worker.tell("left", request, items=[])

        worker.background = asyncio.create_task(end())
        return saved_reply()

    return run


async def test_what_a_cell_left_running_keeps_the_lease_until_it_ends(bench: Bench) -> None:
    may_end = asyncio.Event()
    bench.parts.script.run = leaving(may_end)
    execution = bench.start()
    task = asyncio.create_task(execution.run())
    await until(lambda: any(message.HasField("saved") for message in messages_of(execution)))
    # The cell's outcome is told, its GPU is held, its worker cannot be evicted.
    assert bench.finished == 0 and not bench.reports.all[-1].release and not execution.record.done
    assert not any(facts.evictable for facts in bench.pool.facts())
    may_end.set()
    await within(task)
    kinds = [message.WhichOneof("message") for message in messages_of(execution)]
    assert kinds[-3:] == ["saved", "output", "left"] and execution.record.done
    assert messages_of(execution)[-1].left.state == pb.LEFT_STATE_ENDED
    assert bench.finished == 1 and bench.reports.all[-1].release
    assert [facts.evictable for facts in bench.pool.facts()] == [True]


async def test_what_is_left_too_long_is_ended_with_its_worker(bench: Bench) -> None:
    bench.parts.script.run = leaving()
    bench.keep_leftovers_s = 0.05
    execution = bench.start()
    await within(execution.run())
    news = messages_of(execution)[-1].left
    assert (news.state, [item.name for item in news.items]) == (pb.LEFT_STATE_LIMIT, ["T"])
    assert bench.finished == 1 and bench.pool.facts() == []


async def test_next_cell_of_the_session_does_not_wait_for_what_is_left(bench: Bench) -> None:
    bench.parts.script.run = leaving()
    execution = bench.start()
    task = asyncio.create_task(execution.run())
    await until(lambda: any(message.HasField("saved") for message in messages_of(execution)))
    execution.release_left()
    await within(task)
    assert messages_of(execution)[-1].left.state == pb.LEFT_STATE_RELEASED
    # The worker stays: the thread goes on beside the next cell.
    assert [facts.evictable for facts in bench.pool.facts()] == [True]


async def test_worker_that_is_lost_ends_the_hold(bench: Bench) -> None:
    bench.parts.script.run = leaving()
    execution = bench.start()
    task = asyncio.create_task(execution.run())
    await until(lambda: any(message.HasField("saved") for message in messages_of(execution)))
    bench.parts.forker.workers[0].die(-9)
    await within(task)
    assert messages_of(execution)[-1].left.state == pb.LEFT_STATE_LOST and bench.finished == 1


async def test_preparation_refused_by_the_worker_is_not_run(bench: Bench) -> None:
    async def refuse(_worker: ScriptedWorker, _request: Any) -> Any:
        raise InvalidArgument("CWD_UNUSABLE", "no such folder")

    bench.parts.script.prepare = refuse
    _execution, saved = await bench.run()
    assert saved.error_reason == "CWD_UNUSABLE" and "run" not in bench.parts.forker.workers[0].asked
