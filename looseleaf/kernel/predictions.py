"""Prepares the cell that is likely to be run next, where no front end tells what is edited (design §9)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from looseleaf.kernel.next_cell import NextCell, RunOrder, cells_behind, read_notebook

log = logging.getLogger("looseleaf.kernel")

# Who runs a whole notebook sends its cells faster than that: they need no guess.
PAUSE_S: Final = 0.15


class Predictions:
    """Guesses after each cell that has succeeded, until the next one arrives.

    `prepare` answers like `Preparations.predict`, on the loop that `control_loop` gives. `told()`: a front end tells of
    edits itself, so nothing is guessed. `notebook()`: the path of the notebook's file, empty if nobody told it.
    """

    def __init__(
        self,
        prepare: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]],
        control_loop: Callable[[], asyncio.AbstractEventLoop],
        told: Callable[[], bool],
        notebook: Callable[[], str],
        pause_s: float = PAUSE_S,
    ) -> None:
        self._prepare = prepare
        self._control_loop = control_loop
        self._told = told
        self._notebook = notebook
        self._pause_s = pause_s
        self._order = RunOrder()
        self._timer: asyncio.TimerHandle | None = None
        # Counts cells: a guess behind an older one is given up.
        self._cells = 0

    def cell_arrived(self) -> None:
        """A cell is to run: nothing needs to be guessed."""
        self._cells += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cell_ended(self, cell_id: str, source: str, *, ok: bool) -> None:
        """On the loop of the main thread. Behind a cell that failed the person most likely mends it first."""
        ended = NextCell(cell_id, source)
        self._order.ran(ended)
        if ok and not self._told():
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._begin, ended)

    def _begin(self, ended: NextCell) -> None:
        self._timer = None
        work = self._guess(ended, self._notebook(), self._cells)
        asyncio.run_coroutine_threadsafe(work, self._control_loop())

    async def _guess(self, ended: NextCell, notebook: str, cells: int) -> None:
        try:
            likely = await asyncio.get_running_loop().run_in_executor(None, self._likely, ended, notebook)
            for cell in likely:
                if self._told() or self._cells != cells:
                    return
                # As pages do: they go on from here should the extension come later.
                asked = {
                    "kind": "focus", "cell_id": cell.cell_id, "source": cell.source,
                    "device_override": cell.device_override, "edit_sequence": int(time.time() * 1000),
                }  # fmt: skip
                answer = await self._prepare(asked)
                if answer.get("status") != "ok" or answer.get("recipe", {}).get("label") == "gpu":
                    return
        except Exception:
            # Nobody waits for a guess.
            log.exception("guess_failed")

    def _likely(self, ended: NextCell, notebook: str) -> list[NextCell]:
        saved = read_notebook(notebook) if notebook else None
        # The file tells what is private; the order of runs does not.
        return self._order.after(ended.cell_id) if saved is None else cells_behind(saved, ended)
