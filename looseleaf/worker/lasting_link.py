"""A worker's connection to its daemon, which for the length of a cell outlives that daemon (design §5).

While a cell runs or is saved, a daemon that goes does not end the worker: it looks for the next daemon of its host for
`REJOIN_S`, tells it what the last one may not have passed on, and goes on. Between cells the daemon's end is its own.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from looseleaf.errors import InvalidArgument, LooseLeafError, Unavailable
from looseleaf.protocol.channel import Channel
from looseleaf.protocol.frames import PROTOCOL_VERSION, Message, encode_frame
from looseleaf.protocol.rpc import build_message
from looseleaf.protocol.threaded import MessageCallback, ThreadedLink
from looseleaf.units import MIB

# A daemon that was lost is looked for so long; the worker ends itself if none has answered by then.
REJOIN_S: Final = 30.0
RETRY_S: Final = 0.1
# One that listens asks its GPUs' driver and twice the store before it lets anybody in.
WELCOME_S: Final = 150.0
# Of what a cell tells, so much is kept for the next daemon: more than may be on its way to one that is lost, unless the
# kernel is behind. As much may be told while none is there; then who prints waits.
KEPT_BYTES_MAX: Final = 32 * MIB
_POLL_S: Final = 0.01
FLUSH_S: Final = 1.0


class _Run:
    """The cell under way, and what was told of it. `request_id`: what the daemon there waits for, 0 while none does."""

    def __init__(self, request_id: int, execution_id: str, socket_path: str) -> None:
        self.asked_id = self.request_id = request_id
        self.execution_id = execution_id
        self.socket_path = socket_path
        self.started_s: float | None = None
        self.told = 0
        self.kept: deque[bytes] = deque()
        self.kept_bytes = 0
        # Told since the last daemon was lost.
        self.unsent_bytes = 0

    def keep(self, frame: bytes, *, away: bool) -> None:
        self.kept.append(frame)
        self.kept_bytes += len(frame)
        if away:
            self.unsent_bytes += len(frame)
        else:
            self.trim()

    def trim(self) -> None:
        while self.kept_bytes > KEPT_BYTES_MAX and len(self.kept) > 1:
            self.kept_bytes -= len(self.kept.popleft())


class LastingLink:
    """As ThreadedLink towards the daemon that there is; see there for the callbacks.

    `leave(error)` is called once the connection has ended and no other can take its place; it does not return.
    `on_welcome(fds)` gets what the next daemon sends along.
    """

    def __init__(
        self, channel: Channel, on_event: MessageCallback, on_request: MessageCallback,
        leave: Callable[[LooseLeafError], None], on_welcome: Callable[[list[int]], None],
    ) -> None:  # fmt: skip
        self._on_event = on_event
        self._on_request = on_request
        self._leave = leave
        self._on_welcome = on_welcome
        # Reentrant, as a signal handler may print while its thread is inside.
        self._lock = threading.RLock()
        self._run: _Run | None = None
        self._away = False
        self._link = self._linked(channel)

    def _linked(self, channel: Channel) -> ThreadedLink:
        link = ThreadedLink(channel, self._on_event, self._on_request, lambda error: self._lost(link, error))
        return link

    def start(self) -> None:
        """Begins to read and to send."""
        self._link.start()

    def say_first(self, type_: str, body: Message) -> None:
        """Before `start`: sent on this thread. That the daemon is gone is told after `start`, as at any time."""
        with suppress(Unavailable):
            self._link.channel.send(build_message(type_, 0, body))

    @property
    def current(self) -> ThreadedLink:
        """The connection to the last daemon that was there."""
        return self._link

    def send_event(self, type_: str, body: Message) -> None:
        """As ThreadedLink: of what is no matter of a cell."""
        self._link.send_event(type_, body)

    def flush(self, timeout_s: float) -> bool:
        """As ThreadedLink."""
        return self._link.flush(timeout_s)

    # -- the cell --------------------------------------------------------------------------------------

    def begin_run(self, request_id: int, execution_id: str, socket_path: str) -> None:
        """The cell that this request brought begins. `socket_path`: where the host's next daemon would listen; empty:
        there will be none."""
        self._run = _Run(request_id, execution_id, socket_path)

    def run_started(self) -> None:
        """Its first statement is next."""
        if self._run is not None:
            self._run.started_s = time.monotonic()

    def tell(self, type_: str, body: Message) -> None:
        """Sends an event of the cell, numbered by `n`; while no daemon is there it waits for the next one.

        Raises InvalidArgument as `encode_frame`; Unavailable in a forked child and, between cells, as ThreadedLink.
        """
        if (error := self._link.error) is not None and error.reason == "FORKED_CHILD":
            raise error
        while (run := self._run) is not None and run.unsent_bytes > KEPT_BYTES_MAX:
            time.sleep(_POLL_S)
        with self._lock:
            run = self._run
            if run is None:
                self._link.send_event(type_, body)
                return
            frame = encode_frame(build_message(type_, 0, {**body, "n": run.told + 1}))
            run.told += 1
            run.keep(frame, away=self._away or self._link.broken)
            if not self._away:
                self._send(self._link, frame)

    def answer(self, request_id: int, reply: Message | BaseException) -> None:
        """Answers a request. The answer of the cell under way goes to the daemon that waits for it by then, which may
        have to come first, and ends the cell."""
        run = self._run
        if run is None or request_id != run.asked_id:
            _answer(self._link, request_id, reply)
            return
        while True:
            with self._lock:
                link, may = self._link, bool(not self._away and run.request_id)
                may = may and _answered(link, run.request_id, reply)
            # A daemon that has gone takes nothing, also before its end was noticed here: the next one asks for it.
            if may and _handed_over(link):
                with self._lock:
                    self._run = None
                return
            time.sleep(_POLL_S)

    def resume(self, message: Message) -> bool:
        """The next daemon asks for the outcome of its cell; False if that is another one. On the reader thread."""
        run = self._run
        if run is None or message.get("execution_id") != run.execution_id:
            return False
        run.request_id = message["id"]
        return True

    def renewed(self, old: ThreadedLink) -> ThreadedLink:
        """The connection that took the place of `old`, which has failed; waits for it."""
        while True:
            with self._lock:
                if not self._away and self._link is not old:
                    return self._link
            time.sleep(_POLL_S)

    # -- the daemon's end ------------------------------------------------------------------------------

    def _lost(self, link: ThreadedLink, error: LooseLeafError) -> None:
        """On the reader thread of the connection that has ended, which has nothing else to do any more."""
        with self._lock:
            if link is not self._link or self._away:
                return
            run = self._run
            if run is not None and run.socket_path:
                self._away, run.request_id = True, 0
        if run is not None and self._away and self._rejoin(run):
            return
        self._leave(error)

    def _rejoin(self, run: _Run) -> bool:
        limit_s = time.monotonic() + REJOIN_S
        while time.monotonic() < limit_s:
            link = self._welcomed(run)
            if link is not None and self._take_over(run, link):
                return True
            time.sleep(RETRY_S)
        return False

    def _welcomed(self, run: _Run) -> ThreadedLink | None:
        """A connection to a daemon that goes on with the cell; None if there is none now."""
        # What one asked for that went again at once is nobody's.
        run.request_id = 0
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.connect(run.socket_path)
        except OSError:
            sock.close()
            return None
        link = self._linked(Channel(sock)).start()
        hello = {
            "v": PROTOCOL_VERSION, "role": "worker", "pid": os.getpid(), "execution_id": run.execution_id,
            "started_s": run.started_s,
        }  # fmt: skip
        try:
            _body, fds = link.request("hello", hello, timeout_s=WELCOME_S)
        except LooseLeafError:
            link.close()
            return None
        self._on_welcome(fds)
        return link

    def _take_over(self, run: _Run, link: ThreadedLink) -> bool:
        with self._lock:
            for frame in run.kept:
                self._send(link, frame)
            run.unsent_bytes = 0
            run.trim()
            self._link, self._away = link, False
            if link.error is None:
                return True
            # It has gone too, and its end was not taken for ours.
            self._away = True
            return False

    @staticmethod
    def _send(link: ThreadedLink, frame: bytes) -> None:
        try:
            link.send_frame(frame)
        except Unavailable:
            return  # it is kept for the next daemon


def _answered(link: ThreadedLink, request_id: int, reply: Message | BaseException) -> bool:
    try:
        _answer(link, request_id, reply)
    except Unavailable:
        return False
    return True


def _handed_over(link: ThreadedLink) -> bool:
    """Waits until the socket took all that was sent; False if the connection ended first."""
    while not link.flush(FLUSH_S):
        if link.error is not None:
            return False
    return True


def _answer(link: ThreadedLink, request_id: int, reply: Message | BaseException) -> None:
    if isinstance(reply, BaseException):
        link.reply_error(request_id, reply)
        return
    try:
        link.reply(request_id, reply)
    except InvalidArgument as error:
        link.reply_error(request_id, error)
