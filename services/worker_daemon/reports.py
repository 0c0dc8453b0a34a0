"""Tells the scheduler how executions go, in order and until it has heard (design §6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from looseleaf.errors import LooseLeafError
from looseleaf.ids import new_request_id
from looseleaf.v1 import scheduler_pb2 as pb

log = structlog.get_logger()

REPORTS_WAITING_MAX = 1024
RETRY_DELAY_S = 0.5
RETRIED_CODES = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})

Send = Callable[[pb.ReportExecutionRequest], Awaitable[object]]


class Reporter:
    """A bounded queue of reports with one sender.

    A report that the scheduler cannot take now is sent again, so nothing is lost while it restarts; one that it
    refuses is logged and dropped. `flushed` resolves when everything queued so far was heard.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._queue: asyncio.Queue[pb.ReportExecutionRequest] = asyncio.Queue(REPORTS_WAITING_MAX)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to send."""
        self._task = asyncio.create_task(self._run())

    async def report(self, request: pb.ReportExecutionRequest) -> None:
        """Queues a report; waits while the queue is full."""
        request.request_id = new_request_id()
        await self._queue.put(request)

    def report_soon(self, request: pb.ReportExecutionRequest) -> None:
        """Queues a report that may be dropped when the queue is full: progress, never an outcome."""
        request.request_id = new_request_id()
        try:
            self._queue.put_nowait(request)
        except asyncio.QueueFull:
            log.warning("progress_report_dropped", execution=request.execution_id)

    async def flushed(self) -> None:
        """Returns when all reports queued so far were heard or refused."""
        await self._queue.join()

    async def _run(self) -> None:
        while True:
            request = await self._queue.get()
            try:
                await self._deliver(request)
            finally:
                self._queue.task_done()

    async def _deliver(self, request: pb.ReportExecutionRequest) -> None:
        while True:
            try:
                await self._send(request)
                return
            except LooseLeafError as error:
                if error.code not in RETRIED_CODES:
                    log.warning("report_refused", reason=error.reason, execution=request.execution_id)
                    return
            await asyncio.sleep(RETRY_DELAY_S)

    async def stop(self) -> None:
        """Stops sending; what was not heard is known from the next heartbeat."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
