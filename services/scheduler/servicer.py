"""The gRPC face: messages to events, answers to messages; decides nothing."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Final

from looseleaf.errors import Internal, NotFound
from looseleaf.ids import Epoch, LeaseId
from looseleaf.services.scheduler.conversion import (
    check_execution,
    check_session,
    execution_message,
    figures_facts,
    host_report,
    lease_message,
    need_facts,
    pool_message,
    recipe_facts,
    reported_state,
    worker_facts,
)
from looseleaf.services.scheduler.core.actions import AnswerHeartbeat, AnswerPreparation, NotifyLease
from looseleaf.services.scheduler.core.events import (
    ExecutionReported,
    HeartbeatReceived,
    PreparationRequested,
    RunRequested,
)
from looseleaf.services.scheduler.driver import Driver
from looseleaf.v1 import frontend_pb2, scheduler_pb2
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceServicer

# Runs of each kind that one answer lists.
LISTED_MAX: Final = 1_000


class SchedulerServicer(SchedulerServiceServicer):
    """See proto/looseleaf/v1/scheduler.proto for what each call promises."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def Heartbeat(self, request: scheduler_pb2.HeartbeatRequest, context: Any) -> scheduler_pb2.HeartbeatResponse:
        """Idempotent by nature: a snapshot replaces the one before."""
        answer = await self._driver.ask(HeartbeatReceived(self._driver.new_request_id(), host_report(request)))
        if not isinstance(answer, AnswerHeartbeat):
            raise Internal("BUG", "A heartbeat got another call's answer.")
        return scheduler_pb2.HeartbeatResponse(
            renewed_lease_ids=answer.renewed, unknown_lease_ids=answer.unknown, retiring=answer.retiring)

    async def RequestRun(self, request: scheduler_pb2.RequestRunRequest, context: Any) -> None:
        """Idempotent by execution id: a repeat joins. The call's end before the lease cancels the caller's interest."""
        event = RunRequested(
            self._driver.new_request_id(), check_execution(request.execution_id), check_session(request.session_id),
            Epoch(request.epoch), recipe_facts(request.recipe), request.priority or "interactive", need_facts(request),
            request.tenant,
        )
        async with aclosing(self._driver.run_news(event)) as news:
            async for item in news:
                if isinstance(item, NotifyLease):
                    await context.write(scheduler_pb2.RequestRunResponse(lease=lease_message(item.lease)))
                else:
                    queue = frontend_pb2.QueueNews(
                        position=item.position, reason=item.reason, estimated_s=item.estimated_s or 0.0)
                    await context.write(scheduler_pb2.RequestRunResponse(queue=queue))

    async def RequestPreparation(
        self, request: scheduler_pb2.RequestPreparationRequest, context: Any,
    ) -> scheduler_pb2.RequestPreparationResponse:
        """A repeat joins the prepare that is under way, or finds it done."""
        event = PreparationRequested(
            self._driver.new_request_id(), check_session(request.session_id), Epoch(request.epoch),
            recipe_facts(request.recipe), request.predicted, request.certain, tenant=request.tenant,
        )
        answer = await self._driver.ask(event, request.recipe)
        if not isinstance(answer, AnswerPreparation):
            raise Internal("BUG", "A preparation got another call's answer.")
        return scheduler_pb2.RequestPreparationResponse(
            worker_id=answer.worker_id, host_id=answer.host_id, prepare_ms=answer.prepare_ms,
            skipped_reason=answer.skipped_reason,
        )

    async def ReportExecution(
        self, request: scheduler_pb2.ReportExecutionRequest, context: Any,
    ) -> scheduler_pb2.ReportExecutionResponse:
        """Idempotent by nature: an execution moves forward only."""
        await self._driver.ask(ExecutionReported(
            self._driver.new_request_id(), check_execution(request.execution_id), LeaseId(request.lease_id),
            reported_state(request.state), request.reason, request.release,
            figures_facts(request.figures) if request.HasField("figures") else None,
            worker_facts(request.worker) if request.HasField("worker") else None,
        ))
        return scheduler_pb2.ReportExecutionResponse()

    async def GetExecution(
        self, request: scheduler_pb2.GetExecutionRequest, context: Any,
    ) -> scheduler_pb2.GetExecutionResponse:
        """What the journal holds."""
        record = self._driver.scheduler.execution(check_execution(request.execution_id))
        if record is None:
            raise NotFound("EXECUTION_UNKNOWN", "The journal does not hold this execution (any more).")
        return execution_message(record)

    async def GetPool(self, request: scheduler_pb2.GetPoolRequest, context: Any) -> scheduler_pb2.GetPoolResponse:
        """The pool as it stands now; at most LISTED_MAX of the runs that wait, and of those that ended."""
        driver = self._driver
        queue_max, ended_max = min(request.queue_max, LISTED_MAX), min(request.ended_max, LISTED_MAX)
        return pool_message(driver.scheduler.pool(driver.now_s(), queue_max, ended_max))
