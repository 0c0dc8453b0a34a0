"""A link with threads of its own, for processes whose main thread runs a person's code.

One thread reads, one sends. No signal handler ever runs on them, so a KeyboardInterrupt can never cut a message in two,
whatever handler the person installed. For the same reason nothing here waits on a pure-Python lock on the caller's
thread: `SimpleQueue` and `RLock` are safe against exceptions raised by signal handlers, `Condition` is not.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Final

from looseleaf.errors import LooseLeafError, Unavailable
from looseleaf.protocol.channel import Channel, peer_closed
from looseleaf.protocol.frames import Message, close_fds, duplicate_fds, encode_frame
from looseleaf.protocol.rpc import (
    OK,
    as_fault,
    build_error,
    build_message,
    is_reply,
    open_reply,
    request_timeout,
    unknown_message,
)
from looseleaf.units import KIB

# Frames that may wait for the sender thread; a larger one than SMALL_FRAME_BYTES_MAX waits until nothing else waits.
OUTGOING_FRAMES_MAX: Final = 64
SMALL_FRAME_BYTES_MAX: Final = 256 * KIB
_ROOM_POLL_S: Final = 0.001

MessageCallback = Callable[[Message, list[int]], None]
_Answer = tuple[Message, list[int]] | LooseLeafError
_Outgoing = tuple[bytes, list[int]] | Callable[[], None] | None


class ThreadedLink:
    """Requests in both directions over `channel`, from any thread.

    `on_event` and `on_request` are called on the reader thread, in order of arrival; they own the fds and must not wait
    for a reply on this link; one that raises ends the connection. Without `on_request` every request is refused.
    `on_close` is called once on the reader thread when the connection has ended, with the reason, after all that the
    peer sent before it went. A forked child has no link: every call raises Unavailable `FORKED_CHILD` there.
    """

    def __init__(
        self,
        channel: Channel,
        on_event: MessageCallback | None = None,
        on_request: MessageCallback | None = None,
        on_close: Callable[[LooseLeafError], None] | None = None,
        name: str = "looseleaf-link",
    ) -> None:
        self.channel = channel
        self._on_event = on_event
        self._on_request = on_request
        self._on_close = on_close
        self._pid = os.getpid()
        self._ids = itertools.count(1)
        self._pending: dict[int, Callable[[_Answer], object]] = {}
        self._outgoing: SimpleQueue[_Outgoing] = SimpleQueue()
        self._error: LooseLeafError | None = None
        # A frame could not be sent: no later one is, and the connection is about to end.
        self.broken = False
        self._sender = threading.Thread(target=self._send_loop, name=f"{name}-send", daemon=True)
        self._receiver = threading.Thread(target=self._receive_loop, name=f"{name}-recv", daemon=True)
        _links.add(self)

    def start(self) -> ThreadedLink:
        """Starts both threads; before that nothing is read, so callbacks can be set up first."""
        self._sender.start()
        self._receiver.start()
        return self

    @property
    def error(self) -> LooseLeafError | None:
        """Why the connection has ended, or None while it lives."""
        return self._error

    def begin(self, type_: str, body: Message, fds: Sequence[int] = ()) -> PendingReply:
        """Sends a request and returns at once; requests are handled in the order they were begun.

        The fds are duplicated: the caller may close its own at once.
        """
        pending = PendingReply(self, type_, next(self._ids))
        try:
            self._send(build_message(type_, pending.request_id, body), fds)
        except BaseException:
            pending.drop()
            raise
        return pending

    def request(
        self, type_: str, body: Message, fds: Sequence[int] = (), timeout_s: float | None = None
    ) -> tuple[Message, list[int]]:
        """Sends a request and waits; never call it on the reader thread. Raises as `PendingReply.result`."""
        assert threading.current_thread() is not self._receiver, "the reader thread would wait for itself"
        pending = self.begin(type_, body, fds)
        try:
            return pending.result(timeout_s)
        except BaseException as error:
            if not isinstance(error, LooseLeafError):
                pending.drop()
            raise

    def request_future(self, type_: str, body: Message, fds: Sequence[int] = ()) -> Future[tuple[Message, list[int]]]:
        """As `request`, for `asyncio.wrap_future`; the future ends on the reader thread."""
        future: Future[tuple[Message, list[int]]] = Future()
        request_id = next(self._ids)

        def finish(answer: _Answer) -> None:
            if not future.set_running_or_notify_cancel():
                _drop(answer)
                return
            try:
                future.set_result(_open(answer))
            except LooseLeafError as error:
                future.set_exception(error)

        self._pending[request_id] = finish
        try:
            self._send(build_message(type_, request_id, body), fds)
        except BaseException:
            self._pending.pop(request_id, None)
            raise
        return future

    def send_event(self, type_: str, body: Message, fds: Sequence[int] = ()) -> None:
        """Queues a message that gets no reply. Raises Unavailable `PEER_CLOSED`, InvalidArgument as `encode_frame`."""
        self._send(build_message(type_, 0, body), fds)

    def send_frame(self, frame: bytes) -> None:
        """As `send_event`, of one that `encode_frame` has made. Raises Unavailable `PEER_CLOSED`."""
        self._queue(frame, ())

    def reply(self, request_id: int, body: Message, fds: Sequence[int] = ()) -> None:
        """Answers a request that `on_request` got."""
        self._send(build_message(OK, request_id, body), fds)

    def reply_error(self, request_id: int, error: BaseException) -> None:
        """Answers a request with an error."""
        self._send(build_error(request_id, error), ())

    def flush(self, timeout_s: float) -> bool:
        """Waits until all that is queued now was handed to the socket; False if it took too long or the link ended."""
        done: SimpleQueue[None] = SimpleQueue()
        self._outgoing.put(lambda: done.put(None))
        deadline_s = time.monotonic() + timeout_s
        while self._error is None:
            try:
                done.get(timeout=min(0.05, max(0.0, deadline_s - time.monotonic())))
                return True
            except Empty:
                if time.monotonic() >= deadline_s:
                    break
        return False

    def close(self) -> None:
        """Ends the connection; requests under way raise Unavailable `PEER_CLOSED`. Idempotent, from any thread."""
        if os.getpid() != self._pid:
            return
        self._end(peer_closed("this side closed the connection"))
        if threading.current_thread() is not self._receiver and self._receiver.is_alive():
            self._receiver.join(timeout=5.0)

    def forget(self) -> None:
        """In a forked child: closes the child's copy of the socket, so that the peer sees when the parent ends."""
        self._error = Unavailable("FORKED_CHILD", "a forked child process has no connection to LooseLeaf")
        self._pending.clear()
        self.channel.forget()

    def _send(self, message: Message, fds: Sequence[int]) -> None:
        self._queue(encode_frame(message, len(fds)), fds)

    def _queue(self, frame: bytes, fds: Sequence[int]) -> None:
        while self._error is None and not self._has_room(len(frame)):
            time.sleep(_ROOM_POLL_S)
        if self._error is not None:
            raise self._error
        self._outgoing.put((frame, duplicate_fds(fds)))

    def _has_room(self, frame_bytes: int) -> bool:
        waiting = self._outgoing.qsize()
        return waiting == 0 or (frame_bytes <= SMALL_FRAME_BYTES_MAX and waiting < OUTGOING_FRAMES_MAX)

    def _send_loop(self) -> None:
        while (item := self._outgoing.get()) is not None:
            if callable(item):
                if not self.broken:
                    item()
                continue
            frame, fds = item
            try:
                if not self.broken:
                    self.channel.send_frame(frame, fds)
            except LooseLeafError:
                # The stream is shut down now: the reader takes what the peer had sent, sees the end and ends the link.
                self.broken = True
            finally:
                close_fds(fds)

    def _receive_loop(self) -> None:
        try:
            while True:
                self._take(*self.channel.recv())
        except LooseLeafError as error:
            self._end(error)
        except Exception as error:
            # A callback's fault. Without an end whoever waits for a reply would wait for ever.
            self._end(as_fault(error))
        self.channel.close()
        assert self._error is not None
        if self._on_close is not None:
            self._on_close(self._error)

    def _take(self, message: Message, fds: list[int]) -> None:
        if is_reply(message):
            finish = self._pending.pop(message["id"], None)
            if finish is None:
                close_fds(fds)
            else:
                finish((message, fds))
        elif message.get("id", 0):
            if self._on_request is not None:
                self._on_request(message, fds)
            else:
                close_fds(fds)
                self.reply_error(message["id"], unknown_message(message))
        elif self._on_event is not None:
            self._on_event(message, fds)
        else:
            close_fds(fds)

    def _end(self, error: LooseLeafError) -> None:
        if self._error is None:
            self._error = error
        self.channel.shutdown()
        self._outgoing.put(None)
        while self._pending:
            try:
                _, finish = self._pending.popitem()
            except KeyError:
                break
            finish(self._error)


class PendingReply:
    """A request under way."""

    def __init__(self, link: ThreadedLink, type_: str, request_id: int) -> None:
        self.request_id = request_id
        self._link = link
        self._type = type_
        self._answer: _Answer | None = None
        self._came: SimpleQueue[None] = SimpleQueue()
        link._pending[request_id] = self._finish

    def _finish(self, answer: _Answer) -> None:
        # The answer first: a wait that is broken off just when it ends must not lose it.
        self._answer = answer
        self._came.put(None)

    def result(self, timeout_s: float | None = None) -> tuple[Message, list[int]]:
        """The reply's body and fds, which are the caller's.

        Raises the peer's error, Unavailable `PEER_CLOSED`, Timeout `REQUEST_TIMEOUT`; a reply that comes later is
        dropped. A wait that a signal handler breaks off may begin anew; who does not want to calls `drop`.
        """
        if self._answer is None:
            try:
                self._came.get(timeout=timeout_s)
            except Empty:
                self.drop()
                raise request_timeout(self._type, timeout_s) from None
        assert self._answer is not None
        return _open(self._answer)

    def drop(self) -> None:
        """Nobody waits for the reply any more, nor has taken it."""
        if self._link._pending.pop(self.request_id, None) is None and self._answer is not None:
            _drop(self._answer)


def _open(answer: _Answer) -> tuple[Message, list[int]]:
    if isinstance(answer, LooseLeafError):
        raise answer
    return open_reply(*answer)


def _drop(answer: _Answer) -> None:
    if not isinstance(answer, LooseLeafError):
        close_fds(answer[1])


_links: weakref.WeakSet[ThreadedLink] = weakref.WeakSet()


def _forget_links_in_child() -> None:
    for link in list(_links):
        link.forget()


os.register_at_fork(after_in_child=_forget_links_in_child)
