"""One GPU cell under a lease: worker, attach, run, save, release (design §1, §6)."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgpack
import structlog

from looseleaf.errors import Conflict, Internal, InvalidArgument, LooseLeafError, Timeout, Unavailable
from looseleaf.ids import Version
from looseleaf.protocol import fields
from looseleaf.services.worker_daemon.cell_events import response_of, worker_event
from looseleaf.services.worker_daemon.core import worker_ends
from looseleaf.services.worker_daemon.core.adoption import OpenRun
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.execution_figures import CellTimes, misses
from looseleaf.services.worker_daemon.execution_log import ExecutionRecord
from looseleaf.services.worker_daemon.gpu_room import make_way
from looseleaf.services.worker_daemon.left_hold import LeftHold, left_items
from looseleaf.services.worker_daemon.opening import RENEWED_REASONS
from looseleaf.services.worker_daemon.pool import WorkerPool
from looseleaf.services.worker_daemon.process_stat import process_ticks
from looseleaf.services.worker_daemon.reports import Reporter
from looseleaf.services.worker_daemon.run_journal import RunJournal
from looseleaf.services.worker_daemon.unsaved_hold import held_up, holder_gone, take_unsaved, waits_for_room
from looseleaf.services.worker_daemon.wire import worker_state
from looseleaf.services.worker_daemon.worker_process import WorkerProcess
from looseleaf.v1 import scheduler_pb2, types_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb

# torch's error, as the worker names it.
OUT_OF_MEMORY: Final = "OutOfMemoryError"
SPOILED_NOTE: Final = (
    "LooseLeaf: this process could not use the GPU, because a package that was imported before it began had opened the "
    "driver; the next run of the cell gets a process without it\n"
)

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
        self._reporter = reporter
        self._host = host
        self._finish_lease = finish_lease
        self._journal = journal
        self._times = CellTimes(start.elapsed_ms, lease.granted_s)
        self._worker: WorkerProcess | None = None
        self._path = types_pb2.StartPath.Name(lease.path)
        # The worker has the cell: from here on its first statement may have run, whether or not it said so.
        self._handed_over = False
        self._left: list[pb.LeftItem] = []
        self._interrupted = False
        self._cut: LooseLeafError | None = None
        self._save_limit: asyncio.TimerHandle | None = None
        self._hold: LeftHold | None = None
        # What its failed cell held stays in its GPU's memory as long as it lives, or it can use no GPU.
        self._spent = False
        # How long the worker is kept after the cell, as the person has asked.
        self._keep_s = 0.0
        # Told once, by the daemon that sees the save: an earlier one may have been told of the same end.
        self._misses: list[str] = []
        self._news_of_end = ""

    async def run(self) -> None:
        """The whole life of the execution up to the point where its GPU may be released."""
        saved = pb.CellSaved(version=self.start.version)
        state = scheduler_pb2.EXECUTION_STATE_FAILED
        if self._journal is not None and not self._handed_over:
            self._journal.begin(self.lease.execution_id)
        try:
            await self._run_on_live_worker(saved)
            state = scheduler_pb2.EXECUTION_STATE_SAVED
        except asyncio.CancelledError:
            self._fail(saved, Unavailable("HOST_STOPPED", "the host that ran this cell is being stopped"))
            raise
        except Exception as error:
            known = self._cut or (error if isinstance(error, LooseLeafError) else _fault(error))
            if self._worker is not None and known.reason != "UNSAVED_GONE":
                await self._worker.discard()
            state = self._fail(saved, known)
        finally:
            self._close_run()
            hold = self._hold
            if hold is None:
                self._finish(saved)
            else:
                self._times.released()
            self._count(saved)
            # Before the scheduler hears of it, so that its next grant of this GPU is not refused here.
            self._finish_lease()
            self._report_end(state, saved.error_reason)
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
            wanted_id, lease.session_id, lease.epoch, self.start.recipe.imports, even_outdated=True
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
            await self._end_on(worker, await self._run_cell(worker, context), saved)

    async def _end_on(self, worker: WorkerProcess, reply: Message, saved: pb.CellSaved) -> None:
        """What follows the save: the cell's outcome is known, its worker may be kept for what the cell left."""
        self._take_save(worker, reply, saved)
        self._close_run()
        if self._left:
            await self._hold_for_left(worker, saved)
        worker.on_message = None

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
        worker.on_message = self._on_message
        worker.requests.patience.on_held_up = self._save_held_up
        if self._journal is not None:
            self._journal.hand_over(self.lease.execution_id)
        self._handed_over = True
        return await worker.run(
            {
                "reconnect": self._open_run(worker),
                "execution_id": start.execution_id,
                "source": start.source,
                "execution_count": start.execution_count,
                "cell_id": start.cell_id,
                "allow_stdin": start.allow_stdin,
                "context": context,
                "save_limit_s": worker.limits.save_s,
            }
        )

    def _open_run(self, worker: WorkerProcess) -> str:
        """Where the worker finds the host's next daemon if this one is lost; empty if it would not find the cell."""
        if self._journal is None or not self._journal.socket_path:
            return ""
        facts, times = worker.facts, self._times
        ticks = process_ticks(facts.pid)
        if ticks is None:
            return ""
        run = OpenRun(
            self.lease, Version(self.start.version), self.start.execution_count, self._keep_s, self.start.elapsed_ms,
            times.arrived_s, self._path, facts.worker_id, facts.pid, ticks, self._journal.boot_id,
            self._journal.socket_path, facts.environment_id, facts.kernel_environment_id, lives=1,
        )  # fmt: skip
        try:
            self._journal.open(run)
        except OSError as error:
            log.warning("run_not_journaled", execution=self.lease.execution_id, error=error.strerror)
            return ""
        return self._journal.socket_path

    def _close_run(self) -> None:
        if self._journal is not None:
            self._journal.close(self.lease.execution_id)

    async def _hold_for_left(self, worker: WorkerProcess, saved: pb.CellSaved) -> None:
        """Keeps the lease for what the cell left running; the kernel has the cell's outcome meanwhile."""
        saved.left_running = True
        self._finish(saved)
        self.record.add(pb.ExecuteResponse(saved=saved))
        self._hold = hold = LeftHold(self._left, self._host.keep_leftovers_s, self.record)
        worker.facts.stage = Stage.SAVING
        if await hold.until_over(worker.lost) is pb.LEFT_STATE_LIMIT:
            worker.facts.end = worker_ends.LEFTOVERS
            await worker.discard()
        worker.facts.stage = Stage.GONE if worker.lost.done() else Stage.COMPLETED

    def _on_message(self, message: Message) -> None:
        kind = message.get("t")
        if kind == "started":
            self._cell_started(worker_event(message))
        elif kind == "left":
            self._left = left_items(message, "items")
            if self._hold is not None:
                self._hold.changed(self._left)
        elif kind == "ended":
            self._cell_ended(message, worker_event(message))
        elif (response := response_of(message)) is not None:
            self.record.add(response)

    def _cell_started(self, number: int) -> None:
        self._times.started()
        self._pool.metrics.cell_started(self._path, self._times.figures.start_ms)
        self._stage(Stage.RUNNING, number)
        self._report_progress(scheduler_pb2.EXECUTION_STATE_STARTED)
        if self._interrupted and self._worker is not None:
            self._worker.interrupt()

    def _cell_ended(self, message: Message, number: int) -> None:
        ended = fields.mapping(message, "reply")
        reply = msgpack.packb(ended)
        self._spent = ended.get("ename") == OUT_OF_MEMORY
        if fields.boolean(message, "cuda_spoiled", False) and self._worker is not None:
            self._spent, self._news_of_end = True, SPOILED_NOTE
            self._pool.spoiled(self._worker)
        self._left = left_items(message, "left")
        self._times.ended(message)
        self._misses = misses(message)
        outcome = pb.CellEnded(reply=reply, run_s=self._times.figures.run_s)
        self.record.add(pb.ExecuteResponse(ended=outcome, worker_event=number))
        if self._worker is not None:
            self._worker.facts.stage = Stage.SAVING
            limit_s = self._worker.limits.save_s
            self._save_limit = asyncio.get_running_loop().call_later(limit_s, self._save_took_too_long, limit_s)
        self._stage(Stage.SAVING)
        self._report_progress(scheduler_pb2.EXECUTION_STATE_FINISHED)

    def _save_held_up(self, why: LooseLeafError) -> None:
        self._note(held_up(why))

    def _tell_news_of_end(self) -> None:
        text, self._news_of_end = self._news_of_end, ""
        if text:
            self._note(text)

    def _note(self, text: str) -> None:
        note = {"type": "stream", "name": "stderr", "text": text}
        self.record.add(pb.ExecuteResponse(output=msgpack.packb(note)))

    def _save_took_too_long(self, limit_s: float) -> None:
        self._cut_off(Timeout("SAVE_TIMEOUT", f"the cell's changes could not be saved within {limit_s:g} s"))

    def _take_save(self, worker: WorkerProcess, reply: Message, saved: pb.CellSaved) -> None:
        if self._save_limit is not None:
            self._save_limit.cancel()
        facts = worker.facts
        saved.version = facts.version = Version(fields.integer(reply, "version"))
        self._times.saved(reply)
        self._tell_news_of_end()
        if full := worker.requests.take_store_full():
            self._note(waits_for_room(saved.version, full))
        facts.resident_bytes = fields.integer(reply, "resident_bytes", 0)
        take_unsaved(facts, reply, saved, self._host.keep_unsaved_s, self._keep_s)
        facts.stage = Stage.COMPLETED
        facts.spent = self._spent
        facts.prepared_source_hash = ""
        facts.resident_since_s = time.monotonic()

    def _fail(self, saved: pb.CellSaved, error: LooseLeafError) -> scheduler_pb2.ExecutionState:
        """Fills in what went wrong; SAVED if the worker had committed this cell before."""
        self._tell_news_of_end()
        committed = self._committed_version()
        saved.version = committed or self.start.version
        saved.error_reason, saved.error_message = error.reason, self._loss_text(error, committed)
        return scheduler_pb2.EXECUTION_STATE_SAVED if committed else scheduler_pb2.EXECUTION_STATE_FAILED

    def _committed_version(self) -> Version:
        """The version that this cell's commit made, 0 if it made none."""
        execution_id, version = self._worker.requests.owner.committed if self._worker is not None else ("", Version(0))
        return version if execution_id == self.lease.execution_id else Version(0)

    def _loss_text(self, error: LooseLeafError, committed: Version) -> str:
        what = error.message or error.reason
        if committed:
            return f"{what}; its changes had been saved already (version {committed})"
        valid = f"the variables are those of version {self.start.version}; run the cell again"
        if self._worker is not None and self._worker.requests.owner.unanswered == self.lease.execution_id:
            doubt = "the store did not say whether it has them: the next cell sees them if so, else"
            return f"{what} (while its changes were being saved), and {doubt} {valid}"
        if not self._handed_over:
            return f"{what} (before the cell ran); nothing was run, {valid}"
        when = "while its changes were being saved" if self._times.ended_s is not None else "while the cell ran"
        return f"{what} ({when}); this cell's changes are lost, {valid}"

    def _finish(self, saved: pb.CellSaved) -> None:
        if self._times.ended_s is None:
            text = saved.error_message or "the cell did not run"
            error = {"ename": saved.error_reason or "LooseLeafError", "evalue": text, "traceback": [text]}
            self.record.add(pb.ExecuteResponse(output=msgpack.packb({"type": "error", **error})))
            reply = {"status": "error", **error, "execution_count": self.start.execution_count}
            self.record.add(pb.ExecuteResponse(ended=pb.CellEnded(reply=msgpack.packb(reply), run_s=0.0)))
        self._times.finish(saved)
        # The protobuf constructor takes enum values by name.
        saved.MergeFrom(pb.CellSaved(path=self._path))
        saved.gpu_index, saved.host_id = self.lease.gpus[0], self._host.host_id
        if self._worker is not None:
            saved.worker_id, saved.pid = self._worker.facts.worker_id, self._worker.facts.pid

    def _count(self, saved: pb.CellSaved) -> None:
        if self._times.ended_s is not None and not saved.error_reason:
            self._pool.metrics.cell_saved(saved.figures)
        self._pool.metrics.missed(self._misses)
        self._pool.metrics.gpus_used(saved.figures.gpu_pinned_s * len(self.lease.gpus))

    def _stage(self, stage: Stage, number: int = 0) -> None:
        facts = self._worker.facts if self._worker is not None else None
        news = pb.StageNews(
            stage=scheduler_pb2.WorkerStage.Name(int(stage)),
            worker_id=facts.worker_id if facts else "",
            pid=facts.pid if facts else 0,
            elapsed_ms=self._times.since_arrival_ms(),
        )
        self.record.add(pb.ExecuteResponse(stage=news, worker_event=number))

    def _report_progress(self, state: scheduler_pb2.ExecutionState) -> None:
        self._reporter.report_progress(self._request(state))

    def _report_end(self, state: scheduler_pb2.ExecutionState, reason: str) -> None:
        request = self._request(state)
        request.release, request.reason = True, reason
        request.figures.CopyFrom(self._times.figures)
        if self._worker is not None:
            request.worker.CopyFrom(worker_state(self._worker.facts, time.monotonic()))
        self._reporter.report_end(request)

    def _request(self, state: scheduler_pb2.ExecutionState) -> scheduler_pb2.ReportExecutionRequest:
        return scheduler_pb2.ReportExecutionRequest(
            execution_id=self.lease.execution_id, lease_id=self.lease.lease_id, state=state
        )

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


def _fault(error: Exception) -> LooseLeafError:
    """A fault of ours as the person sees it; the log has the rest."""
    error_id = secrets.token_hex(8)
    log.error("execution_failed_unexpectedly", error_id=error_id, exc_info=error)
    text = f"LooseLeaf met a fault of its own; the daemon's log has it as {error_id}"
    return Internal("BUG", text, error_id=error_id)
