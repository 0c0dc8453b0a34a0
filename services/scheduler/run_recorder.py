"""Lines about GPU cells from the events that the policy gets: times and sizes, no cell text and no names.

Times are seconds on the scheduler's clock. docs/simulate.md ("Recorded work") says what each key means.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from looseleaf.ids import ExecutionId, SessionId
from looseleaf.services.scheduler.core.events import Event, ExecutionReported, PreparationRequested, RunRequested
from looseleaf.services.scheduler.core.facts import ExecutionRecord, ExecutionState, StartPath

# Runs that have not ended, and sessions with an edit that has not led to a run: the oldest are left out of the log.
OPEN_MAX: Final = 20_000


@dataclass(slots=True)
class LoggedRun:
    """One line. `began_s`: the first statement; `path`: what the cell found ready, "cold" only with a new worker."""

    session: str
    run_s: float
    edit_s: float
    began_s: float
    duration_s: float
    gpu: bool
    closure_bytes: int
    gpu_count: int
    path: str = ""
    prepare_s: float | None = None


class RunRecorder:
    """Knows nothing of files. `execution`: what the journal has of a run, asked for before it handles the event.

    Edits of one session belong together while no more than `edit_pause_s` lies between two, and to a run that comes so
    soon after the last: what was typed before is an abandoned edit, whose worker was the first to give way.
    """

    def __init__(self, execution: Callable[[ExecutionId], ExecutionRecord | None], edit_pause_s: float) -> None:
        self._execution = execution
        self._edit_pause_s = edit_pause_s
        # First and last edit of the newest that belong together.
        self._edits: OrderedDict[SessionId, tuple[float, float]] = OrderedDict()
        self._open: OrderedDict[ExecutionId, LoggedRun] = OrderedDict()
        self._started: set[ExecutionId] = set()

    def take(self, event: Event, now_s: float) -> LoggedRun | None:
        """A line if a run ended with this event. A run that was never reported as started has none."""
        match event:
            case PreparationRequested(predicted=False):
                self._edits[event.session_id] = (self._edit_began_s(event.session_id, now_s), now_s)
                self._edits.move_to_end(event.session_id)
                if len(self._edits) > OPEN_MAX:
                    self._edits.popitem(last=False)
            case RunRequested():
                self._begin(event, now_s)
            case ExecutionReported():
                return self._report(event, now_s)
        return None

    def _edit_began_s(self, session_id: SessionId, now_s: float) -> float:
        first_s, last_s = self._edits.get(session_id, (now_s, now_s))
        return first_s if now_s - last_s <= self._edit_pause_s else now_s

    def _begin(self, event: RunRequested, now_s: float) -> None:
        if event.execution_id in self._open:
            return
        edit_s = self._edit_began_s(event.session_id, now_s)
        self._edits.pop(event.session_id, None)
        self._open[event.execution_id] = LoggedRun(
            event.session_id, now_s, edit_s, now_s, 0.0, True, event.recipe.device_bytes, event.recipe.gpu_count)
        if len(self._open) > OPEN_MAX:
            self._started.discard(self._open.popitem(last=False)[0])

    def _report(self, event: ExecutionReported, now_s: float) -> LoggedRun | None:
        run = self._open.get(event.execution_id)
        if run is None:
            return None
        if event.state is ExecutionState.STARTED and event.execution_id not in self._started:
            self._started.add(event.execution_id)
            run.began_s = now_s
        elif event.state is ExecutionState.FINISHED and event.execution_id in self._started:
            run.duration_s = now_s - run.began_s
        self._take_figures(run, event)
        if not event.state.ended:
            return None
        del self._open[event.execution_id]
        if event.execution_id not in self._started:
            return None
        self._started.remove(event.execution_id)
        return run

    def _take_figures(self, run: LoggedRun, event: ExecutionReported) -> None:
        """The daemon's own measures are the better ones; a preparation is a whole one on a new worker only."""
        record = self._execution(event.execution_id)
        lease = record.lease if record is not None else None
        if lease is not None and lease.path is not StartPath.UNSPECIFIED:
            replaced = event.worker is not None and event.worker.worker_id != lease.worker_id
            new = not lease.worker_id or replaced
            # A worker that was prepared for something else is cold by the book, and not a new one.
            other = "retargeted" if lease.path is StartPath.COLD else lease.path.name.lower()
            run.path = "cold" if new else other
        if event.figures is not None:
            run.duration_s = event.figures.run_s or run.duration_s
            if run.path == "cold" and event.figures.prepare_ms:
                run.prepare_s = event.figures.prepare_ms / 1000
