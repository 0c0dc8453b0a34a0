"""A worker made ready before Run, which waits for its cell then (design §1, §5)."""

from __future__ import annotations

import time

import structlog

from looseleaf.errors import Conflict, LooseLeafError, NotFound, PreconditionFailed
from looseleaf.ids import Epoch, SessionId, Version, WorkerId
from looseleaf.services.worker_daemon.core import worker_ends
from looseleaf.services.worker_daemon.opening import Opening
from looseleaf.services.worker_daemon.pool import Prepared, WorkerPool
from looseleaf.services.worker_daemon.worker_process import WorkerProcess
from looseleaf.v1 import recipe_pb2

log = structlog.get_logger()


async def prepare_ahead(
    pool: WorkerPool, worker_id: WorkerId | None, session_id: SessionId, epoch: Epoch,
    recipe: recipe_pb2.ExecutionRecipe | None, opening: Opening | None = None,
) -> Prepared:  # fmt: skip
    """A worker that holds the recipe's closures, taken as far as `opening` says; it stays idle afterwards.

    The named worker if it can go on; one that has imported files which changed since is replaced. `recipe` None: what
    the worker was prepared for last.
    Raises NotFound `WORKER_UNKNOWN` if nobody knows that, Conflict `WORKER_BUSY` if the named worker is in use,
    PreconditionFailed `STALE_EPOCH`, and as `WorkerPool.reserved` and `prepare`.
    """
    named = pool.find(worker_id)
    recipe = recipe or (named.prepared_for if named is not None else None)
    if recipe is None:
        if named is not None:
            pool.evict_soon(named.facts.worker_id, worker_ends.LEFT_DEVICE)
        raise NotFound("WORKER_UNKNOWN", "the worker to prepare again is gone, or nobody knows for what it was")
    opening = opening or Opening()
    try:
        return await _prepared(pool, named, session_id, epoch, recipe, opening)
    except LooseLeafError as error:
        again = opening.after(error)
        if again is None:
            raise
        log.info("preparation_again", session=session_id, reason=error.reason, stage=again.stage.name)
    return await _prepared(pool, None, session_id, epoch, recipe, again)


async def _prepared(
    pool: WorkerPool, named: WorkerProcess | None, session_id: SessionId, epoch: Epoch,
    recipe: recipe_pb2.ExecutionRecipe, opening: Opening,
) -> Prepared:  # fmt: skip
    if named is not None and named.facts.users:
        raise Conflict("WORKER_BUSY", "the worker to prepare is in use")
    if named is not None and named.facts.session_id == session_id and named.facts.epoch > epoch:
        raise PreconditionFailed("STALE_EPOCH", "a newer owner of this session has a worker here", epoch=epoch)
    await pool.look_at_environment()
    if named is not None and not opening.serves(named.facts):
        pool.evict_soon(named.facts.worker_id, worker_ends.LEFT_DEVICE)
        named = None
    began_s = time.monotonic()
    worker_id, kernel_id = named.facts.worker_id if named is not None else None, recipe.environment_id
    version = Version(recipe.version)
    async with pool.reserved(
        worker_id, session_id, epoch, recipe.imports, version, kernel_environment_id=kernel_id
    ) as worker:
        fork_ms = (time.monotonic() - began_s) * 1000
        prepared = await pool.prepare(worker, recipe, version, ahead=True)
        worker.facts.prepare_ms = prepared.stage_ms["total"] = prepared.stage_ms["total"] + fork_ms
        prepared.stage_ms.setdefault("fork", fork_ms)
        if worker.facts.prepared_ahead:
            # What was made ready for the edit before this one.
            pool.metrics.prefetched("wasted")
        worker.facts.prepared_ahead, worker.prepared_for = True, recipe
        prepared.stage_ms.update(await opening.reach(worker))
        pool.metrics.opened(prepared.stage_ms)
    return prepared
