"""Brings regions from where else they are into the arena: several sources at once, going on after a broken stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import aclosing
from typing import Protocol

import structlog

from looseleaf.errors import Corrupt, InvalidArgument, LooseLeafError, NotFound, Timeout, Unavailable
from looseleaf.ids import HostId
from looseleaf.services.worker_daemon.core.region_table import RegionKey, RegionTable

log = structlog.get_logger()

# Streams of the whole host at once; each has a few regions of 2 MiB in flight.
STREAMS_MAX = 4
# A stream that breaks is asked again for what it has not brought; so often without a single region in between.
BREAKS_MAX = 3
RESUME_DELAY_S = 0.25


class RegionSource(Protocol):
    """Somewhere else that may hold regions: another host's arena or the store's disk."""

    def fetch(self, keys: Sequence[RegionKey]) -> AsyncGenerator[tuple[RegionKey, bytes], None]:
        """Yields the regions it has, each whole, in any order; the rest are left out."""
        ...


class RegionLocator(Protocol):
    """Tells where regions are, nearest source first."""

    async def sources(self, keys: Sequence[RegionKey]) -> list[tuple[RegionSource, list[RegionKey]]]:
        """Each source with those of `keys` that it is said to have; a key may be listed under several."""
        ...

    async def forget(self, host_id: HostId, keys: Sequence[RegionKey]) -> None:
        """Tells whom it concerns that the host's arena no longer holds the regions."""
        ...


# Verifies a region, puts it into the arena and pins it; see HostRegions.put.
Put = Callable[[RegionKey, memoryview, Hashable], Awaitable[None]]


class RegionFetching:
    """Fetches each region once, however many ask for it at the same time."""

    def __init__(self, locator: RegionLocator, table: RegionTable, put: Put) -> None:
        self._locator = locator
        self._table = table
        self._put = put
        self._flights: dict[RegionKey, asyncio.Future[None]] = {}
        self._streams = asyncio.Semaphore(STREAMS_MAX)

    async def fetch(self, keys: Iterable[RegionKey], hold: Hashable) -> None:
        """The arena holds `keys`, all pinned for `hold`, when it returns.

        Raises NotFound `REGIONS_LOST` if no place has some of them, Unavailable `REGIONS_UNREACHABLE` if a place that
        may have them did not answer, and what `put` raises for want of room; some may be pinned then.
        """
        wanted = list(keys)
        while lacking := [key for key in wanted if not self._held(key, hold)]:
            mine = [key for key in lacking if key not in self._flights]
            if mine:
                await self._fly(mine, hold)
            # Others' flights may fail for reasons of their own: then what they were to bring is fetched here.
            if flights := [self._flights[key] for key in lacking if key in self._flights]:
                await asyncio.wait(flights)

    def _held(self, key: RegionKey, hold: Hashable) -> bool:
        return self._table.pin(key, hold) is not None

    async def _fly(self, keys: Sequence[RegionKey], hold: Hashable) -> None:
        loop = asyncio.get_running_loop()
        flights = {key: loop.create_future() for key in keys}
        self._flights.update(flights)
        try:
            await self._bring(set(keys), hold)
        finally:
            for key, flight in flights.items():
                del self._flights[key]
                flight.set_result(None)

    async def _bring(self, lacking: set[RegionKey], hold: Hashable) -> None:
        """Round by round each region's next source is asked, all sources of a round side by side."""
        untried = await self._locator.sources(sorted(lacking))
        unanswered: list[LooseLeafError] = []
        while untried:
            now, later, claimed = [], [], set[RegionKey]()
            for source, its_keys in untried:
                part = [key for key in its_keys if key in lacking and key not in claimed]
                rest = [key for key in its_keys if key in claimed]
                claimed.update(part)
                now += [(source, part)] if part else []
                later += [(source, rest)] if rest else []
            asked = [asyncio.create_task(self._ask(source, part, lacking, hold)) for source, part in now]
            try:
                unanswered += filter(None, await asyncio.gather(*asked))
            finally:
                for task in asked:
                    task.cancel()
                await asyncio.gather(*asked, return_exceptions=True)
            untried = later
        if lacking:
            raise self._failed(len(lacking), unanswered)

    @staticmethod
    def _failed(regions: int, unanswered: list[LooseLeafError]) -> LooseLeafError:
        if unanswered:
            return Unavailable(
                "REGIONS_UNREACHABLE",
                f"{regions} pieces of saved state could not be fetched: the host or store that has them did not answer "
                f"({unanswered[0].reason}); nothing is lost, run the cell again",
                regions=regions,
            )
        return NotFound(
            "REGIONS_LOST",
            f"{regions} pieces of saved state are on no host and not on the store's disk; restore an older version",
            regions=regions,
        )

    async def _ask(
        self, source: RegionSource, keys: list[RegionKey], lacking: set[RegionKey], hold: Hashable
    ) -> LooseLeafError | None:
        """Takes what the source has of `keys` off `lacking`; returns why it did not answer to the end, if so."""
        wanted = dict.fromkeys(keys)
        breaks = 0
        async with self._streams:
            while wanted:
                before = len(wanted)
                try:
                    await self._read(source, wanted, lacking, hold)
                    return None
                except _StreamBroke as broke:
                    stuck = len(wanted) == before
                    breaks = breaks + 1 if stuck else 1
                    log.warning("region_source_broke", reason=broke.error.reason, regions=len(wanted), breaks=breaks)
                    # One that was silent for a stream's whole time is not waited for again.
                    worth = Unavailable if stuck else (Unavailable, Timeout)
                    if breaks >= BREAKS_MAX or not isinstance(broke.error, worth):
                        return broke.error
                await asyncio.sleep(RESUME_DELAY_S)
        return None

    async def _read(
        self, source: RegionSource, wanted: dict[RegionKey, None], lacking: set[RegionKey], hold: Hashable
    ) -> None:
        """One stream; what came, whole or wrong, is no longer `wanted`. Raises _StreamBroke, or for want of room."""
        async with aclosing(source.fetch(list(wanted))) as regions:
            stream = aiter(regions)
            while True:
                try:
                    key, data = await anext(stream)
                except StopAsyncIteration:
                    return
                except LooseLeafError as error:
                    raise _StreamBroke(error) from error
                if key not in wanted:
                    continue
                del wanted[key]
                try:
                    await self._put(key, memoryview(data), hold)
                except (Corrupt, InvalidArgument) as error:
                    log.error("region_source_corrupt", reason=error.reason, region=key[0].hex())
                    continue
                lacking.discard(key)


class _StreamBroke(Exception):
    """The stream, not the arena, failed; it never leaves this module."""

    def __init__(self, error: LooseLeafError) -> None:
        self.error = error
