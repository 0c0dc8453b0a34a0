"""Turns for streams: so many run at once, so many wait, and whoever comes beyond is told so at once."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from looseleaf.errors import CapacityExceeded

RETRY_AFTER_S: Final = 1.0


class Turns:
    """`async with turns:` runs at most `running_max` bodies at once, in the order in which they came.

    Beyond `waiting_max` that wait it raises CapacityExceeded `STORE_BUSY`. Belongs to one event loop.
    """

    def __init__(self, what: str, running_max: int, waiting_max: int) -> None:
        self._what = what
        self._free = asyncio.Semaphore(running_max)
        self._waiting_max = waiting_max
        self.waiting = 0

    async def __aenter__(self) -> None:
        if self._free.locked() and self.waiting >= self._waiting_max:
            text = f"{self.waiting} {self._what} wait already; nothing was done, try again"
            raise CapacityExceeded(
                "STORE_BUSY", text, waiting=self.waiting, waiting_max=self._waiting_max, retry_after_s=RETRY_AFTER_S
            )
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._free.release()
