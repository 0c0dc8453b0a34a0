"""One line under a cell that waits for its GPU process, where no page of ours tells of it (design §9).

It stands until the cell begins or shows something and leaves nothing in the notebook.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from looseleaf.kernel.passing_line import PassingLine

LOOK_INTERVAL_S: Final = 1.0
# (up to so long a wait, time between messages): servers keep each one for a page that is closed. Ascending.
UPDATE_INTERVALS_S: Final = ((60.0, 1.0), (600.0, 10.0), (float("inf"), 60.0))
# Beside other outputs the line must stay one.
REASON_CHARS_MAX: Final = 120

News = Mapping[str, Mapping[str, Any]]


def stage_of(news: News) -> str:
    """How far a cell has come that has not begun, by the newest events of each kind that it had."""
    return next((kind for kind in ("lease", "queue") if kind in news), "")


def waiting_text(news: News, waited_s: float) -> str:
    """What is waited for."""
    stage = stage_of(news)
    if stage == "lease":
        what = f"preparing a GPU process on {news[stage].get('host_id')}"
    elif stage == "queue":
        reason = " ".join(str(news[stage].get("reason", "")).split())[:REASON_CHARS_MAX]
        what = f"waiting for a GPU, place {news[stage].get('position')}" + (f": {reason}" if reason else "")
    else:
        what = "preparing"
    return f"LooseLeaf: {what} ({waited_s:.1f} s)"


class WaitUpdates:
    """When the line is written anew: at each new stage, else the more rarely the longer the wait."""

    def __init__(self) -> None:
        self._stage: str | None = None
        self._due_s = 0.0

    def text(self, news: News, waited_s: float) -> str:
        """The text that is to stand there now; empty if the one that stands there will do."""
        stage = stage_of(news)
        if stage == self._stage and waited_s < self._due_s:
            return ""
        self._stage = stage
        self._due_s = waited_s + next(each_s for until_s, each_s in UPDATE_INTERVALS_S if waited_s < until_s)
        return waiting_text(news, waited_s)


@contextmanager
def wait_told(line: PassingLine, began_s: float, after_s: float, news: Callable[[], News]) -> Iterator[None]:
    """Inside, the line shows `after_s` seconds from now and is kept new, until something else is shown; 0: it does not.

    `began_s`: Run, on the monotonic clock. On the event loop.
    """
    task = asyncio.create_task(_tell(line, began_s, after_s, news)) if after_s > 0 else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
        line.end()


async def _tell(line: PassingLine, began_s: float, after_s: float, news: Callable[[], News]) -> None:
    await asyncio.sleep(after_s)
    updates = WaitUpdates()
    # For the time in it, also while nothing else happens.
    while not (text := updates.text(news(), time.monotonic() - began_s)) or line.show(text):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_INTERVAL_S)
