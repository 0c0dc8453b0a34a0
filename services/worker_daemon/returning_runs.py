"""The last daemon's cells from this one's start until it is known which of them go on here (design §5).

The host serves meanwhile: a worker that stays silent keeps its own GPU, not the host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from looseleaf.errors import LooseLeafError
from looseleaf.ids import Epoch, ExecutionId, SessionId
from looseleaf.services.worker_daemon.adoption import Adoption, Found, HeadOf, Lost
from looseleaf.services.worker_daemon.core.adoption import OpenRun
from looseleaf.services.worker_daemon.core.lease_table import LeaseTable
from looseleaf.services.worker_daemon.core.worker_life import WorkerFacts

log = structlog.get_logger()

FENCED = "STALE_EPOCH"


class ReturningRuns:
    """Awaited cells: their leases are held, heartbeats tell them as running, and who asks for one waits.

    `changed` is called when a heartbeat would say something new.
    """

    def __init__(self, adoption: Adoption, leases: LeaseTable, changed: Callable[[], None]) -> None:
        self._adoption = adoption
        self._leases = leases
        self._changed = changed
        self._awaited: dict[ExecutionId, OpenRun] = {}
        self._known: dict[ExecutionId, asyncio.Event] = {}
        self._fences: dict[SessionId, Epoch] = {}

    def begin(self) -> None:
        """Call it once the adoption has begun. From here on nobody gets the GPUs of these cells."""
        for run in self._adoption.awaited:
            execution_id = run.lease.execution_id
            self._awaited[execution_id], self._known[execution_id] = run, asyncio.Event()
            try:
                self._leases.adopt(run.lease)
            except LooseLeafError as error:
                # Such as on a host that has fewer GPUs than its last daemon had.
                self._adoption.refuse(run, error.reason)

    def facts(self) -> list[WorkerFacts]:
        """The workers, as the last daemon knew them.

        They count neither to `workers_max`, since none of them could make room, nor to the memory of virtual GPUs,
        since nobody has told what they hold; both count them once they are let in.
        """
        return [run.facts() for run in self._awaited.values()]

    async def known(self, execution_id: ExecutionId) -> None:
        """Returns when it is known whether the cell goes on here; at once if it is not awaited."""
        if (event := self._known.get(execution_id)) is not None:
            await event.wait()

    async def all_known(self) -> None:
        """Returns when no cell is awaited any more."""
        while self._known:
            await next(iter(self._known.values())).wait()

    def fence(self, session_id: SessionId, epoch: Epoch) -> None:
        """The session has a new owner: none of its cells goes on here under an earlier epoch."""
        for run in self._awaited.values():
            if run.lease.session_id == session_id and run.lease.epoch < epoch:
                self._fences[session_id] = max(epoch, self._fences.get(session_id, epoch))
                self._adoption.refuse(run, FENCED)

    async def settle(
        self,
        head_of: HeadOf,
        adopt: Callable[[Found], Awaitable[None]],
        fence: Callable[[SessionId, Epoch], None],
        lost: Callable[[OpenRun], None],
    ) -> None:
        """Lets in whom may go on, by `adopt`, which raises a LooseLeafError for whom it does not take.

        `fence`: as the method, of cells that were let in: a new owner may come between an adoption's steps. `lost` is
        told of a cell that does not go on when its worker has ended, and releases its lease. Until then the GPU stays
        leased, even where the worker hangs and nobody waits for it any more.
        """

        async def take(run: OpenRun, found: Found | Lost) -> None:
            ended = found if isinstance(found, Lost) else await self._adopted(found, adopt)
            if ended is not None:
                await self._adoption.give_up(run, ended, partial(self._is_known, run))
                self._leases.finish(run.lease.lease_id)
                lost(run)
            elif (epoch := self._fences.get(run.lease.session_id)) is not None:
                fence(run.lease.session_id, epoch)
            del self._awaited[run.lease.execution_id]
            self._is_known(run)
            self._changed()

        await self._adoption.settle(head_of, take)

    def _is_known(self, run: OpenRun) -> None:
        if (event := self._known.pop(run.lease.execution_id, None)) is not None:
            event.set()

    async def _adopted(self, found: Found, adopt: Callable[[Found], Awaitable[None]]) -> Lost | None:
        try:
            await adopt(found)
        except LooseLeafError as error:
            found.channel.close()
            return Lost(found.process, error.reason)
        except BaseException:
            # The worker looks for the next daemon.
            found.channel.close()
            raise
        return None
