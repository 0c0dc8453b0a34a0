"""Edit signals of the page: one preparation at a time, the newest text wins (design §4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from looseleaf.errors import LooseLeafError
from looseleaf.kernel.edit_signals import EditSignal
from looseleaf.kernel.gpu_state import GpuState
from looseleaf.kernel.pages import Pages

log = logging.getLogger("looseleaf.kernel")

PREPARE_REQUEST: Final = "looseleaf_prepare_request"
PREPARE_REPLY: Final = "looseleaf_prepare_reply"
SUPERSEDED: Final = "a newer text came before this one was looked at"
LEFT: Final = "nobody edits this cell any more"
# What a preparation waits for a kernel that looks for its cluster, which is quick or else takes long.
JOIN_BEFORE_PREPARE_S: Final = 2.0


class Preparations:
    """Answers prepare requests on the control thread's event loop.

    `before` is awaited ahead of each one that is looked at; `prepare` blocks and runs on a thread of its own. Both get
    the request's content. `pages` are told what becomes of it.
    """

    def __init__(
        self,
        prepare: Callable[[Mapping[str, Any]], dict[str, Any]],
        before: Callable[[Mapping[str, Any]], Awaitable[None]],
        pages: Pages | None = None,
    ) -> None:
        self._prepare = prepare
        self._before = before
        self._pages = pages or Pages(lambda _page, _state: None)
        self._one_at_a_time = asyncio.Lock()
        self._latest: object = None
        # Whether a front end tells of edits.
        self.told = False

    async def answer(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The reply's content: `status` ok with what the daemon told, or error with `ename` and `evalue`.

        `state` is what the page is to show now.
        """
        try:
            signal = EditSignal.of(content)
        except LooseLeafError as error:
            return {**_refused(error), "state": self._pages.shown()}
        self.told = True
        self._pages.met(signal.page)
        reply = await self._answer(signal, content)
        return {**reply, "state": self._pages.shown()}

    async def predict(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """As `answer`, for a cell that nobody edits: the kernel takes it for the next one. Without `state`."""
        try:
            signal = EditSignal.of(content)
        except LooseLeafError as error:
            return _refused(error)
        return await self._answer(signal, {**content, "predicted": True})

    async def _answer(self, signal: EditSignal, content: Mapping[str, Any]) -> dict[str, Any]:
        if signal.kind == "idle":
            return {"status": "ok"}
        mine = self._latest = object()
        if not signal.prepares:
            self._pages.note(GpuState.edit_left, signal.cell_id)
            return {"status": "ok", "skipped_reason": LEFT}
        async with self._one_at_a_time:
            if self._latest is not mine:
                return {"status": "ok", "skipped_reason": SUPERSEDED}
            self._pages.note(GpuState.edit_began, signal.cell_id)
            try:
                await self._before(content)
                told = await asyncio.get_running_loop().run_in_executor(None, self._prepare, content)
            except LooseLeafError as error:
                self._pages.note(GpuState.edit_failed, error.reason, error.message)
                return _refused(error)
            except Exception as error:
                # Without a reply the page would send no edits any more.
                log.exception("prepare_failed")
                text = f"a fault in LooseLeaf ({type(error).__name__})"
                self._pages.note(GpuState.edit_failed, "BUG", text)
                return {"status": "error", "ename": "BUG", "evalue": text}
            self._pages.note(GpuState.edit_ended, signal.cell_id, told)
        return {"status": "ok", **told}


async def join_first(join: Callable[[], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop) -> None:
    """Has `join` run on the main thread's `loop`: a notebook's first text comes before its first cell has run.

    Waits `JOIN_BEFORE_PREPARE_S` at most.
    """
    try:
        joining = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(join(), loop))
        # What others may already wait for goes on.
        await asyncio.wait_for(asyncio.shield(joining), JOIN_BEFORE_PREPARE_S)
    except TimeoutError:
        log.info("edited_before_joined")


def _refused(error: LooseLeafError) -> dict[str, Any]:
    return {"status": "error", "ename": error.reason, "evalue": error.message}
