"""A line that stands under a request for a while and takes nothing of what others show there with it.

Others are the threads of earlier cells: what they print belongs to the newest request, as in ipykernel 7.4.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from looseleaf.kernel.outgoing import request_of, unwatched

# A line stands under the newest request; older ones show something late at most.
REQUESTS_MAX: Final = 1024
SHOWN: Final = frozenset({"stream", "display_data", "execute_result", "error"})

# (message type, content), sent under the line's request
Send = Callable[[str, dict[str, Any]], None]


class ShownOutputs:
    """Under which of the newest `REQUESTS_MAX` requests something stands. Thread-safe; `take` is an outgoing.Watch.

    With `lock` held nothing passes the watch: what is sent under it comes before all that has not passed yet.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._requests: OrderedDict[str, None] = OrderedDict()

    def take(self, request_id: str, kind: str, content: Any) -> None:
        """See outgoing.Watch."""
        if kind in SHOWN:
            with self.lock:
                self._requests[request_id] = None
                self._requests.move_to_end(request_id)
                if len(self._requests) > REQUESTS_MAX:
                    self._requests.popitem(last=False)
        elif kind == "clear_output" and not content.get("wait"):
            with self.lock:
                self._requests.pop(request_id, None)

    def under(self, parent: Any) -> bool:
        """Whether something stands under this request."""
        return request_of(parent) in self._requests


class PassingLine:
    """The line of the request `parent`. Passes no watcher, so that no journal keeps it. Thread-safe."""

    def __init__(self, parent: Any, shown: ShownOutputs, send: Send) -> None:
        self._parent = parent
        self._shown = shown
        self._send = send
        # Empty while it does not stand.
        self._display_id = ""
        self._is_over = False

    def show(self, text: str) -> bool:
        """Shows `text` instead of the one before; False if the line has ended, or another output stood there first."""
        with self._shown.lock:
            if self._is_over or (not self._display_id and self._shown.under(self._parent)):
                return False
            kind = "update_display_data" if self._display_id else "display_data"
            self._display_id = self._display_id or uuid.uuid4().hex
            self._tell(kind, {"text/plain": text}, self._display_id)
            return True

    def end(self) -> None:
        """Takes the line away, for good. Where others have shown something meanwhile an empty display stays behind."""
        if self._is_over:
            return
        with self._shown.lock:
            self._is_over = True
            display_id, self._display_id = self._display_id, ""
            if display_id and self._shown.under(self._parent):
                self._tell("update_display_data", {}, display_id)
            elif display_id:
                with unwatched():
                    self._send("clear_output", {"wait": False})

    def _tell(self, kind: str, data: dict[str, str], display_id: str) -> None:
        with unwatched():
            self._send(kind, {"data": data, "metadata": {}, "transient": {"display_id": display_id}})
