"""One GPU cell under a lease: worker, attach, run, save, release (design §1, §6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import msgpack
import structlog

from looseleaf.errors import Conflict, InvalidArgument, LooseLeafError, Unavailable
from looseleaf.ids import Version
from looseleaf.protocol import fields
from looseleaf.services.worker_daemon.cell_events import stage_news, unrun
from looseleaf.services.worker_daemon.core import worker_ends
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.core.worker_life import Stage, WorkerFacts
from looseleaf.services.worker_daemon.execution_figures import CellTimes
from looseleaf.services.worker_daemon.execution_log import ExecutionRecord
from looseleaf.services.worker_daemon.execution_losses import FailedCell, fault
from looseleaf.services.worker_daemon.gpu_room import make_way
from looseleaf.services.worker_daemon.journaled_run import JournaledRun
from looseleaf.services.worker_daemon.left_hold import LeftHold
from looseleaf.services.worker_daemon.opening import RENEWED_REASONS
from looseleaf.services.worker_daemon.pool import WorkerPool
from looseleaf.services.worker_daemon.reports import Reporter, RunReports
from looseleaf.services.worker_daemon.run_journal import RunJournal
from looseleaf.services.worker_daemon.running_cell import RunningCell
from looseleaf.services.worker_daemon.unsaved_hold import holder_gone
from looseleaf.services.worker_daemon.worker_process import WorkerProcess
from looseleaf.v1 import scheduler_pb2, types_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb

log = structlog.get_logger()

Message = dict[str, Any]

# A worker that is lost like this before it was given the cell is replaced: nothing of the cell has happened yet.
REPLACED_REASONS = RENEWED_REASONS | {"WORKER_LOST", "ZYGOTE_FAILED"}


@dataclass(frozen=True)
class HostFacts:
    """What an execution says about its host."""

    host_id: str
    device: str
    emulated_delays: bool
    keep_leftovers_s: float = 60.0
    keep_unsaved_s: float = 60.0


class CellExecution:
    """Runs one cell at most once and records all that happens to it.

    Whatever fails, the record has `ended` and `saved`, the lease is finished and the scheduler is told; a failure names
    what state is valid. What the cell left running keeps the lease for a while after `saved` (LeftHold). `finish_lease`
    is called when the GPUs are free. In `journal` the host's next daemon finds the cell if this one is lost meanwhile.
    """

    # It began under an earlier daemon.
    adopted: ClassVar[bool] = False

    def __init__(
        self,
        start: pb.ExecuteStart,
        lease: HeldLease,
        record: ExecutionRecord,
        pool: WorkerPool,
        reporter: Reporter,
        host: HostFacts,
        finish_lease: Callable[[], None],
        journal: RunJournal | None = None,
    ) -> None:
        self.start = start
        self.lease = lease
        self.record = record
        self._pool = pool
        self._reports = RunReports(reporter, lease)
        self._host = host
        self._finish_lease = finish_lease
        self._journaled = JournaledRun(journal, lease)
        self._times = CellTimes(start.elapsed_ms, lease.granted_s)
        self._worker: WorkerProcess | None = None
        self._path = types_pb2.StartPath.Name(lease.path)
        # The worker has the cell: from here on its first statement may have run, whether or not it said so.
        self._handed_over = False
        self._cell: RunningCell | None = None
        self._interrupted = False
        self._cut: LooseLeafError | None = None
        # How long the worker is kept after the cell, as the person has asked.
        self._keep_s = 0.0

    async def run(self) -> None:
        """The whole life of the execution up to the point where its GPU may be released."""
        saved = pb.CellSaved(version=self.start.version)
        state = scheduler_pb2.EXECUTION_STATE_FAILED
        if not self._handed_over:
            self._journaled.begin()
        try:
            await self._run_on_live_worker(saved)
            state = scheduler_pb2.EXECUTION_STATE_SAVED
        except asyncio.CancelledError:
            self._fail(saved, Unavailable("HOST_STOPPED", "the host that ran this cell is being stopped"))
            raise
        except Exception as error:
            known = self._cut or (error if isinstance(error, LooseLeafError) else fault(error))
            if self._worker is not None and known.reason != "UNSAVED_GONE":
                await self._worker.discard()
            state = self._fail(saved, known)
        finally:
            self._journaled.close()
            hold = self._hold
            if hold is None:
                self._finish(saved)
            else:
                self._times.released()
            self._count(saved)
            # Before the scheduler hears of it, so that its next grant of this GPU is not refused here.
            self._finish_lease()
            self._reports.end(state, saved.error_reason, self._times.figures, self._facts)
            last = pb.ExecuteResponse(saved=saved) if hold is None else pb.ExecuteResponse(left=hold.last_news)
            self.record.add(last)

    async def _run_on_live_worker(self, saved: pb.CellSaved) -> None:
        lease, required = self.lease, self.lease.worker_required
        await self._pool.look_at_environment()
        wanted = self._pool.usable(lease.worker_id, lease.session_id, lease.epoch,
            kernel_environment_id=self.start.recipe.environment_id, even_outdated=required,
        )  # fmt: skip
        if wanted is not None and wanted.facts.opened_gpus not in ((), lease.gpus):
            # A process that has opened a GPU cannot change to another one.
            wanted = None
        if required and wanted is None:
            how = self._pool.ended_holders.how_ended(lease.worker_id)
            raise holder_gone(self.start.needed_names, f"the process that kept it {how}")
        try:
            return await self._run_on(wanted, saved)
        except Unavailable as error:
            untouched = not self._handed_over and not self._interrupted and self._cut is None
            if error.reason not in REPLACED_REASONS or not untouched:
                raise
            if required:
                how = error.fields.get("how", "has ended")
                raise holder_gone(self.start.needed_names, f"the process that kept it {how}") from error
            log.warning("worker_replaced", execution=lease.execution_id, reason=error.reason)
        return await self._run_on(None, saved)

    async def _run_on(self, wanted: WorkerProcess | None, saved: pb.CellSaved) -> None:
        lease = self.lease
        await make_way(self._pool, lease, but=wanted)
        wanted_id = wanted.facts.worker_id if wanted is not None else None
        # That it may be used was decided before others made way for it.
        async with self._pool.reserved(
            wanted_id, lease.session_id, lease.epoch, self.start.recipe.imports, self.start.version,
            even_outdated=True,
        ) as worker:
            if worker.facts.opened_gpus not in ((), lease.gpus):
                # While others made way.
                raise Unavailable("DEVICE_NOT_FRESH", "a preparation has opened another GPU; nothing was run")
            self._worker = worker
            if worker is not wanted:
                self._path = "START_PATH_COLD"
            await self._make_ready(worker)
            context = _unpacked(self.start.context)
            self._keep_s = fields.number(context, "keep_s", 0.0)
            if self._cut is not None:
                raise self._cut
            await self._end_on(await self._run_cell(worker, context), saved)

    async def _end_on(self, reply: Message, saved: pb.CellSaved) -> None:
        """What follows the save: the cell's outcome is known, its worker may be kept for what the cell left."""
        cell = self._cell
        assert cell is not None
        cell.take_save(reply, saved, self._host.keep_unsaved_s, self._keep_s)
        self._journaled.close()
        if cell.left:
            # The kernel has the cell's outcome meanwhile.
            saved.left_running = True
            self._finish(saved)
            self.record.add(pb.ExecuteResponse(saved=saved))
            await cell.hold_for_left(self._host.keep_leftovers_s)
        cell.leave()

    def _hear(self, worker: WorkerProcess) -> None:
        """What `worker` says is of the cell from now on."""
        self._cell = RunningCell(
            worker, self.record, self._times, self._reports, self._pool, self._path, self._began, self._cut_off
        )

    def _began(self) -> None:
        if self._interrupted and self._worker is not None:
            self._worker.interrupt()

    @property
    def _facts(self) -> WorkerFacts | None:
        return self._worker.facts if self._worker is not None else None

    @property
    def _hold(self) -> LeftHold | None:
        return self._cell.hold if self._cell is not None else None

    def _stage(self, stage: Stage) -> None:
        self.record.add(stage_news(stage, self._facts, self._times.since_arrival_ms()))

    async def _make_ready(self, worker: WorkerProcess) -> None:
        facts = worker.facts
        if facts.resident_since_s:
            self._times.resident_since(facts.resident_since_s)
            facts.resident_since_s = 0.0
        self._stage(Stage.FORKED)
        ahead_ms = facts.prepare_ms
        needed = self.start.needed_names
        prepared = await self._pool.prepare(worker, self.start.recipe, Version(self.start.version), needed)
        if prepared.not_live:
            raise holder_gone(needed, "what the process has is an older one")
        used = self._path == "START_PATH_PREPARED"
        self._times.prepared(ahead_ms if used else None)
        if facts.prepared_ahead:
            facts.prepared_ahead = False
            self._pool.metrics.prefetched("used" if used else "stale")
        self._stage(Stage.HOST_READY)
        if facts.gpus != self.lease.gpus or facts.prepared_stage is Stage.DEVICE_READY:
            # Also where the data lie there: what waits for Run is loaded now.
            await worker.attach(self.lease.gpus, self._host.device, self._host.emulated_delays)
        facts.stage = Stage.DEVICE_READY
        self._stage(Stage.DEVICE_READY)

    async def _run_cell(self, worker: WorkerProcess, context: Message) -> Message:
        start = self.start
        worker.facts.stage, worker.facts.execution_id = Stage.RUNNING, self.lease.execution_id
        self._hear(worker)
        reconnect = self._journaled.hand_over(start, worker.facts, self._times, self._path, self._keep_s)
        self._handed_over = True
        return await worker.run(
            {
                "reconnect": reconnect,
                "execution_id": start.execution_id,
                "source": start.source,
                "execution_count": start.execution_count,
                "cell_id": start.cell_id,
                "allow_stdin": start.allow_stdin,
                "context": context,
                "save_limit_s": worker.limits.save_s,
            }
        )

    def _fail(self, saved: pb.CellSaved, error: LooseLeafError) -> scheduler_pb2.ExecutionState:
        """Fills in what went wrong; SAVED if the worker had committed this cell before."""
        if self._cell is not None:
            self._cell.tell_news_of_end()
        committed, start = self._committed_version(), Version(self.start.version)
        unanswered = self._worker is not None and (
            self._worker.requests.owner.may_have_committed(self.lease.execution_id)
        )
        failed = FailedCell(start, committed, unanswered, self._handed_over, self._times.ended_s is not None)
        saved.version = committed or start
        saved.error_reason, saved.error_message = error.reason, failed.loss(error)
        return scheduler_pb2.EXECUTION_STATE_SAVED if committed else scheduler_pb2.EXECUTION_STATE_FAILED

    def _committed_version(self) -> Version:
        """The version that this cell's commit made, 0 if it made none."""
        execution_id, version = self._worker.requests.owner.committed if self._worker is not None else ("", Version(0))
        return version if execution_id == self.lease.execution_id else Version(0)

    def _finish(self, saved: pb.CellSaved) -> None:
        if self._times.ended_s is None:
            text = saved.error_message or "the cell did not run"
            for message in unrun(saved.error_reason or "LooseLeafError", text, self.start.execution_count):
                self.record.add(message)
        self._times.finish(saved)
        # The protobuf constructor takes enum values by name.
        saved.MergeFrom(pb.CellSaved(path=self._path))
        saved.gpu_index, saved.host_id = self.lease.gpus[0], self._host.host_id
        if self._worker is not None:
            saved.worker_id, saved.pid = self._worker.facts.worker_id, self._worker.facts.pid

    def _count(self, saved: pb.CellSaved) -> None:
        if self._times.ended_s is not None and not saved.error_reason:
            self._pool.metrics.cell_saved(saved.figures)
        self._pool.metrics.missed(self._cell.misses if self._cell is not None else [])
        self._pool.metrics.gpus_used(saved.figures.gpu_pinned_s * len(self.lease.gpus))

    async def input_reply(self, answer: pb.InputReply) -> None:
        """Hands the person's answer to the cell."""
        if self._worker is not None:
            body = {"value": answer.value, "refused": answer.refused, "question": answer.question}
            await self._worker.send_event("input_reply", body)

    async def comm(self, packed: bytes) -> None:
        """Hands a front end's comm message to the cell. Raises InvalidArgument `COMM_MALFORMED`."""
        try:
            body = msgpack.unpackb(packed)
        except ValueError as error:
            raise InvalidArgument("COMM_MALFORMED", "a comm message for this cell cannot be read") from error
        if self._worker is not None:
            await self._worker.send_event("comm", body)

    def release_left(self) -> None:
        """The session's next cell is on its way: it need not wait for what this one left running."""
        if self._hold is not None:
            self._hold.end(pb.LEFT_STATE_RELEASED)

    def interrupt(self, kill: bool) -> None:
        """KeyboardInterrupt in the cell, or the end of its worker; before the cell runs an interrupt is remembered."""
        if kill:
            self._cut_off(Conflict("WORKER_LOST", "the worker process of this cell was killed as the person asked"))
        elif self._times.ended_s is None:
            self._interrupted = True
            if self._worker is not None and self._times.started_s is not None:
                self._worker.interrupt()

    def end(self, why: LooseLeafError) -> None:
        """Ends the cell for a reason that is not its own; one that has ended already is saved all the same."""
        if self._hold is not None:
            self._hold.end(pb.LEFT_STATE_LIMIT)
        elif self._times.ended_s is None:
            self._cut_off(why)

    def _cut_off(self, why: LooseLeafError) -> None:
        self._cut = self._cut or why
        if self._worker is not None:
            self._worker.facts.end = worker_ends.cut_off(self._cut.message)
            self._worker.kill()


def _unpacked(context: bytes) -> Message:
    """The kernel's context map. Raises InvalidArgument `CONTEXT_MALFORMED`."""
    try:
        found = msgpack.unpackb(context) if context else {}
    except ValueError as error:
        raise InvalidArgument("CONTEXT_MALFORMED", "the kernel's context of this cell cannot be read") from error
    return fields.mapping({"t": "start", "context": found}, "context")
