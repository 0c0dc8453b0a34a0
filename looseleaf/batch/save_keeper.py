"""Saves a notebook's state between its cells, so that a later run can go on, and goes on from an earlier run's."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from looseleaf.batch.resume import CellDone, ResumeRecord, next_save_due, source_hash
from looseleaf.errors import Unavailable
from looseleaf.kernel.save_requests import RESUME_REQUEST, SAVE_REQUEST

log = logging.getLogger("looseleaf.batch")

# Sends a control request to the kernel; its reply's content.
Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class SaveKeeper:
    """Of one notebook's run. `record`: what the last run has left, or an empty one if this run begins anew."""

    def __init__(self, record: ResumeRecord) -> None:
        self._record = record
        self._last_save_s = 0.0
        self._saved_at_s = 0.0
        # The first cell that runs; those before it ran in an earlier run.
        self.first_index = 0
        # Without a cluster there is nothing to save to.
        self._saves = True

    @property
    def session_id(self) -> str:
        """The session to go on with; empty for a new one."""
        return self._record.session_id

    async def begin(self, ask: Ask, nb: Any) -> None:
        """The kernel is there: it gets the newest state that still is, and `nb` the outputs of the cells before.

        Raises Unavailable `RESUME_FAILED` if the store cannot say.
        """
        points = self._record.save_points(nb)
        if not self.session_id or not points:
            self._begin_anew()
            return
        count = max((done.execution_count or 0 for done in self._record.cells), default=0) + 1
        asked = {"points": [[done.version, done.execution_id] for done in points], "execution_count": count}
        answer = await ask(RESUME_REQUEST, asked)
        if answer.get("status") != "ok":
            text = f"the state to go on from could not be fetched ({answer.get('evalue')}); nothing was run"
            raise Unavailable("RESUME_FAILED", text, cause=answer.get("ename"))
        if answer["index"] < 0:
            self._begin_anew()
            return
        self.first_index = self._record.show_again(nb, points[answer["index"]])
        self._record.begin(self.session_id)

    def _begin_anew(self) -> None:
        self._record.cells.clear()
        self._record.session_id = ""
        self._record.forget()

    async def cell_ended(self, ask: Ask, nb: Any, index: int) -> None:
        """A cell ended well and shows its outputs."""
        if not self._saves:
            return
        cell = nb.cells[index]
        done = CellDone(index, source_hash(nb, index), cell.execution_count, [dict(out) for out in cell.outputs])
        began_s = time.monotonic()
        if next_save_due(began_s - self._saved_at_s, self._last_save_s):
            answer = await ask(SAVE_REQUEST, {})
            if answer.get("status") != "ok":
                log.warning("save_point_failed reason=%s", answer.get("ename"))
                # Without a session nothing was saved, and nothing will be.
                self._saves = bool(self._record.session_id)
                if not self._saves:
                    return
            else:
                done.version, done.execution_id = answer["version"], answer["execution_id"]
                if not self._record.session_id:
                    self._record.begin(answer["session_id"])
            self._saved_at_s = time.monotonic()
            self._last_save_s = self._saved_at_s - began_s
        self._record.add(done)

    def ended_well(self) -> None:
        """All cells ran."""
        self._record.forget()
