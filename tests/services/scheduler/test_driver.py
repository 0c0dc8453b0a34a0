"""The loop around the policy: records before orders, and what happens when they cannot be written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from looseleaf.clock import ManualClock
from looseleaf.errors import CapacityExceeded, Unavailable
from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, Version, WorkerId
from looseleaf.kv.memory import MemoryKv
from looseleaf.services.scheduler import driver as driver_module
from looseleaf.services.scheduler.core.actions import (
    Action,
    AnswerHeartbeat,
    AnswerPreparation,
    GrantLease,
    NotifyLease,
    NotifyQueue,
    PrepareWorker,
)
from looseleaf.services.scheduler.core.events import (
    Event,
    HeartbeatReceived,
    JournalRestored,
    LeaseGranted,
    PreparationRequested,
    RunRequested,
    Tick,
    WorkerPrepared,
)
from looseleaf.services.scheduler.core.facts import ExecutionState, HostReport, RecipeFacts, WorkerReport, WorkerStage
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.policy import Scheduler
from looseleaf.services.scheduler.driver import Driver
from looseleaf.services.scheduler.journal_store import JournalStore
from looseleaf.services.scheduler.metrics import SchedulerMetrics
from looseleaf.v1.recipe_pb2 import ExecutionRecipe

LIMIT_S = 10.0


class Orders:
    """Daemons that grant at once; `seen` is the journal at the time of each grant."""

    def __init__(self, store: JournalStore) -> None:
        self._store = store
        self.seen: list[list[ExecutionState]] = []
        self.prepared: list[tuple[str, ExecutionRecipe]] = []
        self.broken = False

    async def grant(self, action: GrantLease) -> Event:
        if self.broken:
            raise RuntimeError("a fault of ours")
        self.seen.append([record.state for record in self._store.load().executions])
        return LeaseGranted(action.lease.lease_id)

    async def prepare(self, action: PrepareWorker, recipe: ExecutionRecipe) -> Event:
        self.prepared.append((action.request_id, recipe))
        return WorkerPrepared(action.request_id, WorkerId("w1"), 1.0)

    def drop(self, address: str) -> None:
        """Nothing to close."""


class Rig:
    def __init__(self) -> None:
        self.store: Any = JournalStore(MemoryKv())
        self.registry = CollectorRegistry()
        self.orders = Orders(self.store)
        self.failures: list[Exception] = []
        self.clock = ManualClock()
        self.disk_works = asyncio.Event()
        self.disk_works.set()
        self.tasks: list[asyncio.Task[None]] = []

        async def run_blocking(function: Any, *args: Any) -> Any:
            await self.disk_works.wait()
            if self.failures and function == self.store.write:
                raise self.failures.pop()
            return function(*args)

        self.driver = Driver(
            Scheduler(Limits(), lambda: LeaseId("l1")), self.store, self.orders,  # type: ignore[arg-type]
            self.clock, run_blocking, self.start_task, SchedulerMetrics(self.registry))

    def start_task(self, coroutine: Any, name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine, name=name))

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def heartbeat(self, host: str = "h0") -> Any:
        report = HostReport(HostId(host), f"unix:/{host}", "i1", 1, "emulated")
        return self.driver.ask(HeartbeatReceived(self.driver.new_request_id(), report))

    def liveness(self) -> dict[str, str]:
        return {host.host_id: host.liveness for host in self.driver.scheduler.pool(self.clock.now_s).hosts}

    def run(self) -> RunRequested:
        return RunRequested(
            self.driver.new_request_id(), ExecutionId("x1"), SessionId("s1"), Epoch(1), RecipeFacts("a", Version(1)))


@pytest.fixture
async def rig() -> Any:
    made = Rig()
    made.start_task(made.driver.run(JournalRestored()), "events")
    yield made
    await made.stop()


async def test_record_is_written_before_the_order_goes_out(rig: Any) -> None:
    assert isinstance(await rig.heartbeat(), AnswerHeartbeat)
    news = [item async for item in rig.driver.run_news(rig.run())]
    assert [type(item) for item in news] == [NotifyLease]
    assert rig.orders.seen == [[ExecutionState.DISPATCHED]]
    assert rig.registry.get_sample_value("looseleaf_scheduler_leases_handed_out_total", {"path": "COLD"}) == 1
    assert rig.registry.get_sample_value("looseleaf_scheduler_leases") == 1
    assert rig.registry.get_sample_value("looseleaf_prepare_seconds_count", {"stage": "queue"}) == 1
    assert rig.registry.get_sample_value("looseleaf_scheduler_gpus") == 1
    leased = "looseleaf_gpu_leased_seconds_total"
    assert rig.registry.get_sample_value(leased) == 0
    rig.clock.advance(7.0)
    await rig.heartbeat()
    assert rig.registry.get_sample_value(leased) == 7.0


async def test_disk_that_comes_back_only_delays(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "JOURNAL_RETRY_S", 0.0)
    rig.failures = [CapacityExceeded("DISK_FULL")] * 2
    assert isinstance(await asyncio.wait_for(rig.heartbeat(), LIMIT_S), AnswerHeartbeat)
    assert [host.host_id for host in rig.store.load().hosts] == ["h0"]


async def test_disk_that_stays_broken_ends_the_loop_and_no_order_goes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "JOURNAL_RETRY_S", 0.0)
    rig = Rig()
    loop_task = asyncio.get_running_loop().create_task(rig.driver.run(JournalRestored()))
    await rig.heartbeat()
    rig.failures = [CapacityExceeded("DISK_FULL")] * 100
    news = rig.driver.run_news(rig.run())
    waiting = asyncio.get_running_loop().create_task(anext(news))
    with pytest.raises(CapacityExceeded):
        await asyncio.wait_for(loop_task, LIMIT_S)
    rig.driver.stop_callers()
    with pytest.raises(Unavailable) as raised:
        await waiting
    assert raised.value.reason == "SCHEDULER_STOPPING"
    assert rig.orders.seen == []
    with pytest.raises(Unavailable):
        await rig.heartbeat()


async def test_only_the_newest_place_in_the_queue_is_told() -> None:
    news = driver_module.RunNews()
    told: list[Action] = [NotifyQueue("q", 3, "a"), NotifyQueue("q", 2, "a"), NotifyQueue("q", 1, "b")]
    for item in told:
        news.put(item)  # type: ignore[arg-type]
    assert await news.next() == told[-1]


async def test_flood_of_events_is_turned_away(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "EVENTS_MAX", 0)
    with pytest.raises(CapacityExceeded) as raised:
        await rig.heartbeat()
    assert raised.value.reason == "SCHEDULER_BUSY"


async def test_order_that_fails_by_a_fault_of_ours_fails_its_task(rig: Any) -> None:
    await rig.heartbeat()
    rig.orders.broken = True
    waiting = asyncio.get_running_loop().create_task(anext(rig.driver.run_news(rig.run())))
    async with asyncio.timeout(LIMIT_S):
        while len(rig.tasks) < 2:  # noqa: ASYNC110 the task appears when the event is handled
            await asyncio.sleep(0)
        with pytest.raises(RuntimeError):
            await rig.tasks[1]
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_preparation_that_nobody_asked_for_goes_to_its_worker_without_a_recipe(rig: Any) -> None:
    parked = WorkerReport(WorkerId("w1"), SessionId("s1"), WorkerStage.DEVICE_READY, Version(1), "a", (0,))
    report = HostReport(HostId("h0"), "unix:/h0", "i1", 1, "emulated", (parked,))
    await rig.driver.ask(HeartbeatReceived("q0", report))
    state = rig.driver.scheduler.state
    worker = state.hosts.worker(HostId("h0"), WorkerId("w1"))
    rig.clock.advance(state.limits.speculative_expiry_s)
    # Some time later the policy wants the data off the GPU: a PrepareWorker of its own.
    await rig.driver.ask(HeartbeatReceived("q1", report))
    rig.driver._put(Tick())
    async with asyncio.timeout(LIMIT_S):
        await rig.heartbeat("h1")
        assert rig.registry.get_sample_value("looseleaf_scheduler_preparations_total") == 1
        while worker.preparing:
            await rig.heartbeat("h1")
    [(request_id, recipe)] = rig.orders.prepared
    assert (request_id.startswith("demote-"), recipe) == (True, None)
    assert len(state.preparations) == 0


async def test_events_that_waited_for_the_disk_count_from_their_arrival(rig: Any) -> None:
    rig.disk_works.clear()
    answers = [asyncio.ensure_future(rig.heartbeat(host)) for host in ("h0", "h1")]
    for _ in range(3):
        await asyncio.sleep(0)
    rig.clock.advance(5.0)
    rig.disk_works.set()
    await asyncio.wait_for(asyncio.gather(*answers), LIMIT_S)
    assert rig.liveness() == {"h0": "suspect", "h1": "suspect"}


async def test_process_that_stood_still_holds_the_silence_against_nobody(
    rig: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticked, handle = asyncio.Event(), rig.driver.scheduler.handle

    def watched(event: Event, now_s: float) -> list[Action]:
        if isinstance(event, Tick) and event.overslept_s:
            ticked.set()
        return handle(event, now_s)  # type: ignore[no-any-return]

    monkeypatch.setattr(rig.driver.scheduler, "handle", watched)
    await rig.heartbeat()
    rig.start_task(rig.driver.tick_forever(0.001), "ticks")
    await asyncio.sleep(0)
    rig.clock.advance(30.0)
    await asyncio.wait_for(ticked.wait(), LIMIT_S)
    assert rig.liveness() == {"h0": "alive"}


async def test_preparation_that_nobody_asked_for_goes_out_with_the_sessions_last_recipe(rig: Any) -> None:
    await rig.heartbeat()
    facts, whole = RecipeFacts("a", Version(1)), ExecutionRecipe(source_hash="a", version=1, names=["x"])
    asked = PreparationRequested(rig.driver.new_request_id(), SessionId("s1"), Epoch(1), facts)
    assert isinstance(await rig.driver.ask(asked, whole), AnswerPreparation)
    order = PrepareWorker(
        "again-1", HostId("h0"), "unix:/h0", SessionId("s1"), Epoch(1), RecipeFacts("a", Version(1), exact=False),
        WorkerId(""))
    rig.driver._carry_out(order)
    rig.driver._carry_out(replace(order, request_id="again-2", recipe=RecipeFacts("b", Version(1))))
    for _ in range(3):
        await asyncio.sleep(0)
    assert rig.orders.prepared == [(asked.request_id, whole), ("again-1", whole)]
