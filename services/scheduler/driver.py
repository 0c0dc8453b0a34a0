"""Runs the policy in the event loop: events in, actions carried out, records durable first.

One task handles events in batches, each at the time at which it arrived. The records of a whole batch are written in
one go; then its other actions follow in order. Orders to daemons are tasks of their own whose answers come back as
events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from looseleaf.clock import Clock
from looseleaf.errors import ERRORS_BY_CODE, CapacityExceeded, Internal, LooseLeafError, Unavailable
from looseleaf.logs import get_logger
from looseleaf.services.scheduler.core.actions import (
    JOURNAL_ACTIONS,
    Action,
    AnswerHeartbeat,
    AnswerPreparation,
    AnswerReport,
    DrainHost,
    EvictWorker,
    GrantLease,
    MarkHostDead,
    MarkReady,
    NotifyLease,
    NotifyQueue,
    PowerOn,
    PrepareWorker,
    Refuse,
    RevokeLease,
    StopHost,
    UndrainHost,
)
from looseleaf.services.scheduler.core.events import (
    Event,
    ExecutionReported,
    HeartbeatReceived,
    JournalRestored,
    PreparationFailed,
    PreparationRequested,
    RunCancelled,
    RunRequested,
    Tick,
)
from looseleaf.services.scheduler.core.policy import Scheduler
from looseleaf.services.scheduler.daemons import DaemonOrders
from looseleaf.services.scheduler.host_provider import HostProvider
from looseleaf.services.scheduler.journal_store import JournalStore
from looseleaf.services.scheduler.known_recipes import KnownRecipes
from looseleaf.services.scheduler.metrics import SchedulerMetrics
from looseleaf.services.scheduler.providing import Providing
from looseleaf.services.scheduler.run_log import RunLog
from looseleaf.v1 import recipe_pb2

# Events that may wait; beyond it callers are told to come back, answers to our own orders are always taken.
EVENTS_MAX: Final = 20_000
EVENT_BATCH_MAX: Final = 256
JOURNAL_ATTEMPTS_MAX: Final = 5
JOURNAL_RETRY_S: Final = 0.2
# A tick that comes this late says that the whole process stood still and heard nobody.
STALL_S: Final = 1.0

RunBlocking = Callable[..., Awaitable[Any]]
StartTask = Callable[[Coroutine[Any, Any, None], str], object]
Answer = AnswerHeartbeat | AnswerReport | AnswerPreparation
Question = HeartbeatReceived | ExecutionReported | PreparationRequested

log = get_logger()


class RunNews:
    """What the caller of a run is told: only the newest place in the queue, then the end."""

    def __init__(self) -> None:
        self._queue: NotifyQueue | None = None
        self._end: NotifyLease | LooseLeafError | None = None
        self._changed = asyncio.Event()

    def put(self, news: NotifyQueue | NotifyLease | LooseLeafError) -> None:
        """Replaces older queue news."""
        if isinstance(news, NotifyQueue):
            self._queue = news
        else:
            self._end = news
        self._changed.set()

    async def next(self) -> NotifyQueue | NotifyLease:
        """The next news; raises the error that ended the run's wait."""
        while True:
            if self._end is not None:
                if isinstance(self._end, NotifyLease):
                    return self._end
                raise self._end
            if self._queue is not None:
                news, self._queue = self._queue, None
                return news
            self._changed.clear()
            await self._changed.wait()


class Driver:
    """Owns the policy. All methods belong to the event loop's thread.

    `start_task` must end the service if the task fails: an order that is never answered would hold its GPU for ever.
    """

    def __init__(
        self, scheduler: Scheduler, store: JournalStore, orders: DaemonOrders, clock: Clock, run_blocking: RunBlocking,
        start_task: StartTask, metrics: SchedulerMetrics, provider: HostProvider | None = None,
        run_log: RunLog | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._store = store
        self._orders = orders
        self._clock = clock
        self._run_blocking = run_blocking
        self._start_task = start_task
        self._metrics = metrics
        self._run_log = run_log
        self._providing = Providing(provider, self._put) if provider is not None else None
        self._events: asyncio.Queue[tuple[Event, float]] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self._runs: dict[str, RunNews] = {}
        self._recipes: dict[str, recipe_pb2.ExecutionRecipe] = {}
        self._known_recipes = KnownRecipes()
        self._requests = 0
        self._tick_waits = False
        self._overslept_s = 0.0
        self._unflushed = False
        self._stopping = False

    def new_request_id(self) -> str:
        """A name for a caller who awaits an answer."""
        self._requests += 1
        return f"q{self._requests}"

    def now_s(self) -> float:
        """The time that events get."""
        return self._clock.monotonic_s()

    async def ask(self, event: Question, recipe: recipe_pb2.ExecutionRecipe | None = None) -> Answer:
        """The answer to an event; raises the error with which it was refused.

        `recipe`: the whole recipe of a PreparationRequested, which the policy does not need to know.
        """
        self._admit()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[event.request_id] = future
        if recipe is not None:
            self._recipes[event.request_id] = recipe
            if isinstance(event, PreparationRequested):
                self._known_recipes.put(event.session_id, recipe)
        self._put(event)
        try:
            return await future
        finally:
            self._answers.pop(event.request_id, None)

    async def run_news(self, event: RunRequested) -> AsyncGenerator[NotifyQueue | NotifyLease, None]:
        """News of a run up to its lease; leaving before the lease is offered cancels the caller's interest."""
        self._admit()
        news = self._runs[event.request_id] = RunNews()
        asked_s = self.now_s()
        self._put(event)
        delivered = False
        try:
            while not delivered:
                item = await news.next()
                # A caller that has read the lease may hang up before the write returns here: it counts as delivered
                # from the attempt on, and one that is really gone is found by the start timeout.
                delivered = isinstance(item, NotifyLease)
                if delivered:
                    self._metrics.waited(self.now_s() - asked_s)
                yield item
        except LooseLeafError:
            delivered = True
            raise
        finally:
            self._runs.pop(event.request_id, None)
            if not delivered:
                self._put(RunCancelled(event.request_id, event.execution_id))

    def stop_callers(self) -> None:
        """Ends every wait: the service stops, and callers ask its successor."""
        self._stopping = True
        for news in self._runs.values():
            news.put(_stopping())
        for future in self._answers.values():
            if not future.done():
                future.set_exception(_stopping())

    async def run(self, restored: JournalRestored) -> None:
        """Handles events for ever; raises if the journal cannot be written, since nothing may be done without it."""
        await self._handle([(restored, self.now_s())])
        if self._providing is not None:
            self._start_task(self._providing.watch(), "provider")
        while True:
            events = [await self._events.get()]
            while len(events) < EVENT_BATCH_MAX and not self._events.empty():
                events.append(self._events.get_nowait())
            await self._handle(events)

    async def tick_forever(self, period_s: float) -> None:
        """Tells the policy that time passes, and makes what was written safe against a loss of power."""
        while True:
            began_s = self.now_s()
            await asyncio.sleep(period_s)
            late_s = self.now_s() - began_s - period_s
            self._overslept_s += late_s if late_s >= STALL_S else 0.0
            if not self._tick_waits:
                self._tick_waits = True
                self._put(Tick(self._overslept_s))
                self._overslept_s = 0.0
            if self._unflushed:
                await self._flush()

    async def _flush(self) -> None:
        self._unflushed = False
        try:
            await self._run_blocking(self._store.flush)
        except LooseLeafError as error:
            # What was written still survives the end of this process; the next tick tries again.
            self._unflushed = True
            log.warning("journal_flush_failed", reason=error.reason, message=error.message)

    def _put(self, event: Event) -> None:
        # Handled late, a silence of ours would look like one of theirs.
        self._events.put_nowait((event, self.now_s()))

    def _admit(self) -> None:
        if self._stopping:
            raise _stopping()
        if self._events.qsize() >= EVENTS_MAX:
            raise CapacityExceeded(
                "SCHEDULER_BUSY", "The scheduler has too much waiting; nothing was done, ask again.", retry_after_s=1.0)

    async def _handle(self, events: Sequence[tuple[Event, float]]) -> None:
        actions: list[Action] = []
        for event, arrived_s in events:
            if isinstance(event, Tick):
                self._tick_waits = False
            if self._run_log is not None:
                self._run_log.take(event, arrived_s)
            actions += self.scheduler.handle(event, arrived_s)
        writes = [action for action in actions if isinstance(action, JOURNAL_ACTIONS)]
        if writes:
            await self._write(writes)
        for action in actions:
            if not isinstance(action, JOURNAL_ACTIONS):
                self._carry_out(action)
        self._metrics.observe(self.scheduler, actions, self.now_s())

    async def _write(self, writes: Sequence[Action]) -> None:
        for attempt in range(1, JOURNAL_ATTEMPTS_MAX + 1):
            try:
                await self._run_blocking(self._store.write, writes)
            except LooseLeafError as error:
                log.error("journal_write_failed", reason=error.reason, message=error.message, attempt=attempt)
                if attempt == JOURNAL_ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(JOURNAL_RETRY_S * attempt)
            else:
                self._unflushed = True
                return

    def _carry_out(self, action: Action) -> None:
        match action:
            case NotifyQueue() | NotifyLease():
                self._tell(action)
            case Refuse():
                self._refuse(action)
            case AnswerHeartbeat() | AnswerReport() | AnswerPreparation():
                self._answer(action)
            case GrantLease():
                log.info(
                    "lease_granting", lease=action.lease.lease_id, session=action.lease.session_id,
                    execution=action.lease.execution_id, host=action.lease.host_id, gpus=action.lease.gpu_indices,
                    worker=action.lease.worker_id, path=action.lease.path.name, epoch=action.lease.epoch)
                self._order(self._orders.grant(action))
            case RevokeLease():
                log.info("lease_revoking", lease=action.lease_id, host=action.host_id)
                self._order(self._orders.revoke(action))
            case EvictWorker():
                log.info("worker_evicting", worker=action.worker_id, host=action.host_id, lease=action.lease_id)
                self._order(self._orders.evict(action))
            case PrepareWorker():
                self._prepare(action)
            case MarkHostDead():
                log.warning("host_lost", host=action.host_id, reason=action.reason)
                host = self.scheduler.state.hosts.get(action.host_id)
                if host is not None:
                    self._orders.drop(host.address)
            case PowerOn() | DrainHost() | UndrainHost() | StopHost():
                assert self._providing is not None, "the policy provides hosts only if it may"
                self._start_task(self._providing.carry_out(action), "provider")
            case MarkReady():
                log.info("scheduler_ready")

    def _tell(self, action: NotifyQueue | NotifyLease) -> None:
        news = self._runs.get(action.request_id)
        if news is not None:
            news.put(action)

    def _answer(self, action: Answer) -> None:
        self._recipes.pop(action.request_id, None)
        future = self._answers.get(action.request_id)
        if future is not None and not future.done():
            future.set_result(action)

    def _refuse(self, action: Refuse) -> None:
        self._recipes.pop(action.request_id, None)
        error = ERRORS_BY_CODE.get(action.code, Internal)(action.reason, action.message, **dict(action.fields))
        news = self._runs.get(action.request_id)
        if news is not None:
            news.put(error)
        future = self._answers.get(action.request_id)
        if future is not None and not future.done():
            future.set_exception(error)

    def _prepare(self, action: PrepareWorker) -> None:
        """Of a preparation that the policy thought of itself the whole recipe is the session's last one, if it is that.

        Else the worker that it concerns has it; without one it is refused, which loses nothing but time.
        """
        recipe = self._recipes.get(action.request_id) or self._known_recipes.get(action.session_id, action.recipe)
        if recipe is None and not action.worker_id:
            log.warning("preparation_without_recipe", session=action.session_id, worker=action.worker_id)
            self._put(PreparationFailed(action.request_id, "RECIPE_UNKNOWN", "its whole recipe is not known"))
            return
        self._order(self._orders.prepare(action, recipe))

    def _order(self, order: Coroutine[Any, Any, Event]) -> None:
        self._start_task(self._follow(order), "order")

    async def _follow(self, order: Coroutine[Any, Any, Event]) -> None:
        self._put(await order)


def _stopping() -> LooseLeafError:
    return Unavailable("SCHEDULER_STOPPING", "The scheduler is being stopped; running cells go on. Ask again.")
