"""A cell on its worker, from its hand-over to its save: what the worker says of it is recorded, counted and told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import msgpack

from looseleaf.errors import LooseLeafError, Timeout
from looseleaf.ids import Version
from looseleaf.protocol import fields
from looseleaf.services.worker_daemon.cell_events import note, response_of, stage_news, worker_event
from looseleaf.services.worker_daemon.core import worker_ends
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.execution_figures import CellTimes, misses
from looseleaf.services.worker_daemon.execution_log import ExecutionRecord
from looseleaf.services.worker_daemon.left_hold import LeftHold, left_items
from looseleaf.services.worker_daemon.pool import WorkerPool
from looseleaf.services.worker_daemon.reports import RunReports
from looseleaf.services.worker_daemon.unsaved_hold import held_up, take_unsaved, waits_for_room
from looseleaf.services.worker_daemon.worker_process import WorkerProcess
from looseleaf.v1 import scheduler_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb

Message = dict[str, Any]

# torch's error, as the worker names it.
OUT_OF_MEMORY: Final = "OutOfMemoryError"
SPOILED_NOTE: Final = (
    "LooseLeaf: this process could not use the GPU, because a package that was imported before it began had opened the "
    "driver; the next run of the cell gets a process without it\n"
)


class RunningCell:
    """Hears `worker` from its making on, until `leave`.

    `began` is called at the cell's first statement, `cut_off` with why the cell must end now. `path`: what it found
    ready, by the wire's name.
    """

    def __init__(
        self, worker: WorkerProcess, record: ExecutionRecord, times: CellTimes, reports: RunReports, pool: WorkerPool,
        path: str, began: Callable[[], None], cut_off: Callable[[LooseLeafError], None],
    ) -> None:  # fmt: skip
        self._worker = worker
        self._record = record
        self._times = times
        self._reports = reports
        self._pool = pool
        self._path = path
        self._began = began
        self._cut_off = cut_off
        # What it left running, as last told, and from its save on how long its GPU is kept for that.
        self.left: list[pb.LeftItem] = []
        self.hold: LeftHold | None = None
        # Told once, by the daemon that sees the save: an earlier one may have been told of the same end.
        self.misses: list[str] = []
        self._news_of_end = ""
        self._save_limit: asyncio.TimerHandle | None = None
        # What its failed cell held stays in its GPU's memory as long as it lives, or it can use no GPU.
        self._spent = False
        worker.on_message = self._on_message
        worker.requests.patience.on_held_up = self._held_up

    def leave(self) -> None:
        """The worker's events are no matter of this cell any more."""
        self._worker.on_message = None

    def _on_message(self, message: Message) -> None:
        kind = message.get("t")
        if kind == "started":
            self._started(worker_event(message))
        elif kind == "left":
            self.left = left_items(message, "items")
            if self.hold is not None:
                self.hold.changed(self.left)
        elif kind == "ended":
            self._ended(message, worker_event(message))
        elif (response := response_of(message)) is not None:
            self._record.add(response)

    def _started(self, number: int) -> None:
        if self._times.started_s is not None:
            # Told again: an earlier daemon has counted it.
            self._stage(Stage.RUNNING, number)
            return
        self._times.started()
        self._pool.metrics.cell_started(self._path, self._times.figures.start_ms)
        self._stage(Stage.RUNNING, number)
        self._reports.progress(scheduler_pb2.EXECUTION_STATE_STARTED)
        self._began()

    def _ended(self, message: Message, number: int) -> None:
        ended = fields.mapping(message, "reply")
        reply = msgpack.packb(ended)
        self._spent = ended.get("ename") == OUT_OF_MEMORY
        if fields.boolean(message, "cuda_spoiled", False):
            self._spent, self._news_of_end = True, SPOILED_NOTE
            self._pool.spoiled(self._worker)
        self.left = left_items(message, "left")
        self._times.ended(message)
        self.misses = misses(message)
        outcome = pb.CellEnded(reply=reply, run_s=self._times.figures.run_s)
        self._record.add(pb.ExecuteResponse(ended=outcome, worker_event=number))
        self._worker.facts.stage = Stage.SAVING
        limit_s = self._worker.limits.save_s
        self._save_limit = asyncio.get_running_loop().call_later(limit_s, self._save_took_too_long, limit_s)
        self._stage(Stage.SAVING)
        self._reports.progress(scheduler_pb2.EXECUTION_STATE_FINISHED)

    def _stage(self, stage: Stage, number: int = 0) -> None:
        self._record.add(stage_news(stage, self._worker.facts, self._times.since_arrival_ms(), number))

    def _save_took_too_long(self, limit_s: float) -> None:
        self._cut_off(Timeout("SAVE_TIMEOUT", f"the cell's changes could not be saved within {limit_s:g} s"))

    def _held_up(self, why: LooseLeafError) -> None:
        self._record.add(note(held_up(why)))

    def tell_news_of_end(self) -> None:
        """What the person must know of how it ended, once."""
        text, self._news_of_end = self._news_of_end, ""
        if text:
            self._record.add(note(text))

    def take_save(self, reply: Message, saved: pb.CellSaved, keep_unsaved_s: float, keep_s: float) -> None:
        """The worker has saved it: fills in `saved`; the worker is kept for what no version has, and for `keep_s`."""
        if self._save_limit is not None:
            self._save_limit.cancel()
        facts = self._worker.facts
        saved.version = facts.version = Version(fields.integer(reply, "version"))
        self._times.saved(reply)
        self.tell_news_of_end()
        if full := self._worker.requests.take_store_full():
            self._record.add(note(waits_for_room(saved.version, full)))
        facts.resident_bytes = fields.integer(reply, "resident_bytes", 0)
        take_unsaved(facts, reply, saved, keep_unsaved_s, keep_s)
        facts.stage = Stage.COMPLETED
        facts.spent = self._spent
        facts.prepared_source_hash = ""
        facts.resident_since_s = time.monotonic()

    async def hold_for_left(self, limit_s: float) -> None:
        """Returns when nothing that it left running keeps its GPU any more."""
        worker = self._worker
        self.hold = hold = LeftHold(self.left, limit_s, self._record)
        worker.facts.stage = Stage.SAVING
        if await hold.until_over(worker.lost) is pb.LEFT_STATE_LIMIT:
            worker.facts.end = worker_ends.LEFTOVERS
            await worker.discard()
        worker.facts.stage = Stage.GONE if worker.lost.done() else Stage.COMPLETED
