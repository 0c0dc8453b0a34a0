"""Requests and replies: the shapes that both links share.

A request has an `id` > 0 and gets exactly one reply, `ok` or `error`, with the same id; ids count per direction. A
message with id 0 is an event and gets none.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from looseleaf.errors import Internal, InvalidArgument, LooseLeafError, Timeout, from_wire, to_wire
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
