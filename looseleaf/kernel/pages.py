"""Tells open pages what the session's GPU does (design §9).

A page opens a comm on its side only and names it in its edit signals. Nothing is ever sent to the kernel on that comm:
a comm message makes a kernel publish `idle`, which servers take for the end of a cell that runs.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec

from looseleaf.kernel.gpu_state import WATCHED, GpuState, Shown
from looseleaf.protocol.frames import Message

log = logging.getLogger("looseleaf.kernel")

# Nobody says when a page is closed: only the pages that sent signals last are told.
PAGES_MAX: Final = 8

# (comm id, state)
Push = Callable[[str, Shown], None]
_P = ParamSpec("_P")


class Pages:
    """Keeps the state and pushes each change of it to the pages, in order. Thread-safe.

    What goes wrong here is logged and stops neither a cell nor the link to the daemon.
    `change` in a state counts the changes so far: answers and pushes travel apart, and an older one must not win.
    """

    def __init__(self, push: Push) -> None:
        self._push = push
        self._state = GpuState()
        self._changes = 0
        self._pushed: Shown = self._state.shown
        self._pages: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def met(self, page: str) -> None:
        """A signal came from this page; empty if it wants no news."""
        if page:
            with self._lock:
                self._pages[page] = None
                self._pages.move_to_end(page)
                while len(self._pages) > PAGES_MAX:
                    self._pages.popitem(last=False)

    @property
    def known(self) -> bool:
        """Whether any page wants news."""
        return bool(self._pages)

    def note(self, change: Callable[Concatenate[GpuState, _P], None], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Has the state change by one of GpuState's methods."""
        with self._lock:
            change(self._state, *args, **kwargs)
            shown = self._state.shown
            if shown != self._pushed:
                self._pushed = shown
                self._changes += 1
                for page in self._pages:
                    try:
                        self._push(page, {**shown, "change": self._changes})
                    except Exception:
                        log.exception("page_not_told")

    def take_event(self, message: Message) -> None:
        """One event of the daemon, on the link's reader thread."""
        try:
            if message.get("kind") in WATCHED:
                self.note(GpuState.event, message)
        except Exception as error:
            # It would end the link, and with it the cell that runs.
            log.warning("event_not_shown error=%s", type(error).__name__)

    def shown(self) -> dict[str, Any]:
        """What holds now."""
        with self._lock:
            return {**self._pushed, "change": self._changes}
