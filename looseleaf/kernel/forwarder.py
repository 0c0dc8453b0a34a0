"""A worker's output messages, published as this kernel's own under the request that they belong to."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from looseleaf.error_pages import page_of
from looseleaf.errors import InvalidArgument, LooseLeafError
from looseleaf.kernel.passing_line import PassingLine, ShownOutputs

PLAIN_TYPES: Final = frozenset(
    {"stream", "display_data", "update_display_data", "execute_result", "clear_output", "error"}
)
COMM_TYPES: Final = frozenset({"comm_open", "comm_msg", "comm_close"})
# A request's parent header has some hundred bytes.
ORIGINS_MAX: Final = 1024


class Publisher(Protocol):
    """Sends on iopub under one request."""

    def publish(self, msg_type: str, content: dict[str, Any], metadata: dict[str, Any], buffers: list[bytes]) -> None:
        """Sends one message."""
        ...


class RequestPublisher:
    """A Publisher under the request `parent`, whatever the kernel serves meanwhile.

    `publishers`: those of all requests; they also send.
    """

    def __init__(self, parent: Any, publishers: Publishers) -> None:
        self._parent = parent
        self._publishers = publishers
        # Stands where the first output will be.
        self.line = PassingLine(
            parent, publishers.shown, lambda kind, content: publishers.publish_under(parent, kind, content, {}, [])
        )

    def publish(self, msg_type: str, content: dict[str, Any], metadata: dict[str, Any], buffers: list[bytes]) -> None:
        """See Publisher."""
        self.line.end()
        if msg_type in COMM_TYPES:
            self._publishers.follow_comm({"type": msg_type, **content, "buffers": buffers}, self)
        self._publishers.publish_under(self._parent, msg_type, content, metadata, buffers)

    def known_as(self, origin: str) -> None:
        """Outputs with this origin are of this request."""
        self._publishers.add(origin, self)

    def of(self, origin: Any) -> RequestPublisher:
        """The publisher of the request that a worker calls `origin`; this one if it names none or one too old."""
        return self._publishers.get(origin) or self


class Publishers:
    """Publishers of requests by the ids that workers know them by, the newest `ORIGINS_MAX`. Thread-safe.

    `publish_under(parent, msg_type, content, metadata, buffers)` sends. `follow_comm(message, publisher)` hears of each
    comm message before it is sent. `newest()` is the kernel's newest request. `shown` is to watch all that the kernel
    sends.
    """

    def __init__(
        self,
        publish_under: Callable[..., None],
        follow_comm: Callable[[Mapping[str, Any], RequestPublisher], None],
        newest: Callable[[], Any],
        shown: ShownOutputs | None = None,
    ) -> None:
        self.publish_under = publish_under
        self.follow_comm = follow_comm
        self.shown = shown or ShownOutputs()
        self._newest = newest
        self._by_origin: OrderedDict[str, RequestPublisher] = OrderedDict()
        self._lock = threading.RLock()

    def request(self, parent: Any) -> RequestPublisher:
        """A publisher under the request `parent`."""
        return RequestPublisher(parent, self)

    def add(self, origin: str, publisher: RequestPublisher) -> None:
        """See RequestPublisher.known_as."""
        with self._lock:
            self._by_origin[origin] = publisher
            if len(self._by_origin) > ORIGINS_MAX:
                self._by_origin.popitem(last=False)

    def get(self, origin: Any) -> RequestPublisher | None:
        """The publisher that is known as `origin`."""
        return self._by_origin.get(origin) if isinstance(origin, str) else None

    def late(self, origin: Any) -> RequestPublisher:
        """For output when no cell runs: its own request's, or as of any thread, the newest one's (ipykernel 7.4)."""
        return self.get(origin) or self.request(self._newest())


def publish_output(publisher: Publisher, message: Mapping[str, Any]) -> None:
    """Publishes one output message.

    Raises InvalidArgument `OUTPUT_UNKNOWN` for a type that the protocol does not have.
    """
    kind = message.get("type")
    if kind not in PLAIN_TYPES and kind not in COMM_TYPES:
        raise InvalidArgument("OUTPUT_UNKNOWN", f"a worker sent an output of unknown type {kind!r}")
    content = {key: value for key, value in message.items() if key not in ("type", "buffers", "origin")}
    # A display's metadata is part of its content, a comm's rides beside it.
    metadata = content.pop("metadata", {}) if kind in COMM_TYPES else {}
    publisher.publish(str(kind), content, metadata, list(message.get("buffers", [])))


def error_output(ename: str, text: str) -> dict[str, Any]:
    """An error message whose traceback is one plain text, and for a reason of ours where there is more about it."""
    page = page_of(ename)
    lines = [f"{ename}: {text}", *([f"See {page}"] if page else [])]
    return {"type": "error", "ename": ename, "evalue": text, "traceback": lines}


def error_reply(output: Mapping[str, Any]) -> dict[str, Any]:
    """The reply of a cell that ended with the error message `output`."""
    return {"status": "error", **{key: output[key] for key in ("ename", "evalue", "traceback")}}


def error_text(error: LooseLeafError) -> str:
    """What a person reads of an error."""
    return error.message or error.reason
