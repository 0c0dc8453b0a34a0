"""Saves a notebook's state between its cells, so that a later run can go on, and goes on from an earlier run's."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from looseleaf.batch.resume import CellDone, ResumeRecord, next_save_due, source_hash
from looseleaf.errors import Timeout, Unavailable
from looseleaf.kernel.save_requests import RESUME_REQUEST, SAVE_REQUEST

log = logging.getLogger("looseleaf.batch")

# Sends a control request to the kernel; its reply's content.
Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


# Errors of a save that come again after every other cell: nobody is there to save to.
FINAL_REASONS: Final = frozenset({"NO_CLUSTER", "CONFIG_INVALID"})


class StateGone(Exception):
    """No save point of the session that the kernel continues is whole: a kernel with a new session begins anew."""


class SaveKeeper:
    """Of one run of the notebook `nb`. `record`: what the last run has left, an empty one if this run begins anew."""

    def __init__(self, record: ResumeRecord, nb: Any) -> None:
        self._record = record
        self._points = record.save_points(nb) if record.session_id else []
        self._last_save_s = 0.0
        self._saved_at_s = 0.0
        # The first cell that runs; those before it ran in an earlier run.
        self.first_index = 0
        self._keeps = True
        # Why a later run cannot go on from the newest cells, for people; empty if it can.
        self.problem = ""

    @property
    def session_id(self) -> str:
        """The session that the kernel continues; empty for a new one, which has nobody's variables."""
        return self._record.session_id if self._points else ""

    async def begin(self, ask: Ask, nb: Any) -> None:
        """The kernel is there: it gets the newest state that still is, and `nb` the outputs of the cells before.

        Raises Unavailable `RESUME_FAILED` if the store cannot say, and StateGone: `session_id` is empty then.
        """
        if not self._points:
            self._record.cells.clear()
            self._record.session_id = ""
            self._write(self._record.forget)
            return
        points = [[done.version, done.execution_id, self._record.count_after(done)] for done in self._points]
        try:
            answer = await ask(RESUME_REQUEST, {"points": points})
        except Timeout as error:
            answer = {"status": "error", "ename": error.reason, "evalue": error.message}
        if answer.get("status") != "ok":
            text = f"the state to go on from could not be fetched ({answer.get('evalue')}); nothing was run"
            raise Unavailable("RESUME_FAILED", text, cause=answer.get("ename"))
        if answer["index"] < 0:
            self._points = []
            raise StateGone
        self.first_index = self._record.show_again(nb, self._points[answer["index"]])
        self._write(lambda: self._record.begin(self._record.session_id))

    async def cell_ended(self, ask: Ask, nb: Any, index: int) -> None:
        """A cell ended well and shows its outputs. Raises Timeout `SAVE_TIMEOUT`."""
        if not self._keeps:
            return
        cell = nb.cells[index]
        done = CellDone(index, source_hash(nb, index), cell.execution_count, [dict(out) for out in cell.outputs])
        began_s = time.monotonic()
        session_id = ""
        if next_save_due(began_s - self._saved_at_s, self._last_save_s):
            answer = await ask(SAVE_REQUEST, {})
            # A try that failed took its time, too.
            self._saved_at_s = time.monotonic()
            self._last_save_s = self._saved_at_s - began_s
            if answer.get("status") == "ok":
                done.version, done.execution_id = answer["version"], answer["execution_id"]
                session_id = answer["session_id"]
                self.problem = ""
            else:
                self._save_failed(answer)
        self._write(lambda: self._add(done, session_id))

    def _add(self, done: CellDone, session_id: str) -> None:
        self._record.add(done)
        if session_id and not self._record.session_id:
            # The first that was saved: cells before it were known here only.
            self._record.begin(session_id)

    def _save_failed(self, answer: Mapping[str, Any]) -> None:
        problem = f"their state could not be saved ({answer.get('ename')}: {answer.get('evalue')})"
        if not self.problem:
            log.warning("save_point_failed reason=%s", answer.get("ename"))
        self.problem = problem
        if answer.get("ename") in FINAL_REASONS and not self._record.session_id:
            self._keeps = False

    def _write(self, write: Callable[[], None]) -> None:
        """A record that cannot be written costs a later run its start, never this run a cell."""
        if not self._keeps:
            return
        try:
            write()
        except OSError as error:
            self._keeps = False
            self.problem = f"{self._record.path} could not be written ({error.strerror or error})"
            log.warning("resume_record_ended path=%s error=%s", self._record.path, error.strerror or error)

    def ended_well(self) -> None:
        """All cells ran: an earlier run is nothing to go on from, whether or not this one was kept."""
        self._keeps = True
        self._write(self._record.forget)
