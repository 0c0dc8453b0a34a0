"""The workers of this host: forked, prepared, kept warm for a while, ended (design §5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from looseleaf.errors import CapacityExceeded, Conflict, LooseLeafError, Unavailable
from looseleaf.ids import Epoch, SessionId, Version, WorkerId, new_worker_id
from looseleaf.services.worker_daemon.core.worker_life import KeepRules, Stage, WorkerFacts, WorkerRoster
from looseleaf.services.worker_daemon.reaper import Reaper
from looseleaf.services.worker_daemon.state_requests import StateOwner, StateRequests
from looseleaf.services.worker_daemon.worker_process import WorkerProcess
from looseleaf.services.worker_daemon.zygote import Zygote
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
    """Hands out workers one user at a time; ends idle ones by the roster's rules.

    `changed` is called whenever a heartbeat would say something new.
    """

    def __init__(
        self,
        zygote: Zygote,
        reaper: Reaper,
        rules: KeepRules,
        new_requests: Callable[[StateOwner], StateRequests],
        env: dict[str, str],
        changed: Callable[[], None],
    ) -> None:
        self.roster = WorkerRoster(rules)
        self._processes: dict[WorkerId, WorkerProcess] = {}
        self._zygote = zygote
        self._reaper = reaper
        self._new_requests = new_requests
        self._env = env
        self._changed = changed
        self._ticker: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begins to end workers that idle too long."""
        self._ticker = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for facts in self.roster.expired(time.monotonic()):
                log.info("idle_worker_ended", worker=facts.worker_id, session=facts.session_id)
                await self.evict(facts.worker_id)

    def get(self, worker_id: WorkerId) -> WorkerProcess | None:
        """The worker, if it lives."""
        return self._processes.get(worker_id)

    async def obtain(self, worker_id: WorkerId | None, session_id: SessionId, epoch: Epoch) -> WorkerProcess:
        """Reserves the named worker if it lives and is this session's, else a newly forked one.

        Reserved workers are not evicted; call `done` when finished. Raises CapacityExceeded `WORKERS_FULL` or as
        `WorkerProcess.fork`.
        """
        worker = self._processes.get(worker_id) if worker_id else None
        if worker is not None and worker.facts.session_id == session_id and worker.facts.stage is not Stage.GONE:
            worker.facts.users += 1
            self._adopt(worker, session_id, epoch)
            return worker
        return await self._fork(session_id, epoch)

    async def _fork(self, session_id: SessionId, epoch: Epoch) -> WorkerProcess:
        if len(self.roster.workers) >= self.roster.rules.workers_max:
            victim = self.roster.to_make_room()
            if victim is None:
                raise CapacityExceeded(
                    "WORKERS_FULL",
                    f"this host already runs {len(self.roster.workers)} workers, all in use; run the cell again later",
                    retry_after_s=5.0,
                )
            await self.evict(victim.worker_id)
        owner = StateOwner()
        requests = self._new_requests(owner)
        worker = await WorkerProcess.fork(new_worker_id(), self._zygote, self._env, requests, self._reaper)
        worker.facts.users += 1
        worker.facts.idle_since_s = time.monotonic()
        self._adopt(worker, session_id, epoch)
        self.roster.workers[worker.facts.worker_id] = worker.facts
        self._processes[worker.facts.worker_id] = worker
        self._start(self._forget_when_lost(worker))
        self._changed()
        return worker

    @staticmethod
    def _adopt(worker: WorkerProcess, session_id: SessionId, epoch: Epoch) -> None:
        worker.facts.session_id = worker.requests.owner.session_id = session_id
        worker.facts.epoch = worker.requests.owner.epoch = epoch

    async def _forget_when_lost(self, worker: WorkerProcess) -> None:
        await asyncio.shield(worker.lost)
        self.roster.workers.pop(worker.facts.worker_id, None)
        self._processes.pop(worker.facts.worker_id, None)
        self._changed()

    def done(self, worker: WorkerProcess) -> None:
        """The user of a reserved worker is finished with it; its idle time begins."""
        worker.facts.users = max(0, worker.facts.users - 1)
        worker.facts.idle_since_s = time.monotonic()
        self._changed()
        if self.roster.rules.keep_s == 0 and worker.facts.stage is Stage.COMPLETED:
            self._start(self._evict_quietly(worker.facts.worker_id))

    async def _evict_quietly(self, worker_id: WorkerId) -> None:
        await self.evict(worker_id)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def prepare(self, worker: WorkerProcess, recipe: recipe_pb2.ExecutionRecipe, version: Version) -> Prepared:
        """Makes a reserved worker hold the recipe's closures at `version`, up to host_ready.

        Raises the worker's error; Unavailable `WORKER_LOST` if it ended.
        """
        async with worker.lock:
            began = time.monotonic()
            reply = await worker.prepare(
                {
                    "session_id": worker.facts.session_id,
                    "epoch": worker.facts.epoch,
                    "version": version,
                    "names": list(recipe.names),
                    "imports": list(recipe.imports),
                }
            )
            total_ms = (time.monotonic() - began) * 1000
            stage_ms = {str(name): float(ms) for name, ms in dict(reply.get("stage_ms", {})).items()}
            stage_ms["total"] = total_ms
            log.info(
                "worker_prepared",
                worker=worker.facts.worker_id,
                session=worker.facts.session_id,
                version=version,
                stage_ms={name: round(ms, 1) for name, ms in stage_ms.items()},
            )
            worker.facts.prepare_ms = total_ms
            worker.facts.prepared_source_hash = recipe.source_hash
            self._changed()
            return Prepared(worker, stage_ms, int(reply.get("mapped_bytes", 0)))

    async def prepare_ahead(
        self, worker_id: WorkerId | None, session_id: SessionId, epoch: Epoch, recipe: recipe_pb2.ExecutionRecipe
    ) -> Prepared:
        """Obtains and prepares a worker before Run; it stays idle afterwards.

        Raises Conflict `WORKER_BUSY` if the named worker runs a cell, and as `obtain` and `prepare`.
        """
        named = self._processes.get(worker_id) if worker_id else None
        if named is not None and named.lock.locked():
            raise Conflict("WORKER_BUSY", "the worker to prepare runs a cell")
        began = time.monotonic()
        worker = await self.obtain(worker_id, session_id, epoch)
        fork_ms = (time.monotonic() - began) * 1000
        try:
            prepared = await self.prepare(worker, recipe, Version(recipe.version))
        except LooseLeafError:
            await self._discard(worker)
            raise
        finally:
            self.done(worker)
        worker.facts.prepare_ms = prepared.stage_ms["total"] = prepared.stage_ms["total"] + fork_ms
        prepared.stage_ms.setdefault("fork", fork_ms)
        return prepared

    async def _discard(self, worker: WorkerProcess) -> None:
        worker.kill()
        try:
            await asyncio.wait_for(asyncio.shield(worker.lost), 5.0)
        except TimeoutError:
            log.error("killed_worker_did_not_end", worker=worker.facts.worker_id, pid=worker.facts.pid)

    async def discard(self, worker: WorkerProcess) -> None:
        """Kills a worker whose state is not what the store holds."""
        await self._discard(worker)

    async def evict(self, worker_id: WorkerId) -> bool:
        """Ends an idle worker; False if it is in use and stays."""
        worker = self._processes.get(worker_id)
        if worker is None:
            return True
        if not worker.facts.evictable or worker.lock.locked():
            return False
        worker.facts.users += 1
        await worker.end()
        self.roster.workers.pop(worker_id, None)
        self._processes.pop(worker_id, None)
        self._changed()
        return True

    async def make_way(self, gpus: tuple[int, ...], session_id: SessionId) -> None:
        """Ends other sessions' idle workers that hold memory of these GPUs. Raises Unavailable `GPU_OCCUPIED`."""
        for facts in self.roster.on_gpus(gpus, but_session=session_id):
            if not await self.evict(facts.worker_id):
                raise Unavailable("GPU_OCCUPIED", "the GPU's last worker did not make way", worker=facts.worker_id)

    def facts(self) -> list[WorkerFacts]:
        """All live workers."""
        return list(self.roster.workers.values())

    async def stop(self) -> None:
        """Ends every worker."""
        if self._ticker is not None:
            self._ticker.cancel()
        await asyncio.gather(*(worker.end() for worker in list(self._processes.values())))
