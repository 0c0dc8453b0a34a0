"""The frontend's copy of the kernel's run log, and what needs it: preparations (design §4)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from looseleaf.errors import LooseLeafError
from looseleaf.kernel.run_log import RunLog
from looseleaf.kernel.surroundings import Surroundings
from looseleaf.protocol import fields
from looseleaf.protocol.threaded import ThreadedLink


class FrontendLog:
    """Keeps the frontend's copy of `runs` up to date. From any thread that may block."""

    def __init__(self, runs: RunLog, request_timeout_s: float) -> None:
        self.surroundings = Surroundings()
        self._runs = runs
        self._timeout_s = request_timeout_s
        # One conversation about the log at a time, from whichever thread.
        self._lock = threading.Lock()

    def send(self, link: ThreadedLink) -> None:
        """Hands the frontend all runs that it lacks. Raises the frontend's error."""
        with self._lock:
            while part := self._runs.unsent():
                self._record(link, part)

    def resend(self, link: ThreadedLink) -> None:
        """After `SESSION_LOG_STALE`: learns what the frontend has and sends the rest."""
        with self._lock:
            self._record(link, [])
        self.send(link)

    def _record(self, link: ThreadedLink, runs: list[dict[str, Any]]) -> None:
        body, _fds = link.request("record_runs", {"runs": runs}, timeout_s=self._timeout_s)
        self._runs.acknowledged(fields.integer(body, "next_sequence"))

    def prepare(self, link: ThreadedLink, message: Mapping[str, Any]) -> dict[str, Any]:
        """Has a cell prepared before Run; what the frontend tells of it. Raises LooseLeafError."""
        self.send(link)
        source = fields.text(message, "source")
        body = {
            "cell_id": fields.text(message, "cell_id", ""), "source": source,
            "device_override": fields.text(message, "device_override", ""), "log_length": self._runs.length,
            "edit_sequence": fields.integer(message, "edit_sequence", 0),
            "kind": fields.text(message, "kind", "edit"), "predicted": fields.boolean(message, "predicted", False),
            **self.surroundings.tell(source),
        }  # fmt: skip
        try:
            reply, _fds = link.request("prepare", body, timeout_s=self._timeout_s)
        except LooseLeafError as error:
            if error.reason != "SESSION_LOG_STALE":
                raise
            self.resend(link)
            reply, _fds = link.request("prepare", body, timeout_s=self._timeout_s)
        return {key: value for key, value in reply.items() if key not in ("t", "id")}
