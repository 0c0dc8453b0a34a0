"""The workers of this host: forked, prepared, kept warm for a while, ended (design §5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import structlog

from looseleaf.errors import CapacityExceeded, LooseLeafError, Timeout, Unavailable
from looseleaf.ids import Epoch, SessionId, Version, WorkerId
from looseleaf.protocol import fields
from looseleaf.services.worker_daemon.core import worker_ends
from looseleaf.services.worker_daemon.core.worker_ends import WorkerEnd
from looseleaf.services.worker_daemon.core.worker_life import KeepRules, Stage, WorkerFacts, WorkerRoster
from looseleaf.services.worker_daemon.ended_holders import EndedHolders
from looseleaf.services.worker_daemon.metrics import DaemonMetrics
from looseleaf.services.worker_daemon.state_requests import StateOwner
from looseleaf.services.worker_daemon.worker_forks import WorkerForks
from looseleaf.services.worker_daemon.worker_process import WorkerProcess
from looseleaf.services.worker_daemon.zygote import import_seconds
from looseleaf.v1 import recipe_pb2

log = structlog.get_logger()

TICK_S = 1.0


@dataclass(frozen=True)
class Prepared:
    """A worker that holds a recipe's closures, with milliseconds per stage and the payload bytes it maps."""

    worker: WorkerProcess
    stage_ms: dict[str, float]
    mapped_bytes: int
    not_live: tuple[str, ...] = ()


class WorkerPool:
    """Hands out workers; ends idle ones by the roster's rules.

    A worker serves one session in one epoch. `changed` is called whenever a heartbeat would say something new.
    """

    def __init__(
        self, forks: WorkerForks, rules: KeepRules, changed: Callable[[], None], metrics: DaemonMetrics | None = None
    ) -> None:
        self.metrics = metrics or DaemonMetrics()
        self.roster = WorkerRoster(rules)
        # What is installed on this host, as it was last looked at.
        self._environment_id = ""
        self._processes: dict[WorkerId, WorkerProcess] = {}
        self._forks_under_way = 0
        self._forks = forks
        self._source = forks.source
        self._changed = changed
        self._ticker: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self.ended_holders = EndedHolders()

    def start(self) -> None:
        """Begins to end workers that idle too long."""
        self._ticker = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for facts in self.roster.expired(time.monotonic()):
                log.info("idle_worker_ended", worker=facts.worker_id, session=facts.session_id)
                self.evict_soon(facts.worker_id, self._idle_too_long)

    @property
    def _idle_too_long(self) -> WorkerEnd:
        return worker_ends.idle(self.roster.rules.keep_s)

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        # In a context of its own: a worker's end is often not its caller's, whose ids its logs must not have.
        task = asyncio.create_task(work, context=Context())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def find(self, worker_id: WorkerId | None) -> WorkerProcess | None:
        """The worker, while it lives."""
        return self._processes.get(worker_id) if worker_id else None

    async def look_at_environment(self) -> None:
        """What is installed now counts from here on: idle workers from before an install are ended.

        Those that hold what no version has stay: such a variable's cell runs there or nowhere.
        """
        self._environment_id = await self._source.environment_id()
        for facts in self.facts():
            if not facts.is_of(self._environment_id, "") and facts.evictable and not facts.unsaved:
                self.evict_soon(facts.worker_id, worker_ends.INSTALLED_SINCE)

    def usable(
        self, worker_id: WorkerId | None, session_id: SessionId, epoch: Epoch, *, kernel_environment_id: str = "",
        even_outdated: bool = False,
    ) -> WorkerProcess | None:
        """The named worker, if it lives and may serve this session in this epoch and environment.

        In another epoch the same version number may be another state, so a worker does not outlive its epoch. What it
        has imported may be another version than what is installed since, unless `even_outdated` accepts that; one that
        is held for variables which no version has goes on as a process does.
        """
        worker = self.find(worker_id)
        if worker is None or worker.ending or (worker.facts.session_id, worker.facts.epoch) != (session_id, epoch):
            return None
        even_outdated = even_outdated or worker.facts.held(time.monotonic())
        if not even_outdated and not worker.facts.is_of(self._environment_id, kernel_environment_id):
            return None
        return worker

    @asynccontextmanager
    async def reserved(
        self, worker_id: WorkerId | None, session_id: SessionId, epoch: Epoch, imports: Iterable[str] = (),
        version: int = 0, **accepted: Any,
    ) -> AsyncIterator[WorkerProcess]:
        """The named worker if it is `usable`, else a newly forked one; nobody else talks to it or evicts it meanwhile.

        `imports`: what a new one should have, as far as a zygote does; `version`: what it is for. `accepted`: as
        `usable` takes them.

        A worker that is in use is waited for. If the block raises, the worker is killed, since nobody knows its state,
        unless it is `_unharmed`.
        Raises CapacityExceeded `WORKERS_FULL` or as `WorkerProcess.fork`.
        """
        worker = self.usable(worker_id, session_id, epoch, **accepted)
        worker = worker or await self._fork(session_id, epoch, imports, version)
        async with self.held(worker):
            yield worker

    @asynccontextmanager
    async def held(self, worker: WorkerProcess) -> AsyncIterator[None]:
        """As `reserved`, of a worker that is there."""
        worker.facts.users += 1
        try:
            async with worker.lock:
                try:
                    yield
                except BaseException as error:
                    self._source.failed(worker.facts.pid, error)
                    if not _unharmed(worker, error):
                        if not isinstance(error, Unavailable):
                            worker.facts.end = worker.facts.end or worker_ends.FAILURE
                        worker.kill()
                    raise
        finally:
            worker.facts.users -= 1
            worker.facts.idle_since_s = time.monotonic()
            self._changed()
            if worker.facts.stage is Stage.COMPLETED:
                if worker.facts.spent:
                    self.evict_soon(worker.facts.worker_id, worker_ends.SPENT)
                elif self.roster.rules.keep_s == 0:
                    self.evict_soon(worker.facts.worker_id, self._idle_too_long)

    async def _fork(
        self, session_id: SessionId, epoch: Epoch, imports: Iterable[str], version: int
    ) -> WorkerProcess:
        for old in self.roster.of_session(session_id):
            if old.epoch < epoch:
                self._start(self.evict(old.worker_id, worker_ends.EARLIER_OWNER, even_held=True))
        # Counted before the first wait: forks that run side by side must not fill one place twice.
        self._forks_under_way += 1
        try:
            await self._make_room()
            began_s = time.monotonic()
            worker = await self._forks.fork(StateOwner(session_id, epoch), imports, version)
        finally:
            self._forks_under_way -= 1
        self.metrics.forked(time.monotonic() - began_s)
        facts = worker.facts
        facts.session_id, facts.epoch, facts.idle_since_s = session_id, epoch, time.monotonic()
        self.take_in(worker)
        return worker

    def take_in(self, worker: WorkerProcess) -> None:
        """It is one of this host's from now on; its facts name its session and epoch."""
        self.roster.workers[worker.facts.worker_id] = worker.facts
        self._processes[worker.facts.worker_id] = worker
        self._start(self._forget_when_lost(worker))
        self._changed()

    async def _make_room(self) -> None:
        while len(self.roster.workers) + self._forks_under_way > self.roster.rules.workers_max:
            victim = self.roster.to_make_room(time.monotonic())
            if victim is None or not await self.evict(victim.worker_id, worker_ends.HOST_FULL):
                raise CapacityExceeded(
                    "WORKERS_FULL",
                    f"this host already runs {len(self.roster.workers)} workers, all in use; nothing was run, run the "
                    "cell again later",
                    retry_after_s=5.0,
                )

    async def _forget_when_lost(self, worker: WorkerProcess) -> None:
        how = await asyncio.shield(worker.lost)
        facts = worker.facts
        self.metrics.worker_ended(how, facts.end)
        if facts.prepared_ahead:
            self.metrics.prefetched("wasted")
        self.ended_holders.note(facts, how, time.monotonic())
        self.roster.workers.pop(worker.facts.worker_id, None)
        self._processes.pop(worker.facts.worker_id, None)
        self._changed()

    def release_unsaved(self, worker_id: WorkerId, session_id: SessionId, names: Iterable[str]) -> None:
        """The session needs these unsaved variables of the worker no more."""
        worker = self._processes.get(worker_id)
        if worker is not None and worker.facts.session_id == session_id:
            worker.facts.release(names)
            self._changed()

    def spoiled(self, worker: WorkerProcess) -> None:
        """A cell showed that this worker cannot use CUDA because of its zygote: no other comes from there."""
        self._source.spoiled(worker.facts.pid)

    async def prepare(
        self, worker: WorkerProcess, recipe: recipe_pb2.ExecutionRecipe, version: Version,
        needed_names: Iterable[str] = (), *, ahead: bool = False,
    ) -> Prepared:
        """Makes a reserved worker hold the recipe's closures at `version`, up to host_ready.

        `needed_names`: variables that no version has; the result says which of them do not live there. `ahead`: Run was
        not pressed, so nothing of the person's own files runs.
        Raises the worker's error; Unavailable `WORKER_LOST` if it ended.
        """
        began_s = time.monotonic()
        facts = worker.facts
        reply = await worker.prepare(
            {
                "session_id": facts.session_id,
                "epoch": facts.epoch,
                "version": version,
                "names": list(recipe.names),
                "imports": list(recipe.imports),
                "needed": list(needed_names),
                "ahead": ahead,
                "keep_modules": bool(facts.unsaved),
            }
        )
        facts.kernel_environment_id = facts.kernel_environment_id or recipe.environment_id
        facts.prepare_ms = (time.monotonic() - began_s) * 1000
        facts.prepared_source_hash = recipe.source_hash
        self._source.imported(import_seconds(fields.sequence(reply, "imported", [])))
        told_ms = fields.mapping(reply, "stage_ms", {})
        stage_ms = {name: fields.number(told_ms, name) for name in told_ms} | {"total": facts.prepare_ms}
        log.info(
            "worker_prepared",
            worker=facts.worker_id,
            session=facts.session_id,
            version=version,
            stage_ms={name: round(ms, 1) for name, ms in stage_ms.items()},
        )
        self._changed()
        not_live = tuple(fields.texts(reply, "not_live", []))
        mapped_bytes = fields.integer(reply, "mapped_bytes", 0)
        self.metrics.prepared(stage_ms, mapped_bytes)
        return Prepared(worker, stage_ms, mapped_bytes, not_live)

    async def evict(self, worker_id: WorkerId, why: WorkerEnd, *, even_held: bool = False) -> bool:
        """Ends an idle worker; True when it is gone, False if it is in use, or held unless `even_held`, and stays."""
        worker = self._processes.get(worker_id)
        if worker is None:
            return True
        if not worker.ending:
            held = worker.facts.held(time.monotonic()) and not even_held
            if held or not worker.facts.evictable:
                return False
            worker.facts.end = why
        # From here on nobody can reserve it.
        return await worker.end()

    def evict_soon(self, worker_id: WorkerId, why: WorkerEnd) -> None:
        """As `evict`, without waiting for it."""
        self._start(self.evict(worker_id, why))

    async def evict_for_others(self, worker_id: WorkerId, session_epoch: Epoch) -> bool:
        """As `evict`, for another cell; in an epoch of its session before `session_epoch` the worker is not held."""
        worker = self._processes.get(worker_id)
        outlived = worker is not None and worker.facts.epoch < session_epoch
        why = worker_ends.EARLIER_OWNER if outlived else worker_ends.MADE_WAY
        return await self.evict(worker_id, why, even_held=outlived)

    async def evict_session(self, session_id: SessionId) -> int:
        """Ends the session's idle workers; how many went."""
        ids = [facts.worker_id for facts in self.roster.of_session(session_id)]
        return sum(await asyncio.gather(*(self.evict(each, worker_ends.ASKED, even_held=True) for each in ids)))

    def facts(self) -> list[WorkerFacts]:
        """All live workers."""
        return list(self.roster.workers.values())

    async def stop(self) -> None:
        """Ends every worker, also one that runs a cell."""
        if self._ticker is not None:
            self._ticker.cancel()
        await asyncio.gather(*(worker.end() for worker in list(self._processes.values())))


def _unharmed(worker: WorkerProcess, error: BaseException) -> bool:
    """Whether a worker that has variables which no version has outlives a failure.

    It answered with an error before it was given a cell: its variables are what they were.
    """
    answered = isinstance(error, LooseLeafError) and not isinstance(error, Timeout)
    return answered and bool(worker.facts.unsaved) and worker.facts.disposable and not worker.lost.done()
