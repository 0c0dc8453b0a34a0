"""The scheduler as its clients see it: over gRPC, with daemons that answer, refuse, hang or vanish."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from looseleaf.errors import CapacityExceeded, InvalidArgument, NotFound, PreconditionFailed, Unavailable
from looseleaf.v1 import scheduler_pb2, types_pb2

LIMIT_S = 10.0
COLD, PREPARED, WARM = types_pb2.START_PATH_COLD, types_pb2.START_PATH_PREPARED, types_pb2.START_PATH_WARM


async def finish(client: Any, daemon: Any, lease: Any, worker: str = "") -> None:
    """The cell runs and is saved; `worker` stays warm."""
    await client.report(lease, "STARTED")
    await client.report(lease, "FINISHED")
    warm = None
    if worker:
        warm = scheduler_pb2.WorkerState(
            worker_id=worker, session_id=lease.session_id, stage="WORKER_STAGE_COMPLETED",
            gpu_indices=lease.gpu_indices)
        daemon.workers[worker] = warm
    await client.report(lease, "SAVED", release=True, worker=warm)
    daemon.leases.pop(lease.lease_id)


async def until(client: Any, condition: Any) -> None:
    """Polls the pool until `condition` holds, with a limit."""
    async with asyncio.timeout(LIMIT_S):
        while not condition(await client.pool()):  # noqa: ASYNC110 the condition lies behind an RPC
            await asyncio.sleep(0.01)


async def until_state(client: Any, execution: str, state: str) -> None:
    """Polls one execution, with a limit."""
    async with asyncio.timeout(LIMIT_S):
        while await client.state(execution) != state:  # noqa: ASYNC110 the state lies behind an RPC
            await asyncio.sleep(0.01)


async def test_run_on_a_free_gpu_gets_a_lease_that_its_daemon_knows(client: Any, start_daemon: Any) -> None:
    daemon = await start_daemon()
    await client.beat(daemon)
    lease = await client.lease("x1")
    assert daemon.leases == {lease.lease_id: lease}
    assert (lease.host.host_id, lease.host.address, list(lease.gpu_indices)) == ("h0", daemon.address, [0])
    assert (lease.session_id, lease.epoch, lease.execution_id, lease.path) == ("s1", 1, "x1", COLD)
    assert lease.ttl_ms == 10_000
    assert await client.state("x1") == "DISPATCHED"


async def test_two_sessions_on_one_gpu_take_turns_and_see_why_they_wait(client: Any, start_daemon: Any) -> None:
    daemon = await start_daemon()
    await client.beat(daemon)
    first = await client.lease("x1", "s1")
    async with asyncio.timeout(LIMIT_S), client.run("x2", "s2") as second:
        news = await second.read()
        assert (news.queue.position, news.queue.reason) == (1, "1 GPU busy with another notebook.")
        # Only now: of two that are asked for at once either may come first.
        async with client.run("x3", "s3") as third:
            assert (await third.read()).queue.position == 2
            await finish(client, daemon, first)
            lease = (await second.read()).lease
            assert lease.execution_id == "x2"
            assert await second.read() is None
            assert (await third.read()).queue.position == 1
            await finish(client, daemon, lease)
            assert (await third.read()).lease.execution_id == "x3"
    assert await client.state("x1") == "SAVED"


async def test_run_without_any_host_waits_until_one_comes(client: Any, start_daemon: Any) -> None:
    async with asyncio.timeout(LIMIT_S), client.run("x1") as news:
        assert (await news.read()).queue.reason == "No GPU host is connected."
        await client.beat(await start_daemon())
        assert (await news.read()).lease.execution_id == "x1"


async def test_too_many_gpus_are_refused_with_both_numbers(client: Any, start_daemon: Any) -> None:
    await client.beat(await start_daemon(gpus=2))
    with pytest.raises(CapacityExceeded) as raised:
        await client.lease("x1", gpus=4)
    assert raised.value.reason == "NEVER_FITS"
    assert (raised.value.fields["asked_gpus"], raised.value.fields["largest_host_gpus"]) == (4, 2)


async def test_next_cell_of_the_session_finds_its_worker_warm(client: Any, start_daemon: Any) -> None:
    daemon = await start_daemon()
    await client.beat(daemon)
    await finish(client, daemon, await client.lease("x1"), worker="w1")
    lease = await client.lease("x2")
    assert (lease.worker_id, lease.path) == ("w1", WARM)


async def test_prepared_worker_is_used_and_counted(client: Any, start_daemon: Any) -> None:
    daemon = await start_daemon()
    await client.beat(daemon)
    answer = await client.prepare(source_hash="a", version=3, names=["df"], reason="uses the GPU")
    assert (answer.worker_id, answer.host_id, answer.prepare_ms, answer.skipped_reason) == ("w-s1", "h0", 12.5, "")
    # The daemon gets the whole recipe, not only what placement looks at.
    assert daemon.prepared[0].recipe.reason == "uses the GPU"
    lease = await client.lease("x1", source_hash="a", version=3, names=["df"])
    assert (lease.worker_id, lease.path) == ("w-s1", PREPARED)


@pytest.mark.parametrize(
    ("up_to", "signal", "stage"),
    [
        ("device_ready", {"certain": True}, "DEVICE_READY"), ("context_ready", {"certain": True}, "CONTEXT_READY"),
        ("host_ready", {"certain": True}, "HOST_READY"), ("device_ready", {}, "HOST_READY"),
        ("device_ready", {"certain": True, "predicted": True}, "HOST_READY"),
    ])
async def test_preparation_goes_as_far_as_the_setting_and_the_edits_certainty_allow(
    serve_scheduler: Any, start_daemon: Any, up_to: str, signal: dict[str, bool], stage: str,
) -> None:
    async with serve_scheduler(prepare_up_to=up_to) as client:
        daemon = await start_daemon(gpus=2)
        await client.beat(daemon)
        await client.prepare(source_hash="a", version=3, names=["df"], **signal)
        asked = daemon.prepared[0]
        assert scheduler_pb2.WorkerStage.Name(asked.stage) == f"WORKER_STAGE_{stage}"
        gpus = [1] if stage != "HOST_READY" else []
        assert list(asked.gpu_indices) == gpus
        pool = await client.pool()
        [worker] = pool.hosts[0].workers
        assert scheduler_pb2.WorkerStage.Name(worker.stage) == f"WORKER_STAGE_{stage}"
        assert list(worker.gpu_indices or worker.context_gpu_indices) == gpus
        lease = await client.lease("x1", source_hash="a", version=3, names=["df"])
        assert (lease.worker_id, lease.path, list(lease.gpu_indices)) == ("w-s1", PREPARED, gpus or [0])
        totals = (await client.pool()).speculation
        assert (totals.contexts, totals.contexts_used) == ((1, 1) if stage == "CONTEXT_READY" else (0, 0))
        assert (totals.on_device, totals.on_device_used) == ((1, 1) if stage == "DEVICE_READY" else (0, 0))


async def test_tenant_that_has_no_context_gets_one_of_who_has_all(serve_scheduler: Any, start_daemon: Any) -> None:
    async with serve_scheduler(prepare_up_to="context_ready") as client:
        daemon = await start_daemon()
        await client.beat(daemon)
        for session, tenant in (("s1", "a"), ("s2", "a"), ("s3", "a"), ("s4", "b")):
            await client.prepare(session, source_hash=session, version=3, names=["df"], certain=True, tenant=tenant)
        await daemon.wait(lambda: any(order.leave_device for order in daemon.prepared))
        left = [order for order in daemon.prepared if order.leave_device]
        assert [order.worker_id for order in left] == ["w-s1"] and left[0].recipe.source_hash == "s1"
        pool = await client.pool()
        having = {worker.session_id for worker in pool.hosts[0].workers if worker.context_gpu_indices}
        assert having == {"s2", "s3", "s4"}
        assert (pool.speculation.contexts, pool.speculation.contexts_wasted) == (4, 1)


async def test_data_on_a_gpu_make_way_for_another_sessions_run(serve_scheduler: Any, start_daemon: Any) -> None:
    async with serve_scheduler(prepare_up_to="device_ready") as client:
        daemon = await start_daemon()
        await client.beat(daemon)
        await client.prepare(source_hash="a", version=3, names=["df"], certain=True)
        lease = await client.lease("x2", "s2")
        assert (daemon.evicted, list(lease.gpu_indices), lease.path) == (["w-s1"], [0], COLD)
        assert (await client.pool()).speculation.wasted == 1


async def test_preparation_without_room_says_why(client: Any) -> None:
    answer = await client.prepare()
    assert answer.skipped_reason == "No GPU host is connected."


async def test_warm_worker_of_another_session_is_evicted_before_the_grant(client: Any, start_daemon: Any) -> None:
    daemon = await start_daemon()
    await client.beat(daemon)
    await finish(client, daemon, await client.lease("x1", "s1"), worker="w1")
    lease = await client.lease("x2", "s2")
    assert daemon.evicted == ["w1"]
    assert lease.path == COLD


async def test_refused_grant_goes_to_another_host(client: Any, start_daemon: Any) -> None:
    busy, free = await start_daemon("h0"), await start_daemon("h1")
    busy.refuse_grants = True
    await client.beat(busy, free)
    lease = await client.lease("x1")
    assert lease.host.host_id == "h1"
    assert [len(busy.grants), len(free.grants)] == [1, 1]


async def test_silent_daemon_is_passed_over_and_its_lease_is_never_valid(
    serve_scheduler: Any, start_daemon: Any,
) -> None:
    async with serve_scheduler(grant_timeout_s=1.5) as client:
        silent, free = await start_daemon("h0"), await start_daemon("h1")
        silent.hold_grants = asyncio.Event()
        await client.beat(silent, free)
        lease = await client.lease("x1")
        assert lease.host.host_id == "h1"
        lost = silent.grants[0]
        silent.hold_grants.set()
        silent.leases[lost.lease_id] = lost
        [answer] = await client.beat(silent)
        assert list(answer.unknown_lease_ids) == [lost.lease_id]
        await silent.wait(lambda: not silent.leases)


async def test_daemon_that_is_not_there_is_passed_over(serve_scheduler: Any, start_daemon: Any) -> None:
    async with serve_scheduler(grant_timeout_s=LIMIT_S) as client:
        gone, free = await start_daemon("h0"), await start_daemon("h1")
        await client.beat(gone, free)
        await gone.stop()
        assert (await client.lease("x1")).host.host_id == "h1"


async def test_dead_daemon_ends_its_lease_and_the_next_run_goes_elsewhere(
    serve_scheduler: Any, start_daemon: Any,
) -> None:
    async with serve_scheduler(suspect_after_s=2.0, dead_after_s=3.0, lease_ttl_ms=1_000) as client:
        daemon = await start_daemon("h0")
        await client.beat(daemon)
        lease = await client.lease("x1")
        await client.report(lease, "STARTED")
        await until_state(client, "x1", "INDETERMINATE")
        assert (await client.pool()).hosts[0].liveness == "dead"
        await client.beat(await start_daemon("h1"))
        assert (await client.lease("x2", "s2")).host.host_id == "h1"
        with pytest.raises(PreconditionFailed) as raised:
            await client.lease("x1")
        assert raised.value.reason == "EXECUTION_INDETERMINATE"


async def test_restarted_daemon_loses_its_old_leases_at_once(client: Any, start_daemon: Any) -> None:
    daemon = await start_daemon()
    await client.beat(daemon)
    await client.report(await client.lease("x1"), "STARTED")
    daemon.incarnation = "i2"
    daemon.leases.clear()
    await client.beat(daemon)
    assert await client.state("x1") == "INDETERMINATE"
    assert (await client.lease("x2", "s2")).execution_id == "x2"


async def test_same_execution_asked_twice_gets_one_lease(client: Any, start_daemon: Any) -> None:
    daemon = await start_daemon()
    await client.beat(daemon)
    first, second = await asyncio.gather(client.lease("x1"), client.lease("x1"))
    third = await client.lease("x1")
    assert first == second == third
    assert len(daemon.grants) == 1


async def test_old_epoch_is_refused(client: Any, start_daemon: Any) -> None:
    daemon = await start_daemon()
    await client.beat(daemon)
    await finish(client, daemon, await client.lease("x1", epoch=2))
    with pytest.raises(PreconditionFailed) as raised:
        await client.lease("x2", epoch=1)
    assert raised.value.reason == "STALE_EPOCH"
    with pytest.raises(PreconditionFailed):
        await client.prepare(epoch=1)


async def test_caller_that_leaves_the_queue_makes_room(client: Any, start_daemon: Any) -> None:
    daemon = await start_daemon()
    await client.beat(daemon)
    await client.lease("x0", "s0")
    async with asyncio.timeout(LIMIT_S), client.run("x2", "s2") as stays:
        async with client.run("x1", "s1") as leaves:
            await leaves.read()
            await until(client, lambda pool: pool.queued_runs == 2)
        await until(client, lambda pool: pool.queued_runs == 1)
        assert (await stays.read()).queue.position == 1
    await until_state(client, "x1", "FAILED")


async def test_caller_that_leaves_during_the_grant_gives_the_lease_back(client: Any, start_daemon: Any) -> None:
    daemon = await start_daemon()
    daemon.hold_grants = asyncio.Event()
    await client.beat(daemon)
    async with client.run("x1"):
        await daemon.wait(lambda: len(daemon.grants) == 1)
    await until_state(client, "x1", "FAILED")
    daemon.hold_grants.set()
    daemon.hold_grants = None
    assert (await client.lease("x2", "s2")).execution_id == "x2"
    assert list(daemon.leases) == [daemon.grants[1].lease_id]


async def test_lease_that_nobody_starts_is_taken_back(serve_scheduler: Any, start_daemon: Any) -> None:
    async with serve_scheduler(start_timeout_s=0.1) as client:
        daemon = await start_daemon()
        await client.beat(daemon)
        await client.lease("x1")
        await daemon.wait(lambda: not daemon.leases)
        assert (await client.lease("x2", "s2")).execution_id == "x2"
        assert await client.state("x1") == "FAILED"


async def test_pool_shows_hosts_workers_and_leases(client: Any, start_daemon: Any) -> None:
    daemon = await start_daemon(gpus=2)
    await client.beat(daemon)
    await finish(client, daemon, await client.lease("x1", "s1"), worker="w1")
    lease = await client.lease("x2", "s2")
    pool = await client.pool()
    [host] = pool.hosts
    assert (host.host.host_id, host.gpu_count, host.device_kind, host.liveness) == ("h0", 2, "emulated", "alive")
    assert [worker.worker_id for worker in host.workers] == ["w1"]
    assert list(host.leases) == [lease]
    assert pool.ready
    assert pool.queued_runs == 0
    assert pool.gpu_held_s > 0


async def test_unknown_execution_is_not_found(client: Any) -> None:
    with pytest.raises(NotFound):
        await client.state("x9")


@pytest.mark.parametrize(("execution", "session"), [("", "s1"), ("x1", ""), ("x/1", "s1"), ("x1", "a b")])
async def test_malformed_ids_are_refused(client: Any, execution: str, session: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await client.lease(execution, session)
    assert raised.value.reason == "ID_MALFORMED"


async def test_stop_tells_waiting_callers_to_ask_again(serve_scheduler: Any) -> None:
    async with serve_scheduler() as client:
        stream = client.run("x1")
        await stream.read()
        waiting = asyncio.create_task(stream.read())
        # It must be listening when the stop's answer comes, before the client's channel closes.
        await asyncio.sleep(0)
    with pytest.raises(Unavailable) as raised:
        await waiting
    assert raised.value.reason == "SCHEDULER_STOPPING"


async def test_restart_keeps_the_journal_and_waits_for_the_known_host(
    serve_scheduler: Any, start_daemon: Any,
) -> None:
    daemon = await start_daemon()
    async with serve_scheduler() as client:
        await client.beat(daemon)
        lease = await client.lease("x1", epoch=7)
        await client.report(lease, "STARTED")
    async with serve_scheduler() as client:
        assert not (await client.pool()).ready
        assert await client.state("x1") == "STARTED"
        async with asyncio.timeout(LIMIT_S), client.run("x2", "s2") as news:
            assert "just started" in (await news.read()).queue.reason
            [answer] = await client.beat(daemon)
            assert list(answer.renewed_lease_ids) == [lease.lease_id]
            assert (await news.read()).queue.reason == "1 GPU busy with another notebook."
            await finish(client, daemon, lease)
            assert (await news.read()).lease.execution_id == "x2"
        with pytest.raises(PreconditionFailed):
            await client.lease("x3", "s1", epoch=6)


async def test_restarted_scheduler_prepares_on_a_daemon_that_remembers_the_old_ones_requests(
    serve_scheduler: Any, start_daemon: Any,
) -> None:
    daemon = await start_daemon()
    for session in ("s1", "s2"):
        async with serve_scheduler() as client:
            await client.beat(daemon)
            answer = await client.prepare(session)
            assert (answer.worker_id, answer.skipped_reason) == (f"w-{session}", "")
