"""One line under a cell that waits for its GPU process, where no page of ours tells of it (design §9).

It stands until the cell begins or shows something and leaves nothing in the notebook.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from looseleaf.kernel.forwarder import RequestPublisher

UPDATE_INTERVAL_S: Final = 1.0
# Beside other outputs the line must stay one.
REASON_CHARS_MAX: Final = 120


def waiting_text(news: Mapping[str, Mapping[str, Any]], waited_s: float) -> str:
    """What is waited for, by the newest events of each kind that a cell had before it began."""
    if (lease := news.get("lease")) is not None:
        what = f"preparing a GPU process on {lease.get('host_id')}"
    elif (queue := news.get("queue")) is not None:
        reason = " ".join(str(queue.get("reason", "")).split())[:REASON_CHARS_MAX]
        what = f"waiting for a GPU, place {queue.get('position')}" + (f": {reason}" if reason else "")
    else:
        what = "preparing"
    return f"LooseLeaf: {what} ({waited_s:.1f} s)"


@contextmanager
def wait_told(
    publisher: RequestPublisher, began_s: float, after_s: float, news: Callable[[], Mapping[str, Mapping[str, Any]]]
) -> Iterator[None]:
    """Inside, the line shows `after_s` seconds from now and is kept new, until something else is shown; 0: it does not.

    `began_s`: Run, on the monotonic clock. On the event loop.
    """
    task = asyncio.create_task(_tell(publisher, began_s, after_s, news)) if after_s > 0 else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
        publisher.give_up_place()


async def _tell(
    publisher: RequestPublisher, began_s: float, after_s: float, news: Callable[[], Mapping[str, Mapping[str, Any]]]
) -> None:
    await asyncio.sleep(after_s)
    # For the time in it, also while nothing else happens.
    while publisher.hold_place(waiting_text(news(), time.monotonic() - began_s)):  # noqa: ASYNC110
        await asyncio.sleep(UPDATE_INTERVAL_S)
