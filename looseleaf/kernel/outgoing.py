"""All messages that a kernel sends, seen at the one place that they pass: of cells here and elsewhere, of threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger("looseleaf.kernel")

# (id of the request that the message belongs to, message type, content, which a watcher may add to)
Watch = Callable[[str, str, Any], None]


def watch_outgoing(session: Any, *watchers: Watch) -> None:
    """Has each watcher see every message of `session`, the kernel's Jupyter session, before it is sent.

    On the thread that sends. What a watcher raises is logged; the message is sent all the same.
    """
    send = session.send

    def send_watched(stream: Any, msg_or_type: Any, content: Any = None, parent: Any = None, *a: Any, **k: Any) -> Any:
        if isinstance(msg_or_type, Mapping):
            kind, shown, of = msg_or_type.get("msg_type"), msg_or_type.get("content"), msg_or_type.get("parent_header")
        else:
            kind, shown, of = msg_or_type, content, (parent or {}).get("header", parent)
        if isinstance(shown, Mapping) and isinstance(of, Mapping):
            for watch in watchers:
                try:
                    watch(str(of.get("msg_id", "")), str(kind), shown)
                except Exception:
                    # The message is the person's, the fault is ours.
                    log.exception("message_not_watched kind=%s", kind)
        return send(stream, msg_or_type, content, parent, *a, **k)

    session.send = send_watched
