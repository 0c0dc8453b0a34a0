from __future__ import annotations

import asyncio
from typing import Any

import pytest

from looseleaf.errors import (
    CapacityExceeded,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    Timeout,
    Unavailable,
)
from looseleaf.services.frontend import servicer
from looseleaf.v1 import types_pb2

GPU, CPU = types_pb2.DEVICE_LABEL_GPU, types_pb2.DEVICE_LABEL_CPU
MIB = 1 << 20


async def news_of(call: Any) -> list[str]:
    async with call as stream:
        return [message.WhichOneof("news") async for message in stream]


async def test_record_runs_twice_is_idempotent_and_gap_returns_next(rig: Any) -> None:
    assert await rig.record("a = 1", "b = 2") == 3
    assert await rig.record("a = 1", "b = 2") == 3
    assert await rig.record("d = 4", first=4) == 3
    assert await rig.record("c = 3", "d = 4", first=3) == 5


async def test_only_an_edited_cell_that_parses_and_is_surely_a_gpu_one_is_certain(rig: Any) -> None:
    rig.store.put({"model": 64 * MIB, "x": 0})
    rig.scheduler.may_prepare.set()
    await rig.prepare("model.sum()", 1)
    await rig.prepare("model.sum()", 2, edited=False)
    await rig.prepare("model.sum()", 3, predicted=True)
    await rig.prepare("model.sum(", 4)
    await rig.prepare("%%gpu\nx", 5)
    asked = [(order.certain, order.predicted) for order in rig.scheduler.preparations]
    assert asked == [(True, False), (False, False), (False, True), (False, False), (True, False)]


async def test_derive_with_short_log_is_refused_as_stale(rig: Any) -> None:
    await rig.record("a = 1")
    with pytest.raises(PreconditionFailed, match="SESSION_LOG_STALE") as caught:
        await rig.derive("a", log_length=2)
    assert caught.value.fields["next_sequence"] == 2


async def test_derive_uses_log_and_headers(rig: Any) -> None:
    await rig.record("def f(): return a", "import torch")
    rig.store.put({"f": 0, "a": 0, "torch": 0, "model": 64 * MIB, "other": 0})
    recipe = await rig.derive("model(f())", log_length=2)
    assert (recipe.label, list(recipe.names), recipe.version) == (GPU, ["a", "f", "model"], 1)
    assert (recipe.device_bytes, recipe.live_names) == (64 * MIB, 4)


async def test_derive_names_of_a_commit_under_way_count_while_editing(rig: Any) -> None:
    rig.store.put({"a": 0})
    await rig.record("a = 1", "b = 2")
    assert list((await rig.derive("a + b", log_length=2)).names) == ["a", "b"]


async def test_derive_takes_the_kernels_word_on_what_is_installed_and_what_is_a_file(rig: Any) -> None:
    rig.store.put({"a": 0})
    for environment_id in ("before", "after"):
        recipe = await rig.derive("import helper, json", environment_id=environment_id)
        assert (recipe.environment_id, list(recipe.imports)) == (environment_id, ["helper", "json"])
    recipe = await rig.derive("import helper, json", local_modules={"helper": "helper.py"})
    assert (list(recipe.imports), list(recipe.file_dependencies)) == (["json"], ["helper.py"])


async def test_derive_manifest_bytes_move_once_per_version(rig: Any) -> None:
    rig.store.put({"a": 0})
    for _ in range(3):
        await rig.derive("a")
    rig.store.put({"a": 0, "b": 0})
    assert list((await rig.derive("a + b")).names) == ["a", "b"]
    assert [size > 0 for size in rig.store.sent_bytes] == [True, False, False, True]


async def test_derive_same_version_of_another_epoch_is_read_again(rig: Any) -> None:
    rig.store.put({"a": 0})
    await rig.derive("a + b")
    rig.store.version = 0
    rig.store.put({"a": 0, "b": 0}, epoch=2)
    assert list((await rig.derive("a + b")).names) == ["a", "b"]


async def test_derive_for_unknown_session_is_not_found(rig: Any) -> None:
    with pytest.raises(NotFound, match="SESSION_UNKNOWN"):
        await rig.derive("a", session_id="s-other")


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ({"session_id": "not an id"}, "ID_MALFORMED"),
        ({"device_override": "tpu"}, "DEVICE_UNKNOWN"),
        ({"source": "x" * 5000}, "CELL_TOO_LARGE"),
    ],
)
async def test_derive_malformed_request_is_refused(rig: Any, cell: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        await rig.derive(**{"source": "a", **cell})


async def test_prepare_cpu_cell_skips_the_scheduler(rig: Any) -> None:
    rig.store.put({"a": 0})
    response = await rig.prepare("print(a)", 1)
    assert response.recipe.label == CPU
    assert response.skipped_reason.startswith("A CPU cell")
    assert rig.scheduler.preparations == []
    assert rig.registry.get_sample_value("looseleaf_edit_signal_seconds_count") == 0


async def test_prepare_gpu_cell_asks_the_scheduler(rig: Any) -> None:
    rig.store.put({"m": 64 * MIB}, epoch=3)
    rig.scheduler.may_prepare.set()
    response = await rig.prepare("m(1)", 1, tenant="team")
    assert (response.worker_id, response.prepare_ms, response.skipped_reason) == ("w-1", 12.5, "")
    (order,) = rig.scheduler.preparations
    assert (order.request_id, order.session_id, order.epoch, order.tenant) == ("r-1", "s-1", 3, "team")
    assert order.recipe == response.recipe
    assert rig.registry.get_sample_value("looseleaf_edit_signal_seconds_count") == 1
    assert rig.registry.get_sample_value("looseleaf_frontend_sessions") == 1


async def test_prepare_older_edit_is_dropped(rig: Any) -> None:
    rig.store.put({"m": 64 * MIB})
    rig.scheduler.may_prepare.set()
    await rig.prepare("m(1)", 5)
    response = await rig.prepare("m(0)", 4)
    assert "newer edit" in response.skipped_reason
    assert len(rig.scheduler.preparations) == 1
    assert (await rig.prepare("m(1)", 5)).worker_id == "w-1"


async def test_prepare_waiting_is_ended_by_a_newer_edit(rig: Any) -> None:
    rig.store.put({"m": 64 * MIB, "a": 0})
    first = asyncio.create_task(rig.prepare("m(1)", 1))
    await asyncio.wait_for(rig.scheduler.preparing.wait(), 20)
    second = asyncio.create_task(rig.prepare("m(2)", 2))
    response = await asyncio.wait_for(first, 20)
    assert "newer edit" in response.skipped_reason
    rig.scheduler.may_prepare.set()
    assert (await asyncio.wait_for(second, 20)).worker_id == "w-1"


async def test_prepare_half_typed_text_has_a_partial_recipe(rig: Any) -> None:
    rig.store.put({"m": 64 * MIB})
    rig.scheduler.may_prepare.set()
    response = await rig.prepare("m(", 1)
    assert response.recipe.partial
    assert response.worker_id == "w-1"


async def test_submit_passes_on_which_worker_the_cell_needs_and_for_what(rig: Any) -> None:
    rig.scheduler.may_lease.set()
    async with rig.submit("next(it)", worker_id="w-7", names=("it",), tenant="team") as stream:
        assert [message async for message in stream]
    (run,) = rig.scheduler.runs
    assert (run.needed_worker_id, list(run.needed_names), run.tenant) == ("w-7", ["it"], "team")


async def test_submit_streams_recipe_queue_and_lease(rig: Any) -> None:
    rig.store.put({"m": 64 * MIB})
    rig.scheduler.positions = [2, 1]
    rig.scheduler.may_lease.set()
    async with rig.submit("m(1)", version=1) as stream:
        messages = [message async for message in stream]
    assert [m.WhichOneof("news") for m in messages] == ["recipe", "queue", "queue", "lease"]
    assert list(messages[0].recipe.names) == ["m"]
    assert [m.queue.position for m in messages[1:3]] == [2, 1]
    assert messages[3].lease.lease_id == "l-1"
    (run,) = rig.scheduler.runs
    assert (run.execution_id, run.epoch, run.priority, run.recipe) == ("x-1", 1, "interactive", messages[0].recipe)


async def test_submit_derives_against_the_newest_version(rig: Any) -> None:
    rig.store.put({"m": 64 * MIB})
    await rig.derive("m(n)")
    rig.store.put({"m": 64 * MIB, "n": 0})
    rig.scheduler.may_lease.set()
    async with rig.submit("m(n)", version=2) as stream:
        recipe = (await stream.read()).recipe
    assert (list(recipe.names), recipe.version) == (["m", "n"], 2)


async def test_submit_is_exact_and_leaves_out_names_that_are_not_committed(rig: Any) -> None:
    rig.store.put({"m": 64 * MIB})
    await rig.record("ghost = 1")
    rig.scheduler.may_lease.set()
    async with rig.submit("m(ghost)", log_length=1) as stream:
        assert list((await stream.read()).recipe.names) == ["m"]


async def test_submit_of_a_cell_that_looks_like_cpu_is_for_a_gpu(rig: Any) -> None:
    rig.store.put({"a": 0})
    rig.scheduler.may_lease.set()
    async with rig.submit("helper(a)") as stream:
        assert (await stream.read()).recipe.label == GPU
    assert rig.registry.get_sample_value("looseleaf_recipe_miss_total", {"kind": "device"}) == 1


async def test_submit_with_version_ahead_of_the_store_is_refused(rig: Any) -> None:
    rig.store.put({"m": 0})
    with pytest.raises(PreconditionFailed, match="VERSION_LOST"):
        await news_of(rig.submit("m", version=2))


async def test_submit_with_stale_log_or_epoch_is_refused_before_the_scheduler(rig: Any) -> None:
    rig.store.put({"m": 0}, epoch=4)
    with pytest.raises(PreconditionFailed, match="SESSION_LOG_STALE"):
        await news_of(rig.submit("m", epoch=4, log_length=1))
    with pytest.raises(PreconditionFailed, match="STALE_EPOCH"):
        await news_of(rig.submit("m", epoch=3))
    assert rig.scheduler.runs == []


async def test_submit_cancelled_by_the_client_cancels_the_wait(rig: Any) -> None:
    rig.store.put({"m": 64 * MIB})
    rig.scheduler.positions = [1]
    async with rig.submit("m(1)") as stream:
        assert (await stream.read()).WhichOneof("news") == "recipe"
        assert (await stream.read()).WhichOneof("news") == "queue"
    await asyncio.wait_for(rig.scheduler.cancelled.wait(), 20)


async def test_submit_error_of_the_scheduler_reaches_the_caller(rig: Any) -> None:
    rig.store.put({"m": 64 * MIB})
    rig.scheduler.error = CapacityExceeded("RUN_QUEUE_FULL", "too many", retry_after_s=3.0)
    with pytest.raises(CapacityExceeded, match="RUN_QUEUE_FULL"):
        await news_of(rig.submit("m(1)"))


async def test_submit_that_waits_joins_again_when_the_scheduler_was_restarted(rig: Any) -> None:
    rig.store.put({"m": 64 * MIB})
    rig.scheduler.positions = [1]
    rig.scheduler.breaks = [Unavailable("SCHEDULER_STOPPING"), Unavailable("SCHEDULER_DOWN")]
    rig.scheduler.may_lease.set()
    assert await news_of(rig.submit("m(1)")) == ["recipe", "queue", "queue", "queue", "lease"]
    assert [run.execution_id for run in rig.scheduler.runs] == ["x-1"] * 3


async def test_submit_whose_scheduler_died_before_it_said_a_word_asks_again(rig: Any) -> None:
    rig.store.put({"m": 64 * MIB})
    rig.scheduler.breaks = [Unavailable("SCHEDULER_DOWN"), Unavailable("SCHEDULER_DOWN")]
    rig.scheduler.may_lease.set()
    assert await news_of(rig.submit("m(1)")) == ["recipe", "lease"]
    assert {run.execution_id for run in rig.scheduler.runs} == {"x-1"}


async def test_submit_that_the_scheduler_gave_up_does_not_join_again(rig: Any) -> None:
    rig.store.put({"m": 64 * MIB})
    rig.scheduler.positions = [1]
    rig.scheduler.breaks = [Unavailable("GRANTS_REFUSED")]
    with pytest.raises(Unavailable, match="GRANTS_REFUSED"):
        await news_of(rig.submit("m(1)"))


async def test_store_down_is_unavailable_with_clear_text(rig: Any) -> None:
    await rig.servers["store"].stop(0)
    with pytest.raises((Unavailable, Timeout), match="STORE_") as caught:
        await rig.derive("a")
    assert "Saved state is safe" in caught.value.message


async def test_scheduler_down_is_unavailable_after_the_recipe(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer, "REJOIN_S", 0.0)
    rig.store.put({"m": 64 * MIB})
    await rig.servers["scheduler"].stop(0)
    with pytest.raises(Unavailable, match="SCHEDULER_DOWN"):
        await news_of(rig.submit("m(1)"))
    with pytest.raises(Unavailable, match="SCHEDULER_DOWN"):
        await rig.prepare("m(1)", 1)
