"""The workers of this host: forked, prepared, kept warm for a while, ended (design §5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from looseleaf.errors import CapacityExceeded, Conflict, PreconditionFailed, Unavailable
from looseleaf.ids import Epoch, SessionId, Version, WorkerId, new_worker_id
from looseleaf.protocol import fields
from looseleaf.services.worker_daemon.core.worker_life import KeepRules, Stage, WorkerFacts, WorkerRoster
from looseleaf.services.worker_daemon.reaper import Reaper
from looseleaf.services.worker_daemon.state_requests import StateOwner, StateRequests
from looseleaf.services.worker_daemon.worker_process import Forker, WorkerLimits, WorkerProcess
from looseleaf.v1 import recipe_pb2

log = structlog.get_logger()

TICK_S = 1.0


@dataclass(frozen=True)
class Prepared:
    """A worker that holds a recipe's closures, with milliseconds per stage and the payload bytes it maps."""

    worker: WorkerProcess
    stage_ms: dict[str, float]
    mapped_bytes: int


class WorkerPool:
    """Hands out workers; ends idle ones by the roster's rules.

    A worker serves one session in one epoch. `changed` is called whenever a heartbeat would say something new.
    """

    def __init__(
        self,
        forker: Forker,
        reaper: Reaper,
        rules: KeepRules,
        limits: WorkerLimits,
        new_requests: Callable[[StateOwner], StateRequests],
        env: dict[str, str],
        changed: Callable[[], None],
    ) -> None:
        self.roster = WorkerRoster(rules)
        self._processes: dict[WorkerId, WorkerProcess] = {}
        self._forks_under_way = 0
        self._forker = forker
        self._reaper = reaper
        self._limits = limits
        self._new_requests = new_requests
        self._env = env
        self._changed = changed
        self._ticker: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Begins to end workers that idle too long."""
        self._ticker = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for facts in self.roster.expired(time.monotonic()):
                log.info("idle_worker_ended", worker=facts.worker_id, session=facts.session_id)
                self._start(self.evict(facts.worker_id))

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def usable(self, worker_id: WorkerId | None, session_id: SessionId, epoch: Epoch) -> WorkerProcess | None:
        """The named worker, if it lives and may serve this session in this epoch.

        In another epoch the same version number may be another state, so a worker does not outlive its epoch.
        """
        worker = self._processes.get(worker_id) if worker_id else None
        if worker is None or worker.ending or (worker.facts.session_id, worker.facts.epoch) != (session_id, epoch):
            return None
        return worker

    @asynccontextmanager
    async def reserved(
        self, worker_id: WorkerId | None, session_id: SessionId, epoch: Epoch
    ) -> AsyncIterator[WorkerProcess]:
        """The named worker if it is `usable`, else a newly forked one; nobody else talks to it or evicts it meanwhile.

        A worker that is in use is waited for. If the block raises, the worker is killed: nobody knows its state.
        Raises CapacityExceeded `WORKERS_FULL` or as `WorkerProcess.fork`.
        """
        worker = self.usable(worker_id, session_id, epoch) or await self._fork(session_id, epoch)
        worker.facts.users += 1
        try:
            async with worker.lock:
                try:
                    yield worker
                except BaseException:
                    worker.kill()
                    raise
        finally:
            worker.facts.users -= 1
            worker.facts.idle_since_s = time.monotonic()
            self._changed()
            if self.roster.rules.keep_s == 0 and worker.facts.stage is Stage.COMPLETED:
                self._start(self.evict(worker.facts.worker_id))

    async def _fork(self, session_id: SessionId, epoch: Epoch) -> WorkerProcess:
        for old in self.roster.of_session(session_id):
            if old.epoch < epoch:
                self._start(self.evict(old.worker_id))
        # Counted before the first wait: forks that run side by side must not fill one place twice.
        self._forks_under_way += 1
        try:
            await self._make_room()
            owner = StateOwner(session_id, epoch)
            worker = await WorkerProcess.fork(
                new_worker_id(), self._forker, self._env, self._new_requests(owner), self._reaper, self._limits
            )
        finally:
            self._forks_under_way -= 1
        facts = worker.facts
        facts.session_id, facts.epoch, facts.idle_since_s = session_id, epoch, time.monotonic()
        self.roster.workers[facts.worker_id] = facts
        self._processes[facts.worker_id] = worker
        self._start(self._forget_when_lost(worker))
        self._changed()
        return worker

    async def _make_room(self) -> None:
        while len(self.roster.workers) + self._forks_under_way > self.roster.rules.workers_max:
            victim = self.roster.to_make_room()
            if victim is None or not await self.evict(victim.worker_id):
                raise CapacityExceeded(
                    "WORKERS_FULL",
                    f"this host already runs {len(self.roster.workers)} workers, all in use; nothing was run, run the "
                    "cell again later",
                    retry_after_s=5.0,
                )

    async def _forget_when_lost(self, worker: WorkerProcess) -> None:
        await asyncio.shield(worker.lost)
        self.roster.workers.pop(worker.facts.worker_id, None)
        self._processes.pop(worker.facts.worker_id, None)
        self._changed()

    async def prepare(self, worker: WorkerProcess, recipe: recipe_pb2.ExecutionRecipe, version: Version) -> Prepared:
        """Makes a reserved worker hold the recipe's closures at `version`, up to host_ready.

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
            }
        )
        facts.prepare_ms = (time.monotonic() - began_s) * 1000
        facts.prepared_source_hash = recipe.source_hash
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
        return Prepared(worker, stage_ms, fields.integer(reply, "mapped_bytes", 0))

    async def prepare_ahead(
        self, worker_id: WorkerId | None, session_id: SessionId, epoch: Epoch, recipe: recipe_pb2.ExecutionRecipe
    ) -> Prepared:
        """Reserves and prepares a worker before Run; it stays idle afterwards.

        Raises Conflict `WORKER_BUSY` if the named worker is in use, PreconditionFailed `STALE_EPOCH`, and as
        `reserved` and `prepare`.
        """
        named = self._processes.get(worker_id) if worker_id else None
        if named is not None and named.facts.users:
            raise Conflict("WORKER_BUSY", "the worker to prepare is in use")
        if named is not None and named.facts.session_id == session_id and named.facts.epoch > epoch:
            raise PreconditionFailed("STALE_EPOCH", "a newer owner of this session has a worker here", epoch=epoch)
        began_s = time.monotonic()
        async with self.reserved(worker_id, session_id, epoch) as worker:
            fork_ms = (time.monotonic() - began_s) * 1000
            prepared = await self.prepare(worker, recipe, Version(recipe.version))
            worker.facts.prepare_ms = prepared.stage_ms["total"] = prepared.stage_ms["total"] + fork_ms
            prepared.stage_ms.setdefault("fork", fork_ms)
        return prepared

    async def evict(self, worker_id: WorkerId) -> bool:
        """Ends an idle worker; True when it is gone, False if it is in use and stays."""
        worker = self._processes.get(worker_id)
        if worker is None:
            return True
        if not worker.ending and not worker.facts.evictable:
            return False
        # From here on nobody can reserve it.
        return await worker.end()

    async def evict_session(self, session_id: SessionId) -> int:
        """Ends the session's idle workers; how many went."""
        return sum([await self.evict(facts.worker_id) for facts in self.roster.of_session(session_id)])

    async def make_way(self, gpus: tuple[int, ...], but: WorkerProcess | None) -> None:
        """Ends every worker but one that holds memory of these GPUs; preparations that use one fail.

        Raises Unavailable `GPU_OCCUPIED` if a cell runs there or a worker does not end.
        """
        for facts in self.roster.on_gpus(gpus, but=but.facts.worker_id if but is not None else None):
            in_preparation = facts.disposable and facts.users > 0
            worker = self._processes.get(facts.worker_id)
            if worker is not None and not await (
                worker.discard() if in_preparation else self.evict(facts.worker_id)
            ):
                raise Unavailable(
                    "GPU_OCCUPIED",
                    "the GPU's last worker did not make way; nothing was run, run the cell again",
                    worker=facts.worker_id,
                )

    def facts(self) -> list[WorkerFacts]:
        """All live workers."""
        return list(self.roster.workers.values())

    async def stop(self) -> None:
        """Ends every worker, also one that runs a cell."""
        if self._ticker is not None:
            self._ticker.cancel()
        await asyncio.gather(*(worker.end() for worker in list(self._processes.values())))
