"""When a kernel commits what CPU cells changed: while it is idle, and ahead of a preparation (design §3)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from looseleaf.errors import LooseLeafError
from looseleaf.kernel.main_thread import call_on
from looseleaf.kernel.needs import names_to_commit
from looseleaf.kernel.session import KernelSession
from looseleaf.recipe.recipe import Recipe

log = logging.getLogger("looseleaf.kernel")

COMMIT_BEFORE_PREPARE_S: Final = 2.0


class IdleCommits:
    """Commits on the main thread's event loop, one at a time and never beside a cell.

    `busy()`: a cell of the main shell runs, here or elsewhere: a worker's cell holds the right to commit, and one that
    awaits here is in the middle of its changes. `recipe_of(source)`: what a cell with that text needs.
    """

    def __init__(
        self, session: KernelSession, busy: Callable[[], bool], recipe_of: Callable[[str], Recipe]
    ) -> None:
        self._session = session
        self._busy = busy
        self._recipe_of = recipe_of
        self._timer: asyncio.TimerHandle | None = None
        # The main thread's; known from the first cell on.
        self.loop: asyncio.AbstractEventLoop | None = None

    def cell_arrived(self) -> None:
        """On the main thread's event loop: takes back a commit that has not begun."""
        self.loop = asyncio.get_running_loop()
        self.cancel()

    def cell_ended(self) -> None:
        """Schedules a commit if there is something to commit."""
        if self._session.commits.pending:
            self._schedule()

    def notice_change(self) -> None:
        """State may have changed outside a cell. From any thread."""
        loop = self.loop
        if loop is None:
            return
        if threading.current_thread() is not threading.main_thread():
            loop.call_soon_threadsafe(self.notice_change)
            return
        self._session.changed()
        if not self._busy():
            self._schedule()

    def on_main(self, work: Callable[[], None]) -> concurrent.futures.Future[None]:
        """Has `work` done on the main thread; only once a cell has run."""
        assert self.loop is not None
        return call_on(self.loop, work)

    def cancel(self) -> None:
        """Takes back the scheduled commit, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def before_preparation(self, content: Mapping[str, Any]) -> None:
        """A preparation is for the newest state: what it needs of what waits for an idle moment is committed now.

        On any event loop; waits `COMMIT_BEFORE_PREPARE_S` at most. The rest is committed in its time.
        """
        if self.loop is None or self._busy():
            return
        try:
            committed = asyncio.wrap_future(self.on_main(functools.partial(self._commit_for, content)))
            await asyncio.wait_for(committed, COMMIT_BEFORE_PREPARE_S)
        except TimeoutError:
            log.info("prepared_without_newest_state")

    def _commit_for(self, content: Mapping[str, Any]) -> None:
        if self._timer is None or self._busy():
            return
        try:
            needed = names_to_commit(self._recipe_of(str(content.get("source", ""))))
        except LooseLeafError as error:
            log.info("prepared_without_names %s", error)
            needed = None
        self._session.commit_quietly(needed)

    def _schedule(self) -> None:
        self.cancel()
        if self.loop is not None:
            self._timer = self.loop.call_later(self._session.commit_delay_s(), self._run)

    def _run(self) -> None:
        self._timer = None
        if not self._busy():
            self._session.commit_quietly()
