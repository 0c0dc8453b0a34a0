"""One GPU cell under a lease: worker, attach, run, save, release (design §1, §6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import structlog

from looseleaf.errors import LooseLeafError, Unavailable
from looseleaf.ids import Version, WorkerId
from looseleaf.protocol import fields
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.execution_log import ExecutionRecord
from looseleaf.services.worker_daemon.pool import WorkerPool
from looseleaf.services.worker_daemon.reports import Reporter
from looseleaf.services.worker_daemon.wire import worker_state
from looseleaf.services.worker_daemon.worker_process import WorkerProcess
from looseleaf.v1 import scheduler_pb2, types_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb

log = structlog.get_logger()

Message = dict[str, Any]


@dataclass(frozen=True)
class HostFacts:
    """What an execution says about its host."""

    host_id: str
    device: str
    emulated_delays: bool


class CellExecution:
    """Runs one cell at most once and records all that happens to it.

    The record always ends with `ended` and `saved`, whatever fails; a failure names what state is valid.
    """

    def __init__(
        self,
        start: pb.ExecuteStart,
        lease: HeldLease,
        record: ExecutionRecord,
        pool: WorkerPool,
        reporter: Reporter,
        host: HostFacts,
        finish_lease: Callable[[], None],
    ) -> None:
        self.start = start
        self.lease = lease
        self.record = record
        self._pool = pool
        self._reporter = reporter
        self._host = host
        self._finish_lease = finish_lease
        self._began_s = time.monotonic()
        self._worker: WorkerProcess | None = None
        self._path = types_pb2.StartPath.Name(lease.path)
        self._figures = scheduler_pb2.ExecutionFigures()
        self._ended = False
        self._started_s: float | None = None
        self._ended_s: float | None = None
        self._first_touch_s: float | None = None
        self._interrupted = False

    async def run(self) -> None:
        """The whole life of the execution up to the point where its GPU may be released."""
        state = scheduler_pb2.EXECUTION_STATE_FAILED
        saved = pb.CellSaved(version=self.start.version)
        try:
            worker, reply = await self._run_on_live_worker()
            self._take_save(worker, reply, saved)
            state = scheduler_pb2.EXECUTION_STATE_SAVED
        except LooseLeafError as error:
            committed = self._committed_version()
            saved.version = committed or self.start.version
            if committed:
                state = scheduler_pb2.EXECUTION_STATE_SAVED
            saved.error_reason, saved.error_message = error.reason, self._loss_text(error, saved.version)
            await self._drop_worker()
        self._finish(saved)
        # Before the scheduler hears of it, so that its next grant of this GPU is not refused here.
        self._finish_lease()
        await self._report(state, release=True, reason=saved.error_reason)
        self.record.add(pb.ExecuteResponse(saved=saved))

    async def _run_on_live_worker(self) -> tuple[WorkerProcess, Message]:
        """A worker that died before the first statement is replaced once: nothing of the cell has happened yet."""
        try:
            worker = await self._ready_worker(self.lease.worker_id)
            return worker, await self._run_cell(worker)
        except Unavailable as error:
            if error.reason != "WORKER_LOST" or self._started_s is not None or self._interrupted:
                raise
            log.warning("worker_replaced", execution=self.lease.execution_id, why=error.message)
        self._path = "START_PATH_COLD"
        worker = await self._ready_worker(None)
        return worker, await self._run_cell(worker)

    async def _ready_worker(self, wanted: WorkerId | None) -> WorkerProcess:
        start, lease = self.start, self.lease
        await self._pool.make_way(lease.gpus, lease.session_id)
        alive = wanted is not None and self._pool.get(wanted) is not None
        if not alive:
            self._path = "START_PATH_COLD"
        worker = self._worker = await self._pool.obtain(wanted, lease.session_id, lease.epoch)
        facts = worker.facts
        if facts.resident_since_s:
            self._figures.gpu_resident_s = time.monotonic() - facts.resident_since_s
            facts.resident_since_s = 0.0
        self._stage(Stage.FORKED)
        ready_before_run = self._path == "START_PATH_PREPARED"
        ahead_ms = facts.prepare_ms
        await self._pool.prepare(worker, start.recipe, Version(start.version))
        self._figures.prepare_ms = ahead_ms if ready_before_run else (time.monotonic() - self._began_s) * 1000
        self._stage(Stage.HOST_READY)
        if facts.gpus != lease.gpus:
            await worker.attach(lease.gpus, self._host.device, self._host.emulated_delays)
        facts.stage = Stage.DEVICE_READY
        self._stage(Stage.DEVICE_READY)
        return worker

    async def _run_cell(self, worker: WorkerProcess) -> Message:
        start = self.start
        facts = worker.facts
        async with worker.lock:
            facts.stage, facts.execution_id = Stage.RUNNING, self.lease.execution_id
            worker.requests.owner.execution_id = self.lease.execution_id
            worker.requests.owner.committed_version = Version(0)
            worker.on_message = self._on_message
            try:
                return await worker.run(
                    {
                        "execution_id": start.execution_id,
                        "source": start.source,
                        "execution_count": start.execution_count,
                        "cell_id": start.cell_id,
                        "allow_stdin": start.allow_stdin,
                        "context": msgpack.unpackb(start.context) if start.context else {},
                    }
                )
            finally:
                worker.on_message = None

    def _on_message(self, message: Message) -> None:
        kind = message.get("t")
        if kind == "output":
            self.record.add(pb.ExecuteResponse(output=msgpack.packb(message["message"])))
        elif kind == "started":
            self._started_s = time.monotonic()
            self._figures.start_ms = self.start.elapsed_ms + (self._started_s - self._began_s) * 1000
            self._stage(Stage.RUNNING)
            self._queue_report(scheduler_pb2.EXECUTION_STATE_STARTED)
            if self._interrupted and self._worker is not None:
                self._worker.interrupt()
        elif kind == "input_request":
            self.record.add(
                pb.ExecuteResponse(
                    input_request=pb.InputRequest(
                        prompt=fields.text(message, "prompt", ""), password=fields.boolean(message, "password", False)
                    )
                )
            )
        elif kind == "ended":
            self._cell_ended(message)

    def _cell_ended(self, message: Message) -> None:
        self._ended, self._ended_s = True, time.monotonic()
        self._figures.run_s = fields.number(message, "run_s", 0.0)
        if isinstance(touch := message.get("first_touch_s"), float):
            # The worker counts from its first statement.
            self._first_touch_s = (self._started_s or self._began_s) + touch
        self.record.add(
            pb.ExecuteResponse(
                ended=pb.CellEnded(reply=msgpack.packb(fields.mapping(message, "reply")), run_s=self._figures.run_s)
            )
        )
        if self._worker is not None:
            self._worker.facts.stage = Stage.SAVING
        self._stage(Stage.SAVING)
        self._queue_report(scheduler_pb2.EXECUTION_STATE_FINISHED)

    def _take_save(self, worker: WorkerProcess, reply: Message, saved: pb.CellSaved) -> None:
        facts = worker.facts
        saved.version = facts.version = Version(fields.integer(reply, "version"))
        self._figures.dirty_regions = fields.integer(reply, "dirty_regions", 0)
        self._figures.total_regions = fields.integer(reply, "total_regions", 0)
        self._figures.bytes_moved = fields.integer(reply, "bytes_moved", 0)
        facts.resident_bytes = fields.integer(reply, "resident_bytes", 0)
        for item in fields.sequence(reply, "unsaved", []):
            saved.unsaved.add(name=str(item["name"]), reason=str(item["reason"]), path=str(item["path"]))
        facts.stage, facts.execution_id = Stage.COMPLETED, self.lease.execution_id
        facts.prepared_source_hash = ""
        facts.resident_since_s = time.monotonic()
        self._pool.done(worker)

    def _finish(self, saved: pb.CellSaved) -> None:
        now_s = time.monotonic()
        if not self._ended:
            text = saved.error_message or "the cell did not run"
            error = {"ename": saved.error_reason or "LooseLeafError", "evalue": text, "traceback": [text]}
            self.record.add(pb.ExecuteResponse(output=msgpack.packb({"type": "error", **error})))
            reply = {"status": "error", **error, "execution_count": self.start.execution_count}
            self.record.add(pb.ExecuteResponse(ended=pb.CellEnded(reply=msgpack.packb(reply), run_s=0.0)))
        if self._ended_s is not None:
            self._figures.save_ms = (now_s - self._ended_s) * 1000
        if self._first_touch_s is not None:
            self._figures.gpu_pinned_s = max(0.0, now_s - self._first_touch_s)
        self._figures.gpu_held_s = now_s - self.lease.granted_s
        saved.figures.CopyFrom(self._figures)
        # The protobuf constructor takes enum values by name.
        saved.MergeFrom(pb.CellSaved(path=self._path))
        saved.gpu_index, saved.host_id = self.lease.gpus[0], self._host.host_id
        if self._worker is not None:
            saved.worker_id, saved.pid = self._worker.facts.worker_id, self._worker.facts.pid

    def _committed_version(self) -> int:
        return self._worker.requests.owner.committed_version if self._worker is not None else 0

    def _loss_text(self, error: LooseLeafError, version: int) -> str:
        if self._committed_version():
            return f"{error.message or error.reason}; its changes had been saved already (version {version})"
        when = (
            "while its changes were being saved"
            if self._ended
            else ("while the cell ran" if self._started_s is not None else "before the cell ran")
        )
        lost = "this cell's changes are lost" if self._started_s is not None else "nothing was run"
        valid = f"the variables are those of version {version}"
        return f"{error.message or error.reason} ({when}); {lost}, {valid}; run the cell again"

    async def _drop_worker(self) -> None:
        if self._worker is not None:
            await self._pool.discard(self._worker)

    def _stage(self, stage: Stage) -> None:
        facts = self._worker.facts if self._worker is not None else None
        self.record.add(
            pb.ExecuteResponse(
                stage=pb.StageNews(
                    stage=scheduler_pb2.WorkerStage.Name(int(stage)),
                    worker_id=facts.worker_id if facts else "",
                    pid=facts.pid if facts else 0,
                    elapsed_ms=(time.monotonic() - self._began_s) * 1000,
                )
            )
        )

    def _queue_report(self, state: scheduler_pb2.ExecutionState) -> None:
        self._reporter.report_soon(self._request(state))

    async def _report(self, state: scheduler_pb2.ExecutionState, *, release: bool, reason: str) -> None:
        request = self._request(state)
        request.release, request.reason = release, reason
        request.figures.CopyFrom(self._figures)
        if self._worker is not None:
            request.worker.CopyFrom(worker_state(self._worker.facts))
        await self._reporter.report(request)

    def _request(self, state: scheduler_pb2.ExecutionState) -> scheduler_pb2.ReportExecutionRequest:
        return scheduler_pb2.ReportExecutionRequest(
            execution_id=self.lease.execution_id, lease_id=self.lease.lease_id, state=state
        )

    async def input_reply(self, value: str, refused: bool) -> None:
        """Hands the person's answer to the cell."""
        if self._worker is not None:
            await self._worker.send_event("input_reply", {"value": value, "refused": refused})

    def interrupt(self, kill: bool) -> None:
        """KeyboardInterrupt in the cell, or the end of its worker; before the cell runs it is remembered."""
        worker = self._worker
        if worker is not None and kill:
            worker.kill()
        elif worker is not None and self._started_s is not None and not self._ended:
            worker.interrupt()
        elif not self._ended:
            self._interrupted = True
