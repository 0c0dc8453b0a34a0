"""A log of GPU cells for `looseleaf simulate --workload FILE`, one JSON line for each that ended.

Nobody waits for it: lines are put into a bounded queue, and a task of its own writes them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from looseleaf.errors import LooseLeafError, Unavailable
from looseleaf.logs import get_logger
from looseleaf.services.scheduler.core.events import Event
from looseleaf.services.scheduler.run_recorder import LoggedRun, RunRecorder

# Lines that wait to be written; further ones are left out, and told of.
WAITING_MAX: Final = 10_000

log = get_logger()


class RunLog:
    """Lines in a file; one that grows over `bytes_max` moves to `*.1`, whose predecessor is dropped.

    `take` and `write_forever` belong to the event loop; `run_blocking` runs a function on another thread.
    """

    def __init__(
        self, path: Path, bytes_max: int, recorder: RunRecorder, run_blocking: Callable[..., Awaitable[Any]],
    ) -> None:
        self._path, self._bytes_max = path, bytes_max
        self._recorder = recorder
        self._run_blocking = run_blocking
        self._waiting: deque[LoggedRun] = deque()
        self._wake = asyncio.Event()
        self._left_out = 0

    def take(self, event: Event, now_s: float) -> None:
        """Notes an event that the policy is about to handle; never waits and never raises for the file's sake."""
        run = self._recorder.take(event, now_s)
        if run is None:
            return
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(run)
        else:
            self._left_out += 1
        self._wake.set()

    async def write_forever(self) -> None:
        """Writes what waits whenever something does."""
        while True:
            await self._wake.wait()
            await self.flush()

    async def flush(self) -> None:
        """Writes what waits now. A log that cannot be written costs nobody anything but its lines."""
        self._wake.clear()
        runs = list(self._waiting)
        self._waiting.clear()
        try:
            if runs:
                await self._run_blocking(append_runs, self._path, self._bytes_max, runs)
        except LooseLeafError as error:
            self._left_out += len(runs)
            log.warning("run_log_not_written", reason=error.reason, message=error.message)
        if self._left_out:
            log.warning("run_log_lines_left_out", lines=self._left_out)
            self._left_out = 0


def append_runs(path: Path, bytes_max: int, runs: list[LoggedRun]) -> None:
    """Appends lines; raises Unavailable RUN_LOG_IO."""
    text = "".join(json.dumps(_line(run)) + "\n" for run in runs)
    try:
        if path.exists() and path.stat().st_size + len(text) > bytes_max:
            path.replace(path.with_name(path.name + ".1"))
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(fd, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise Unavailable("RUN_LOG_IO", f"{path} cannot be written ({error.strerror})") from error


def _line(run: LoggedRun) -> dict[str, Any]:
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in asdict(run).items() if value not in (None, "")}
