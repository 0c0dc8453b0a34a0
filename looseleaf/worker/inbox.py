"""The daemon's requests on a worker's event loop: while none is there, the tasks that cells left go on."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from looseleaf.protocol.frames import Message

log = logging.getLogger("looseleaf.worker")

# Tasks of ours have names that begin so; all others are the person's.
OWN_TASKS: Final = "looseleaf-"


class Inbox:
    """A queue from the reader thread to the main thread, which runs `loop` while it waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: asyncio.Queue[Message] = asyncio.Queue()

    def put(self, request: Message) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._waiting.put_nowait, request)

    def next(self) -> Message:
        """The next request. Main thread only; raises RuntimeError if a cell closed the loop."""
        task = self._loop.create_task(self._waiting.get(), name=f"{OWN_TASKS}inbox")
        while True:
            try:
                # The class's own: what a cell puts in its place is for cells.
                return asyncio.BaseEventLoop.run_until_complete(self._loop, task)  # type: ignore[arg-type]
            except BaseException as error:
                # A task of the person ended or stopped the loop, by `sys.exit()` for example: only it is over.
                if self._loop.is_closed():
                    raise
                log.info("idle_loop_left kind=%s", type(error).__name__)
                if task.done():
                    return task.result()
