"""What workers find about their imports and their zygote, and what the import cache makes of it."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from daemon_fakes import ScriptedWorker, saved_reply, until, within
from execution_bench import Bench, messages_of
from generations_rig import GenerationsRig

from looseleaf.errors import Timeout
from looseleaf.services.worker_daemon.core.zygote_facts import Verdict
from looseleaf.services.worker_daemon.core.zygote_nodes import TreeKey
from looseleaf.services.worker_daemon.running_cell import SPOILED_NOTE


@pytest.mark.parametrize("spoiled", [True, False])
async def test_cell_that_finds_cuda_spoiled_gives_up_its_zygote_and_its_worker(bench: Bench, spoiled: bool) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await worker.tell("started", request)
        reply = {"status": "error", "ename": "RuntimeError", "evalue": "Cannot re-initialize CUDA in forked subprocess"}
        await worker.tell("ended", request, reply=reply, run_s=0.1, first_touch_s=None, cuda_spoiled=spoiled)
        await until(lambda: any(message.HasField("ended") for message in messages_of(execution)))
        # The next daemon, if this one ends here, is told of the cell's end too.
        assert not any(message.HasField("output") for message in messages_of(execution))
        return saved_reply()

    bench.parts.script.run = run
    execution = bench.start()
    await within(execution.run())
    saved = bench.checked(execution)
    assert saved.version == 2 and not saved.error_reason
    [worker] = bench.parts.forker.workers
    outputs = [msgpack.unpackb(message.output) for message in messages_of(execution) if message.HasField("output")]
    assert [output["text"] for output in outputs] == ([SPOILED_NOTE] if spoiled else [])
    assert bench.parts.forker.spoiled_pids == ([worker.pid] if spoiled else [])
    if spoiled:
        # It takes no other cell.
        await until(lambda: not bench.pool.facts())


async def test_import_times_of_workers_reach_the_rules(bench: Bench) -> None:
    async def prepare(_worker: ScriptedWorker, _request: Any) -> Any:
        return {"imported": [{"name": "seaborn", "seconds": 0.4}]}

    bench.parts.script.prepare = prepare
    await bench.run()
    assert bench.parts.forker.import_seconds == {"seaborn": 0.4}


async def test_import_at_which_a_worker_was_late_is_named_and_kept_out_of_zygotes(bench: Bench, tmp_path: Any) -> None:
    async def prepare(worker: ScriptedWorker, _request: Any) -> Any:
        await worker.link.send_event("importing", {"name": "hangs"})
        worker.die(-11)
        return {}

    bench.parts.script.prepare = prepare
    _execution, saved = await bench.run()
    assert saved.error_reason == "WORKER_LOST"
    assert "it was importing hangs" in saved.error_message
    # It was replaced once, before anything of the cell ran.
    *_, (_pid, error) = bench.parts.forker.failures
    rig = GenerationsRig(tmp_path)
    await rig.generations.start()
    rig.generations.failed(1, error)
    rig.generations.imported({"hangs": 2.0})
    rules = rig.generations.cache.rules
    assert rules.trees[TreeKey(1)].refused == {"hangs": Verdict.HANG} and rules.times.of("hangs") == 2.0
    await rig.generations.stop()


async def test_import_that_ended_well_is_not_named(bench: Bench) -> None:
    async def prepare(worker: ScriptedWorker, _request: Any) -> Any:
        for name in ("slow", ""):
            await worker.link.send_event("importing", {"name": name})
        raise Timeout("STORE_TIMEOUT", "the store is slow")

    bench.parts.script.prepare = prepare
    _execution, saved = await within(bench.run())
    assert "importing" not in saved.error_message

