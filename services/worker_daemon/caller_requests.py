"""What a kernel has for the host that runs its cell: answers, interrupts, comm messages, in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from looseleaf.v1 import worker_daemon_pb2 as pb

REQUESTS_WAITING_MAX: Final = 64
# A stop that went out longer ago has got through, and what it stopped may be over.
INTERRUPT_AGAIN_S: Final = 10.0


class CallerRequests:
    """A queue that outlives connections to the host; on the next one it repeats what the last may not have passed on.

    That is the last answer, which the worker knows by its question, and an interrupt that nothing has followed.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[pb.ExecuteRequest] = asyncio.Queue(REQUESTS_WAITING_MAX)
        self._last_answer: pb.ExecuteRequest | None = None
        self._last_interrupt: pb.ExecuteRequest | None = None
        self._interrupted_s = 0.0

    async def put(self, request: pb.ExecuteRequest) -> None:
        """Waits while earlier ones were not delivered."""
        await self._queue.put(request)

    def put_now(self, request: pb.ExecuteRequest) -> None:
        """Raises asyncio.QueueFull if `REQUESTS_WAITING_MAX` wait."""
        self._queue.put_nowait(request)

    def worker_told(self) -> None:
        """The worker has said something since: an interrupt that went out before has got through."""
        self._last_interrupt = None

    async def stream(self, start: pb.ExecuteStart) -> AsyncIterator[pb.ExecuteRequest]:
        """All that one connection is to carry; never ends by itself."""
        yield pb.ExecuteRequest(start=start)
        for told in (self._last_answer, self._interrupt_in_doubt()):
            if told is not None:
                yield told
        while True:
            request = await self._queue.get()
            if request.HasField("input_reply"):
                self._last_answer = request
            elif request.HasField("interrupt"):
                self._last_interrupt, self._interrupted_s = request, time.monotonic()
            yield request

    def _interrupt_in_doubt(self) -> pb.ExecuteRequest | None:
        return self._last_interrupt if time.monotonic() - self._interrupted_s < INTERRUPT_AGAIN_S else None
