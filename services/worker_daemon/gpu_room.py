"""Room on a GPU: workers whose data lie there make way for a lease, and a preparation waits until they have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any, Final

from looseleaf.errors import Unavailable
from looseleaf.ids import Epoch
from looseleaf.services.worker_daemon.core import worker_ends
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.core.worker_life import WorkerFacts
from looseleaf.services.worker_daemon.pool import WorkerPool
from looseleaf.services.worker_daemon.worker_process import WorkerProcess

# How long a preparation that goes on to a device waits for who was told to make way there.
CLEARED_WAIT_S: Final = 5.0
# How long a Run of the waiting worker may wait with it.
CLEARED_STEP_S: Final = 0.05


async def make_way(pool: WorkerPool, lease: HeldLease, but: WorkerProcess | None) -> None:
    """Ends every worker but one that holds memory of the lease's GPUs; preparations that use one fail.

    Raises Unavailable `GPU_OCCUPIED` if a cell runs there or a worker is held or does not end.
    """
    for facts in pool.roster.on_gpus(lease.gpus, but=but.facts.worker_id if but is not None else None):
        session_epoch = lease.epoch if facts.session_id == lease.session_id else Epoch(0)
        held = facts.held(time.monotonic()) and facts.epoch >= session_epoch
        worker = pool.find(facts.worker_id)
        if worker is None:
            continue
        if facts.disposable and facts.users > 0 and not held:
            facts.end = facts.end or worker_ends.MADE_WAY
            gone = await worker.discard()
        else:
            gone = await pool.evict_for_others(facts.worker_id, session_epoch)
        if not gone:
            raise Unavailable(
                "GPU_OCCUPIED",
                "the GPU's last worker did not make way; nothing was run, run the cell again",
                worker=facts.worker_id,
            )


async def cleared(pool: WorkerPool, gpus: Collection[int], but: WorkerFacts) -> bool:
    """Whether nobody but that worker holds memory of these GPUs; those that do are waited for a little.

    Not once another wants the worker, such as a Run, which would wait with it. True holds until the caller's next
    suspension only: of several that waited for the same holder, the first one begins.
    """
    leaving, until_s = _losses_on(pool, gpus, but), time.monotonic() + CLEARED_WAIT_S
    while leaving and but.users <= 1 and (left_s := until_s - time.monotonic()) > 0:
        _gone, leaving = await asyncio.wait(leaving, timeout=min(left_s, CLEARED_STEP_S))
    return not _losses_on(pool, gpus, but)


def _losses_on(pool: WorkerPool, gpus: Collection[int], but: WorkerFacts) -> set[asyncio.Future[Any]]:
    """The ends, still to come, of the other workers that hold memory of these GPUs or soon will."""
    found = (pool.find(each.worker_id) for each in pool.roster.on_gpus(gpus, but=but.worker_id))
    return {worker.lost for worker in found if worker is not None and not worker.lost.done()}
