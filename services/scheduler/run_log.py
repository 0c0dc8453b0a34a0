"""A log of GPU cells for `looseleaf simulate --workload FILE`: times and sizes, no cell text and no names.

One JSON line for each cell that ended (docs/simulate.md has the format). Times are seconds on the scheduler's clock.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from looseleaf.errors import Unavailable
from looseleaf.ids import ExecutionId, SessionId
from looseleaf.services.scheduler.core.events import Event, ExecutionReported, PreparationRequested, RunRequested
from looseleaf.services.scheduler.core.facts import ExecutionState

# Runs that have not ended, and sessions with an edit that has not led to a run: the oldest are left out of the log.
OPEN_MAX: Final = 20_000


@dataclass(slots=True)
class LoggedRun:
    """One line."""

    session: str
    run_s: float
    edit_s: float | None
    duration_s: float
    gpu: bool
    closure_bytes: int
    gpu_count: int
    prepare_s: float | None


class RunRecorder:
    """Makes lines of the events that the policy gets; knows nothing of files."""

    def __init__(self) -> None:
        self._edits: OrderedDict[SessionId, float] = OrderedDict()
        self._open: OrderedDict[ExecutionId, LoggedRun] = OrderedDict()
        self._began_s: dict[ExecutionId, float] = {}

    def take(self, event: Event, now_s: float) -> LoggedRun | None:
        """A line if a run ended with this event. A run that was never reported as started has none."""
        match event:
            case PreparationRequested():
                self._edits.setdefault(event.session_id, now_s)
                if len(self._edits) > OPEN_MAX:
                    self._edits.popitem(last=False)
            case RunRequested():
                self._begin(event, now_s)
            case ExecutionReported():
                return self._report(event, now_s)
        return None

    def _begin(self, event: RunRequested, now_s: float) -> None:
        if event.execution_id in self._open:
            return
        self._open[event.execution_id] = LoggedRun(
            event.session_id, now_s, self._edits.pop(event.session_id, None), 0.0, True, event.recipe.device_bytes,
            event.recipe.gpu_count, None)
        if len(self._open) > OPEN_MAX:
            self._began_s.pop(self._open.popitem(last=False)[0], None)

    def _report(self, event: ExecutionReported, now_s: float) -> LoggedRun | None:
        run = self._open.get(event.execution_id)
        if run is None:
            return None
        if event.state is ExecutionState.STARTED:
            self._began_s.setdefault(event.execution_id, now_s)
        elif event.state is ExecutionState.FINISHED and event.execution_id in self._began_s:
            run.duration_s = now_s - self._began_s[event.execution_id]
        if event.figures is not None:
            # The daemon's own measure is the better one.
            run.duration_s = event.figures.run_s or run.duration_s
            run.prepare_s = event.figures.prepare_ms / 1000 if event.figures.prepare_ms else None
        if not event.state.ended:
            return None
        del self._open[event.execution_id]
        return run if self._began_s.pop(event.execution_id, None) is not None else None


class RunLog:
    """Lines in a file; one that grows over `bytes_max` moves to `*.1`, whose predecessor is dropped."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path, self._bytes_max = path, bytes_max

    def write(self, runs: list[LoggedRun]) -> None:
        """Appends lines; raises Unavailable RUN_LOG_IO."""
        text = "".join(json.dumps(_line(run)) + "\n" for run in runs)
        try:
            if self._path.exists() and self._path.stat().st_size + len(text) > self._bytes_max:
                self._path.replace(self._path.with_name(self._path.name + ".1"))
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with open(fd, "a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise Unavailable("RUN_LOG_IO", f"{self._path} cannot be written ({error.strerror})") from error


def _line(run: LoggedRun) -> dict[str, Any]:
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in asdict(run).items() if value is not None}
