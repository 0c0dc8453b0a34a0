"""What cells left running on their workers: shown late, told about once, given up for the session's next GPU cell."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from looseleaf.errors import InvalidArgument, LooseLeafError
from looseleaf.kernel.forwarder import Publishers, RequestPublisher, publish_output
from looseleaf.protocol import fields
from looseleaf.protocol.frames import Message

log = logging.getLogger("looseleaf.kernel")

NAMES_SHOWN_MAX: Final = 3
# Holds of which no end was heard, as that of a host that went; a session has one or two at a time.
HELD_MAX: Final = 64
_KINDS: Final = {"thread": "background thread", "process": "process", "task": "asyncio task"}
# As docs/not-preserved.md has it.
_CARRIED: Final = (
    "What it changes from here on reaches the notebook's variables with this session's next GPU cell, if that one "
    "finds it still there"
)

SendRequest = Callable[[str, Message], Future[Any]]


class LeftNotes:
    """Takes the events of executions that have ended. On the link's reader thread unless a method says otherwise.

    Publishes right there, as a thread of an ordinary kernel would: the main thread may run a cell meanwhile.
    """

    def __init__(self, publishers: Publishers) -> None:
        self._publishers = publishers
        # Executions whose GPU is held for what they left, with the worker's pid and what they left.
        self._held: dict[str, int] = {}
        # What was given up for a GPU cell whose outcome is not known yet: (publisher, pid, what).
        self._given_up: list[tuple[RequestPublisher, int, str]] = []
        self._told: tuple[int, str] = (0, "")
        # Events that came behind a cell's outcome are told in order: first those that its run kept.
        self._lock = threading.RLock()

    def cell_ended(
        self, execution_id: str, saved: Mapping[str, Any], rest: Callable[[], Sequence[Message]]
    ) -> None:
        """A GPU cell has ended; `rest()` gives the events that came behind its outcome, all until then. Main thread."""
        with self._lock:
            pid = saved.get("pid")
            if isinstance(pid, int) and pid:
                self._ran_on(pid)
                if saved.get("left_running"):
                    self._held[execution_id] = pid
                    while len(self._held) > HELD_MAX:
                        del self._held[next(iter(self._held))]
            for event in rest():
                self._take(event)

    def release(self, send: SendRequest) -> None:
        """A GPU cell is about to be submitted: it must not wait for what an earlier one left. Main thread."""
        for execution_id in list(self._held):
            try:
                send("release_left", {"execution_id": execution_id}).add_done_callback(_log_refusal)
            except LooseLeafError as error:
                log.info("left_not_released %s", error)

    def _ran_on(self, pid: int) -> None:
        # What was given up for this cell lives on only in the same worker.
        given_up, self._given_up = self._given_up, []
        for publisher, old_pid, what in given_up:
            if old_pid != pid:
                _say(publisher, f"{what} of this cell was ended with its worker, which made way")

    def take(self, event: Message) -> None:
        """One event; of cells that nobody knows any more it is shown under the newest request."""
        with self._lock:
            self._take(event)

    def _take(self, event: Message) -> None:
        kind = event.get("kind")
        try:
            if kind == "output":
                message = fields.mapping(event, "message")
                publish_output(self._publishers.late(message.get("origin")), message)
            elif kind == "left":
                self._take_news(event)
        except InvalidArgument as error:
            log.warning("late_event_dropped %s", error)
        except Exception as error:
            # The link must live on. The text may hold values.
            log.error("late_event_dropped error=%s", type(error).__name__)

    def _take_news(self, event: Message) -> None:
        execution_id, state = fields.text(event, "execution_id"), fields.text(event, "state")
        publisher = self._publishers.late(execution_id)
        what = describe(fields.sequence(event, "items", []))
        limit_s = fields.number(event, "limit_s", 0.0)
        pid = self._held.get(execution_id, 0)
        if state == "held":
            # The same thread beside the session's next cell is no news.
            if self._told != (pid, what):
                self._told = (pid, what)
                held = f"the GPU is held for it, for up to {limit_s:g} s"
                _say(publisher, f"{what} of this cell still runs; {held}. {_CARRIED}")
            return
        self._held.pop(execution_id, None)
        if state == "released":
            self._given_up.append((publisher, pid, what))
        elif state == "limit":
            _say(publisher, f"{what} of this cell was ended after {limit_s:g} s; what it changed since is not kept")
        elif state == "lost":
            _say(publisher, f"{what} of this cell ended with its worker; what it changed since is not kept")


def describe(items: Sequence[Any]) -> str:
    """Such as "background thread 'monitor' and 2 more"."""
    found = [item for item in items if isinstance(item, Mapping)]
    names = [f"{_KINDS.get(str(item.get('kind')), 'something')} {item.get('name')!r}" for item in found]
    shown, more = names[:NAMES_SHOWN_MAX], len(names) - NAMES_SHOWN_MAX
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _say(publisher: RequestPublisher, text: str) -> None:
    publish_output(publisher, {"type": "stream", "name": "stderr", "text": f"LooseLeaf: {text}.\n"})


def _log_refusal(future: Future[Any]) -> None:
    # It may have ended just now.
    if (error := future.exception()) is not None:
        log.info("left_not_released %s", error)
