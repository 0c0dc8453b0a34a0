"""Comms of a worker: forwarded to the kernel, and what the front end says to them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import comm
from comm.base_comm import BaseComm

from looseleaf.protocol import fields
from looseleaf.protocol.frames import Message
from looseleaf.worker.origin import under

log = logging.getLogger("looseleaf.worker")

Publish = Callable[[dict[str, Any]], None]
# (the message's id, whether nobody here could serve it: the cell had ended, or no such comm is in this process)
Done = Callable[[str, bool], None]

# What a front end may say while a cell does not listen; beyond it, messages come back as late.
WAITING_MAX: Final = 4096


def forward_comms(publish: Publish) -> None:
    """From now on every comm made in this process sends its messages by `publish`.

    Asked again before each cell: importing ipykernel, which a cell may do, puts its own comms in place.
    """

    class ForwardedComm(BaseComm):
        def publish_msg(
            self,
            msg_type: str,
            data: dict[str, Any] | None = None,
            metadata: dict[str, Any] | None = None,
            buffers: list[bytes] | None = None,
            **keys: Any,
        ) -> None:
            publish({
                "type": msg_type,
                "comm_id": self.comm_id,
                "data": {} if data is None else data,
                "metadata": {} if metadata is None else metadata,
                "buffers": [bytes(buffer) for buffer in buffers or ()],
                **keys,
            })

    comm.create_comm = ForwardedComm
    comm.get_comm_manager = comm._get_comm_manager


class CommInbox:
    """What the front end says to the comms of this process while a cell runs.

    As on an ordinary kernel a callback runs on the main thread when the cell has ended or awaits, never in the middle
    of its code; here that is before the cell's save, so that what callbacks change is saved with it. Each message is
    told to `done` once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Done) -> None:
        self._loop = loop
        self._done = done
        self._waiting: deque[Message] = deque()
        self._lock = threading.RLock()
        self._open = False

    def take(self, message: Message) -> None:
        """One `comm` event of the daemon; on the reader thread."""
        with self._lock:
            late = not self._open or len(self._waiting) >= WAITING_MAX
            if not late:
                self._waiting.append(message)
        if late:
            self._done(fields.text(message, "origin", ""), True)
        else:
            self._loop.call_soon_threadsafe(self.serve)

    def open(self) -> None:
        """A cell begins, and is set up. Before the first one messages are late: no callback computes unsettled."""
        self._open = True

    def close(self) -> None:
        """Serves what waits; what comes later is late."""
        while True:
            self.serve()
            with self._lock:
                if not self._waiting:
                    self._open = False
                    return

    def serve(self) -> None:
        """Hands what waits to the comms' callbacks. Main thread only; raises what an interrupt raises there."""
        while self._waiting:
            message = self._waiting.popleft()
            origin = fields.text(message, "origin", "")
            served = True
            try:
                with under(origin):
                    served = _dispatch(fields.mapping(message, "message"))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                # `sys.exit()` in a callback, for one: only the callback is over, not the cell that awaits meanwhile.
                log.info("callback_left kind=%s", type(error).__name__)
            finally:
                self._done(origin, not served)


def _dispatch(message: dict[str, Any]) -> bool:
    """Whether this process has the comm."""
    kind = fields.text(message, "type")
    if kind not in ("comm_msg", "comm_close") or message.get("comm_id") not in comm.get_comm_manager().comms:
        return False
    content = {"comm_id": fields.text(message, "comm_id"), "data": message.get("data") or {}}
    buffers = [memoryview(buffer) for buffer in message.get("buffers") or () if isinstance(buffer, bytes)]
    told = {
        "header": {"msg_type": kind}, "content": content, "metadata": message.get("metadata") or {}, "buffers": buffers,
    }  # fmt: skip
    # Catches and logs what a callback raises, as in an ordinary kernel.
    getattr(comm.get_comm_manager(), kind)(None, None, told)
    return True
