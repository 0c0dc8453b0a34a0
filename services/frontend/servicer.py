"""The gRPC face of the recipe frontend: recipes from edits, preparations and runs passed on to the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from looseleaf.clock import Clock
from looseleaf.errors import PreconditionFailed, Unavailable
from looseleaf.ids import SessionId, check_id
from looseleaf.logs import get_logger
from looseleaf.recipe import DeviceLabel, Recipe
from looseleaf.recipe.label import CERTAIN
from looseleaf.rpc.client import NO_DEADLINE
from looseleaf.rpc.recipes import recipe_to_proto, run_from_proto
from looseleaf.services.frontend.core.facts_cache import StateFacts
from looseleaf.services.frontend.metrics import FrontendMetrics
from looseleaf.services.frontend.recipes import RecipeMaker
from looseleaf.v1 import frontend_pb2, scheduler_pb2
from looseleaf.v1.frontend_pb2_grpc import FrontendServiceServicer

# A preparation may import large packages and read large state.
PREPARATION_TIMEOUT_S: Final = 120.0
# How long a cell that wants a GPU waits for a scheduler that is being restarted.
REJOIN_S: Final = 20.0
REJOIN_DELAY_S: Final = 0.2

_RESTARTING: Final = frozenset({"SCHEDULER_DOWN", "SCHEDULER_STOPPING"})

_SUPERSEDED: Final = "A newer edit of this session arrived."

log = get_logger()


def _certain(request: frontend_pb2.PrepareCellRequest, recipe: Recipe) -> bool:
    """Whether the cell is worth a device before Run: somebody edits it, it parses, and its label is sure.

    Focus and guesses go no further than host memory (research/provisioning.md §3: stages by certainty).
    """
    return request.edited and not request.predicted and not recipe.partial and recipe.confidence >= CERTAIN


class FrontendServicer(FrontendServiceServicer):
    """See proto/looseleaf/v1/frontend.proto for what each call promises."""

    def __init__(self, maker: RecipeMaker, scheduler: Any, clock: Clock, metrics: FrontendMetrics) -> None:
        self._maker = maker
        self._metrics = metrics
        self._scheduler = scheduler
        self._clock = clock
        # The preparation that each session waits for; a newer edit ends the wait.
        self._preparing: dict[SessionId, asyncio.Future[None]] = {}

    async def RecordRuns(
        self, request: frontend_pb2.RecordRunsRequest, context: Any
    ) -> frontend_pb2.RecordRunsResponse:
        """Idempotent by sequence."""
        session_id = SessionId(check_id("session", request.session_id))
        next_sequence = await self._maker.record(session_id, [run_from_proto(run) for run in request.runs])
        return frontend_pb2.RecordRunsResponse(next_sequence=next_sequence)

    async def DeriveRecipe(
        self, request: frontend_pb2.DeriveRecipeRequest, context: Any
    ) -> frontend_pb2.DeriveRecipeResponse:
        """Changes nothing."""
        recipe, _ = await self._edited(request.cell)
        return frontend_pb2.DeriveRecipeResponse(recipe=recipe_to_proto(recipe))

    async def PrepareCell(
        self, request: frontend_pb2.PrepareCellRequest, context: Any
    ) -> frontend_pb2.PrepareCellResponse:
        """Newest edit wins; a repeat with the same number and request id joins its preparation at the scheduler."""
        arrived_s = self._clock.monotonic_s()
        session_id = SessionId(check_id("session", request.cell.session_id))
        if not await self._maker.admit_edit(session_id, request.edit_sequence, arrived_s):
            return frontend_pb2.PrepareCellResponse(skipped_reason=_SUPERSEDED)
        recipe, state = await self._edited(request.cell)
        response = frontend_pb2.PrepareCellResponse(recipe=recipe_to_proto(recipe))
        if recipe.label is DeviceLabel.CPU:
            response.skipped_reason = f"A CPU cell needs no worker: {recipe.reason}"
            return response
        if not await self._maker.is_newest_edit(session_id, request.edit_sequence):
            response.skipped_reason = _SUPERSEDED
            return response
        self._metrics.edit_signal.observe(self._clock.monotonic_s() - arrived_s)
        prepared = await self._prepared(session_id, request, recipe, state)
        if prepared is None:
            response.skipped_reason = _SUPERSEDED
        else:
            response.worker_id = prepared.worker_id
            response.prepare_ms = prepared.prepare_ms
            response.skipped_reason = prepared.skipped_reason
        return response

    async def SubmitCell(self, request: frontend_pb2.SubmitCellRequest, context: Any) -> None:
        """Idempotent by execution id at the scheduler; the caller's end cancels the wait for a GPU."""
        check_id("execution", request.execution_id)
        session_id = SessionId(check_id("session", request.cell.session_id))
        self._end_wait(session_id)
        state = await self._maker.newest(session_id, at_least=request.version)
        if request.epoch < state.epoch:
            text = "Another owner has taken this session over; this kernel's cell was not run."
            raise PreconditionFailed("STALE_EPOCH", text, epoch=state.epoch)
        recipe = await self._maker.derive(request.cell, state, editing=False, for_gpu=True)
        message = recipe_to_proto(recipe)
        await context.write(frontend_pb2.SubmitCellResponse(recipe=message))
        run = scheduler_pb2.RequestRunRequest(
            execution_id=request.execution_id,
            session_id=session_id,
            epoch=request.epoch,
            recipe=message,
            priority=request.priority,
            needed_worker_id=request.needed_worker_id,
            needed_names=request.needed_names,
            tenant=request.cell.tenant,
        )
        async with aclosing(self._news(run)) as stream:
            # To the stream's end: leaving before it would tell the scheduler that nobody wants the lease.
            async for news in stream:
                if news.WhichOneof("news") == "lease":
                    await context.write(frontend_pb2.SubmitCellResponse(lease=news.lease))
                else:
                    await context.write(frontend_pb2.SubmitCellResponse(queue=news.queue))

    async def _news(
        self, run: scheduler_pb2.RequestRunRequest
    ) -> AsyncGenerator[scheduler_pb2.RequestRunResponse, None]:
        """The run's news up to its lease; it outlives a restart of the scheduler: a repeat is the same execution."""
        lost_s: float | None = None
        while True:
            try:
                async with self._scheduler.RequestRun(run, timeout_s=NO_DEADLINE) as stream:
                    async for news in stream:
                        lost_s = None
                        yield news
                return
            except Unavailable as error:
                now_s = self._clock.monotonic_s()
                lost_s = now_s if lost_s is None else lost_s
                if error.reason not in _RESTARTING or now_s - lost_s >= REJOIN_S:
                    raise
            log.info("run_rejoined", execution=run.execution_id)
            await asyncio.sleep(REJOIN_DELAY_S)

    async def _edited(self, cell: frontend_pb2.CellText) -> tuple[Recipe, StateFacts]:
        session_id = SessionId(check_id("session", cell.session_id))
        state = await self._maker.newest(session_id)
        return await self._maker.derive(cell, state, editing=True), state

    async def _prepared(
        self, session_id: SessionId, request: frontend_pb2.PrepareCellRequest, recipe: Recipe, state: StateFacts
    ) -> scheduler_pb2.RequestPreparationResponse | None:
        """The scheduler's answer, or None if a newer edit or a run came first."""
        self._end_wait(session_id)
        ended = self._preparing[session_id] = asyncio.get_running_loop().create_future()
        order = scheduler_pb2.RequestPreparationRequest(
            request_id=request.request_id, session_id=session_id, epoch=state.epoch, recipe=recipe_to_proto(recipe),
            tenant=request.cell.tenant, predicted=request.predicted, certain=_certain(request, recipe),
        )
        call = asyncio.ensure_future(self._scheduler.RequestPreparation(order, timeout_s=PREPARATION_TIMEOUT_S))
        try:
            await asyncio.wait({call, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                log.info("preparation_superseded", cell=recipe.cell_id)
                return None
            answer: scheduler_pb2.RequestPreparationResponse = call.result()
            return answer
        finally:
            call.cancel()
            if self._preparing.get(session_id) is ended:
                del self._preparing[session_id]

    def _end_wait(self, session_id: SessionId) -> None:
        """A newer edit or a run makes the answer to an older edit worthless; what was prepared stays."""
        waiting = self._preparing.pop(session_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
