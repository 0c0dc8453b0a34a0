"""Derives recipes for the servicer: newest state, the session's log, one analysis at a time."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from looseleaf.errors import CapacityExceeded, InvalidArgument
from looseleaf.ids import SessionId
from looseleaf.recipe import CellRun, DeviceLabel, Recipe, derive_recipe, source_hash, with_logged_names
from looseleaf.services.frontend.core.book import RecipeKey, SessionBook, SessionEntry
from looseleaf.services.frontend.core.facts_cache import StateFacts
from looseleaf.services.frontend.metrics import FrontendMetrics
from looseleaf.services.frontend.state_reader import StateReader
from looseleaf.v1 import frontend_pb2

T = TypeVar("T")

# Analyses that may wait for the one thread; at 1 ms each this is a second.
ANALYSES_WAITING_MAX = 1_000


class RecipeMaker:
    """Owns the book. Everything that reads or changes a log runs on one thread, one call after the other."""

    def __init__(
        self, book: SessionBook, reader: StateReader, metrics: FrontendMetrics, *, source_bytes_max: int
    ) -> None:
        self._book = book
        self._reader = reader
        self._metrics = metrics
        self._source_bytes_max = source_bytes_max
        # One thread: the parser's warning filters are process-wide, and logs need no lock this way.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="analysis")
        self._waiting = 0

    async def aclose(self) -> None:
        """Waits for the analysis under way."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def record(self, session_id: SessionId, runs: list[CellRun]) -> int:
        """Adds runs to a session's log; see `SessionBook.record`. Raises InvalidArgument `CELL_TOO_LARGE`."""
        for run in runs:
            self._check_size(run.source)
        return await self._analysis(self._book.record, session_id, runs)

    async def admit_edit(self, session_id: SessionId, edit_sequence: int, now_s: float) -> bool:
        """See `SessionBook.admit_edit`."""
        return await self._analysis(self._book.admit_edit, session_id, edit_sequence, now_s)

    async def is_newest_edit(self, session_id: SessionId, edit_sequence: int) -> bool:
        """See `SessionBook.is_newest_edit`."""
        return await self._analysis(self._book.is_newest_edit, session_id, edit_sequence)

    async def newest(self, session_id: SessionId, *, at_least: int = 0) -> StateFacts:
        """The session's newest state; see `StateReader.newest`."""
        return await self._reader.newest(session_id, at_least=at_least)

    async def derive(
        self, cell: frontend_pb2.CellText, state: StateFacts, *, editing: bool, for_gpu: bool = False
    ) -> Recipe:
        """The cell's recipe at `state`.

        `editing`: names of runs whose commit is under way count too, and a text that does not parse gets a guess.
        `for_gpu`: Run was pressed for a GPU; whatever the label would be, the recipe is for a worker with one.
        Raises PreconditionFailed `SESSION_LOG_STALE`, InvalidArgument `CELL_TOO_LARGE` or `DEVICE_UNKNOWN`.
        """
        self._check_size(cell.source)
        return await self._analysis(self._derive, cell, state, editing, for_gpu)

    def _derive(self, cell: frontend_pb2.CellText, state: StateFacts, editing: bool, for_gpu: bool) -> Recipe:
        entry = self._book.entry(SessionId(cell.session_id))
        self._book.check_log(entry, cell.log_length, state.epoch)
        recipe = self._cached(cell, cell.device_override, entry, state, editing)
        if for_gpu and recipe.label is not DeviceLabel.GPU:
            # The kernel knows what the text does not show, such as a first touch of the device.
            self._metrics.wrong_device()
            recipe = self._cached(cell, "gpu", entry, state, editing)
        return replace(recipe, environment_id=cell.environment_id)

    def _cached(
        self, cell: frontend_pb2.CellText, override: str, entry: SessionEntry, state: StateFacts, editing: bool
    ) -> Recipe:
        local_modules = dict(cell.local_modules)
        key = RecipeKey(
            source_hash(cell.source), cell.cell_id, override, editing, state.epoch, state.version, entry.log.length,
            tuple(sorted(local_modules.items())),
        )  # fmt: skip
        recipe = self._book.recipe(entry, key)
        if recipe is None:
            recipe = derive_recipe(
                cell.source,
                cell_id=cell.cell_id,
                log=entry.log,
                headers=with_logged_names(state.names, entry.log) if editing else state.names,
                version=state.version,
                device_override=override,
                editing=editing,
                local_module=local_modules.get,
            )
            self._book.remember(entry, key, recipe)
        return recipe

    def _check_size(self, source: str) -> None:
        size_bytes = len(source.encode("utf-8", "surrogatepass"))
        if size_bytes > self._source_bytes_max:
            text = f"A cell of {size_bytes} bytes is over the limit of {self._source_bytes_max}; split it."
            raise InvalidArgument("CELL_TOO_LARGE", text, size_bytes=size_bytes, size_bytes_max=self._source_bytes_max)

    async def _analysis(self, function: Callable[..., T], *args: object) -> T:
        if self._waiting >= ANALYSES_WAITING_MAX:
            text = "The frontend has too many cells to analyse; nothing was done, ask again."
            raise CapacityExceeded("FRONTEND_BUSY", text, retry_after_s=1.0)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, functools.partial(function, *args))
        finally:
            self._waiting -= 1
