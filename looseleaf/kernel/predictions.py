"""Prepares the cell that is likely to be run next, where no front end tells what is edited (design §9)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from looseleaf.kernel.next_cell import NextCell, RunOrder, cells_behind, read_notebook
from looseleaf.kernel.preparations import Preparations
from looseleaf.kernel_config import KernelConfig

log = logging.getLogger("looseleaf.kernel")

# Who runs a whole notebook sends its cells faster than that: they need no guess.
PAUSE_S: Final = 0.15


class Predictions:
    """Guesses after each cell that has succeeded, until the next one arrives.

    `preparations` prepare on the loop that `control_loop` gives; once a front end tells them of edits nothing is
    guessed, nor where `config` forbids it. `notebook()`: the path of the notebook's file, empty if nobody told it.
    """

    def __init__(
        self,
        config: KernelConfig,
        preparations: Preparations,
        control_loop: Callable[[], asyncio.AbstractEventLoop],
        notebook: Callable[[], str],
        pause_s: float = PAUSE_S,
    ) -> None:
        self._config = config
        self._preparations = preparations
        self._control_loop = control_loop
        self._notebook = notebook
        self._pause_s = pause_s
        self._order = RunOrder()
        self._timer: asyncio.TimerHandle | None = None
        # Counts cells: a guess behind an older one is given up.
        self._cells = 0

    def cell_arrived(self) -> None:
        """A cell is to run: nothing needs to be guessed."""
        self.stop()

    def stop(self) -> None:
        """Gives up what would be guessed now. On the loop of the main thread."""
        self._cells += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cell_ended(self, cell_id: str, source: str, *, ok: bool) -> None:
        """On the loop of the main thread. Behind a cell that failed the person most likely mends it first."""
        ended = NextCell(cell_id, source)
        self._order.ran(ended)
        if ok and self._may_guess:
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._begin, ended)

    @property
    def _may_guess(self) -> bool:
        return self._config.predict and not self._preparations.told

    def _begin(self, ended: NextCell) -> None:
        self._timer = None
        work = self._guess(ended, self._notebook(), self._cells)
        asyncio.run_coroutine_threadsafe(work, self._control_loop())

    async def _guess(self, ended: NextCell, notebook: str, cells: int) -> None:
        try:
            likely = await asyncio.get_running_loop().run_in_executor(None, self._likely, ended, notebook)
            for cell in likely:
                if not self._may_guess or self._cells != cells:
                    return
                # As pages do: they go on from here should the extension come later.
                asked = {
                    "kind": "focus", "cell_id": cell.cell_id, "source": cell.source,
                    "device_override": cell.device_override, "edit_sequence": int(time.time() * 1000),
                }  # fmt: skip
                answer = await self._preparations.predict(asked)
                if answer.get("status") != "ok" or answer.get("recipe", {}).get("label") == "gpu":
                    return
        except Exception:
            # Nobody waits for a guess.
            log.exception("guess_failed")

    def _likely(self, ended: NextCell, notebook: str) -> list[NextCell]:
        saved = read_notebook(notebook) if notebook else None
        # The file tells what is private; the order of runs does not.
        if saved is None:
            return self._order.after(ended.cell_id)
        return cells_behind(saved, ended, self._config.private_tags)
