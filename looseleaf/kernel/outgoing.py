"""All messages that a kernel sends, seen at the one place that they pass: of cells here and elsewhere, of threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

log = logging.getLogger("looseleaf.kernel")

# (id of the request that the message belongs to, message type, content, which a watcher may add to)
Watch = Callable[[str, str, Any], None]


class _Unwatched(threading.local):
    depth = 0


_unwatched: Final = _Unwatched()


@contextmanager
def unwatched() -> Iterator[None]:
    """Inside, what this thread sends passes no watcher: a line of ours that is to leave nothing behind."""
    _unwatched.depth += 1
    try:
        yield
    finally:
        _unwatched.depth -= 1


def request_of(parent: Any) -> str:
    """The id of the request that `parent`, a message or its header, is; empty if it is none."""
    header = parent.get("header", parent) if isinstance(parent, Mapping) else None
    return str(header.get("msg_id", "")) if isinstance(header, Mapping) else ""


def watch_outgoing(session: Any, *watchers: Watch) -> None:
    """Has each watcher see every message of `session`, the kernel's Jupyter session, before it is sent.

    On the thread that sends. What a watcher raises is logged; the message is sent all the same.
    """
    send = session.send

    def send_watched(stream: Any, msg_or_type: Any, content: Any = None, parent: Any = None, *a: Any, **k: Any) -> Any:
        if isinstance(msg_or_type, Mapping):
            kind, shown, of = msg_or_type.get("msg_type"), msg_or_type.get("content"), msg_or_type.get("parent_header")
        else:
            kind, shown, of = msg_or_type, content, parent
        if isinstance(shown, Mapping) and isinstance(of, Mapping) and not _unwatched.depth:
            for watch in watchers:
                try:
                    watch(request_of(of), str(kind), shown)
                except Exception:
                    # The message is the person's, the fault is ours.
                    log.exception("message_not_watched kind=%s", kind)
        return send(stream, msg_or_type, content, parent, *a, **k)

    session.send = send_watched
