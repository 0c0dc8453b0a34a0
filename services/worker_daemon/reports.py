"""Tells the scheduler how executions go, in order and until it has heard (design §6)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from looseleaf.errors import LooseLeafError
from looseleaf.ids import new_request_id
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.core.worker_life import Stage, WorkerFacts
from looseleaf.services.worker_daemon.wire import worker_state
from looseleaf.v1 import scheduler_pb2 as pb

log = structlog.get_logger()

# Progress that waits; outcomes come on top, one for each lease.
PROGRESS_WAITING_MAX = 1024
RETRY_DELAY_S = 0.5
RETRIED_CODES = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
STOP_LIMIT_S = 3.0

Send = Callable[[pb.ReportExecutionRequest], Awaitable[None]]


class Reporter:
    """A queue of reports with one sender.

    A report that the scheduler cannot take now is sent again, so nothing is lost while it restarts; one that it
    refuses is logged and dropped. `ended(report)` follows when an outcome was heard or dropped.
    """

    def __init__(self, send: Send, ended: Callable[[pb.ReportExecutionRequest], None]) -> None:
        self._send = send
        self._ended = ended
        self._queue: asyncio.Queue[pb.ReportExecutionRequest] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to send."""
        self._task = asyncio.create_task(self._run())

    def report_end(self, request: pb.ReportExecutionRequest) -> None:
        """Queues an execution's outcome."""
        self._put(request)

    def report_progress(self, request: pb.ReportExecutionRequest) -> None:
        """Queues what may be dropped when too much waits."""
        if self._queue.qsize() < PROGRESS_WAITING_MAX:
            self._put(request)
        else:
            log.warning("progress_report_dropped", execution=request.execution_id)

    def _put(self, request: pb.ReportExecutionRequest) -> None:
        request.request_id = new_request_id()
        self._queue.put_nowait(request)

    async def flushed(self) -> None:
        """Returns when all reports queued so far were heard or refused."""
        await self._queue.join()

    async def _run(self) -> None:
        while True:
            request = await self._queue.get()
            try:
                await self._deliver(request)
            except Exception:
                # The scheduler learns it from the heartbeats; the next report must not wait for the cure of this one.
                log.exception("report_failed", execution=request.execution_id)
            if request.release:
                self._ended(request)
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
        """Sends what it can within `STOP_LIMIT_S`; the rest is learned from the host's next heartbeat."""
        if self._task is None:
            return
        try:
            await asyncio.wait_for(self.flushed(), STOP_LIMIT_S)
        except TimeoutError:
            log.warning("reports_not_sent", count=self._queue.qsize())
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class RunReports:
    """What is reported of one execution."""

    def __init__(self, reporter: Reporter, lease: HeldLease) -> None:
        self._reporter = reporter
        self._lease = lease

    def progress(self, state: pb.ExecutionState) -> None:
        """It has come to `state`."""
        self._reporter.report_progress(self._request(state))

    def end(
        self, state: pb.ExecutionState, reason: str, figures: pb.ExecutionFigures, worker: WorkerFacts | None
    ) -> None:
        """Its outcome; the lease ends with it. `worker`: whom it ran on, if it came so far."""
        request = self._request(state)
        request.release, request.reason = True, reason
        request.figures.CopyFrom(figures)
        if worker is not None:
            request.worker.CopyFrom(worker_state(worker, time.monotonic()))
        self._reporter.report_end(request)

    def lost(self, worker: WorkerFacts) -> None:
        """It was lost with the last daemon, whose worker has ended since; nobody can tell how far it came."""
        gone = replace(worker, stage=Stage.GONE)
        self.end(pb.EXECUTION_STATE_INDETERMINATE, "DAEMON_RESTARTED", pb.ExecutionFigures(), gone)

    def _request(self, state: pb.ExecutionState) -> pb.ReportExecutionRequest:
        return pb.ReportExecutionRequest(
            execution_id=self._lease.execution_id, lease_id=self._lease.lease_id, state=state
        )
