"""Edit signals of the page: one preparation at a time, the newest text wins (design §4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from looseleaf.errors import LooseLeafError

log = logging.getLogger("looseleaf.kernel")

PREPARE_REQUEST: Final = "looseleaf_prepare_request"
PREPARE_REPLY: Final = "looseleaf_prepare_reply"
SUPERSEDED: Final = "a newer text came before this one was looked at"


class Preparations:
    """Answers prepare requests on the control thread's event loop.

    `before` is awaited ahead of each one that is looked at; `prepare` blocks and runs on a thread of its own. Both get
    the request's content.
    """

    def __init__(
        self,
        prepare: Callable[[Mapping[str, Any]], dict[str, Any]],
        before: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        self._prepare = prepare
        self._before = before
        self._one_at_a_time = asyncio.Lock()
        self._latest: object = None

    async def answer(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The reply's content: `status` ok with what the daemon told, or error with `ename` and `evalue`."""
        mine = self._latest = object()
        async with self._one_at_a_time:
            if self._latest is not mine:
                return {"status": "ok", "skipped_reason": SUPERSEDED}
            try:
                await self._before(content)
                told = await asyncio.get_running_loop().run_in_executor(None, self._prepare, content)
            except LooseLeafError as error:
                return {"status": "error", "ename": error.reason, "evalue": error.message}
            except Exception as error:
                # Without a reply the page would send no edits any more.
                log.exception("prepare_failed")
                return {"status": "error", "ename": "BUG", "evalue": f"a fault in LooseLeaf ({type(error).__name__})"}
        return {"status": "ok", **told}
