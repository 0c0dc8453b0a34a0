"""Requests and replies: the shapes that every link shares, and `BlockingLink`, which needs no thread.

A request has an `id` > 0 and gets exactly one reply, `ok` or `error`, with the same id; ids count per direction. A
message with id 0 is an event and gets none.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from looseleaf.errors import Internal, InvalidArgument, LooseLeafError, Timeout, from_wire, to_wire
from looseleaf.protocol.channel import Channel
from looseleaf.protocol.frames import Message, close_fds

_log = logging.getLogger(__name__)

OK: Final = "ok"
ERROR: Final = "error"
RESERVED_KEYS: Final = frozenset({"t", "id", "fds"})


@dataclass(frozen=True)
class Reply:
    """What a handler answers. `fds` stay the handler's unless `close_fds`, then they are closed once sent."""

    body: Message
    fds: Sequence[int] = ()
    close_fds: bool = False


class PendingReply(Protocol):
    """A request under way."""

    def result(self, timeout_s: float | None = None) -> tuple[Message, list[int]]:
        """The reply's body and fds, which are the caller's. Raises the peer's error, Unavailable `PEER_CLOSED` or
        Timeout `REQUEST_TIMEOUT`; a reply that comes later is dropped."""


class Link(Protocol):
    """What code that asks its daemon needs; both blocking links have it."""

    def begin(self, type_: str, body: Message, fds: Sequence[int] = ()) -> PendingReply:
        """Sends a request and returns at once; requests are handled in the order they were begun."""

    def request(
        self, type_: str, body: Message, fds: Sequence[int] = (), timeout_s: float | None = None
    ) -> tuple[Message, list[int]]:
        """`begin` and `result` in one."""


def build_message(type_: str, request_id: int, body: Mapping[str, object]) -> Message:
    """A message to send. Its body may not use the protocol's own keys: that is a fault of ours."""
    assert not RESERVED_KEYS & body.keys(), f"{type_} uses a reserved key: {sorted(RESERVED_KEYS & body.keys())}"
    message: Message = {"t": type_, **body}
    if request_id:
        message["id"] = request_id
    return message


def as_fault(error: BaseException) -> LooseLeafError:
    """`error`, or Internal `BUG` for an exception that is no LooseLeafError: a fault of ours, which is logged."""
    if isinstance(error, LooseLeafError):
        return error
    error_id = secrets.token_hex(4)
    _log.error("handler_failed error_id=%s", error_id, exc_info=error)
    text = f"a fault in LooseLeaf ({type(error).__name__}); the log has it as {error_id}"
    return Internal("BUG", text, error_id=error_id)


def build_error(request_id: int, error: BaseException) -> Message:
    """The reply for a request that failed; see `as_fault`."""
    return {"t": ERROR, "id": request_id, "error": to_wire(as_fault(error))}


def unknown_message(message: Message) -> InvalidArgument:
    """The error for a request that this side does not know."""
    return InvalidArgument("UNKNOWN_MESSAGE", f"no request of type {message['t']!r} is known here", type=message["t"])


def is_reply(message: Message) -> bool:
    return message["t"] in (OK, ERROR) and message.get("id", 0) > 0


def open_reply(message: Message, fds: list[int]) -> tuple[Message, list[int]]:
    """Body and fds of an `ok`; raises what an `error` carries, its fds closed."""
    if message["t"] == OK:
        return {key: value for key, value in message.items() if key not in RESERVED_KEYS}, fds
    close_fds(fds)
    wire = message.get("error")
    raise from_wire(wire if isinstance(wire, dict) else {"reason": "BUG", "message": "an error without a description"})


def request_timeout(type_: str, timeout_s: float | None) -> Timeout:
    return Timeout("REQUEST_TIMEOUT", f"no answer to {type_!r} within {timeout_s} s", type=type_)


Handler = Callable[[Message, list[int]], "Reply | Message | None"]
EventCallback = Callable[[Message, list[int]], None]


class BlockingLink:
    """Requests in both directions over one channel, on one thread.

    While `request` waits for its reply, incoming requests go to `handlers` and events to `on_event`. Fds that a handler
    leaves in its list are closed.
    """

    def __init__(
        self, channel: Channel, handlers: Mapping[str, Handler] | None = None, on_event: EventCallback | None = None
    ) -> None:
        self.channel = channel
        self._handlers = dict(handlers or {})
        self._on_event = on_event
        self._ids = itertools.count(1)
        self._awaited: set[int] = set()
        self._replies: dict[int, tuple[Message, list[int]]] = {}

    def begin(self, type_: str, body: Message, fds: Sequence[int] = ()) -> _BlockingReply:
        request_id = next(self._ids)
        self.channel.send(build_message(type_, request_id, body), fds)
        self._awaited.add(request_id)
        return _BlockingReply(self, type_, request_id)

    def request(
        self, type_: str, body: Message, fds: Sequence[int] = (), timeout_s: float | None = None
    ) -> tuple[Message, list[int]]:
        return self.begin(type_, body, fds).result(timeout_s)

    def send_event(self, type_: str, body: Message, fds: Sequence[int] = ()) -> None:
        """Sends a message that gets no reply."""
        self.channel.send(build_message(type_, 0, body), fds)

    def serve_one(self, timeout_s: float | None = None) -> None:
        """Takes one message that comes in. Raises as `Channel.recv`."""
        message, fds = self.channel.recv(timeout_s)
        if is_reply(message):
            if message["id"] in self._awaited:
                self._replies[message["id"]] = (message, fds)
            else:
                close_fds(fds)
        elif message.get("id", 0):
            self._answer(message, fds)
        else:
            try:
                if self._on_event is not None:
                    self._on_event(message, fds)
            finally:
                close_fds(fds)

    def _answer(self, message: Message, fds: list[int]) -> None:
        reply_fds: Sequence[int] = ()
        owned: Sequence[int] = ()
        try:
            handler = self._handlers.get(message["t"])
            if handler is None:
                raise unknown_message(message)
            answer = handler(message, fds)
            reply = answer if isinstance(answer, Reply) else Reply(answer or {})
            reply_fds = reply.fds
            owned = reply.fds if reply.close_fds else ()
            out = build_message(OK, message["id"], reply.body)
        except Exception as error:
            out = build_error(message["id"], error)
            reply_fds = ()
        finally:
            close_fds(fds)
        try:
            self.channel.send(out, reply_fds)
        finally:
            close_fds(owned)

    def _take(self, request_id: int, type_: str, timeout_s: float | None) -> tuple[Message, list[int]]:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while request_id not in self._replies:
                remaining_s = None if deadline_s is None else deadline_s - time.monotonic()
                if remaining_s is not None and remaining_s <= 0:
                    raise request_timeout(type_, timeout_s)
                try:
                    self.serve_one(remaining_s)
                except Timeout:
                    continue
            return open_reply(*self._replies.pop(request_id))
        finally:
            self._awaited.discard(request_id)

    def close(self) -> None:
        """Closes the channel and what nobody took."""
        for _, fds in self._replies.values():
            close_fds(fds)
        self._replies.clear()
        self.channel.close()


class _BlockingReply:
    def __init__(self, link: BlockingLink, type_: str, request_id: int) -> None:
        self._link = link
        self._type = type_
        self._request_id = request_id

    def result(self, timeout_s: float | None = None) -> tuple[Message, list[int]]:
        return self._link._take(self._request_id, self._type, timeout_s)
