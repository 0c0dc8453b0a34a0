"""Tells the store, beside everything else, which regions this host's arena has dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from itertools import islice
from typing import Final

import structlog

from looseleaf.errors import LooseLeafError
from looseleaf.services.worker_daemon.core.region_table import RegionKey

log = structlog.get_logger()

# Regions whose eviction waits to be told. Beyond it the oldest never is: whoever looks for one here in vain goes on to
# the next place.
NEWS_MAX: Final = 100_000
KEYS_PER_CALL_MAX: Final = 4_096
RETRY_S = 1.0


class EvictionNews:
    """`forget(keys)` tells the store. Nobody waits for it, except who puts a region back whose news is on its way."""

    def __init__(self, forget: Callable[[Sequence[RegionKey]], Awaitable[None]]) -> None:
        self._forget = forget
        self._waiting: dict[RegionKey, None] = {}
        self._flying: frozenset[RegionKey] = frozenset()
        # Of these: the arena is to hold them again.
        self._taken_back: set[RegionKey] = set()
        self._landed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, keys: Iterable[RegionKey]) -> None:
        """The arena has just dropped these."""
        self._waiting.update(dict.fromkeys(keys))
        for key in list(islice(self._waiting, max(0, len(self._waiting) - NEWS_MAX))):
            del self._waiting[key]
        if self._waiting and (self._task is None or self._task.done()):
            # In a context of its own: it tells for all sessions, whosever call made room.
            self._task = asyncio.create_task(self._tell(), context=Context())

    async def takes_back(self, key: RegionKey) -> None:
        """The arena is about to hold the region again: returns when no news that is told later says otherwise."""
        self._waiting.pop(key, None)
        if key in self._flying:
            self._taken_back.add(key)
            await self._landed.wait()

    async def _tell(self) -> None:
        while self._waiting:
            self._flying = frozenset(islice(self._waiting, KEYS_PER_CALL_MAX))
            for key in self._flying:
                del self._waiting[key]
            self._landed.clear()
            try:
                await self._forget(sorted(self._flying))
            except LooseLeafError as error:
                log.warning("eviction_not_told", reason=error.reason, regions=len(self._flying))
                self._waiting = {**dict.fromkeys(self._flying - self._taken_back), **self._waiting}
                delay_s = RETRY_S
            else:
                delay_s = 0.0
            finally:
                self._flying, self._taken_back = frozenset(), set()
                self._landed.set()
            await asyncio.sleep(delay_s)

    async def stop(self) -> None:
        """What was not told is not: the host's next start tells that everything is gone."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
