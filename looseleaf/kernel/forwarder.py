"""A worker's output messages, published as this kernel's own under the request that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from looseleaf.errors import InvalidArgument, LooseLeafError

PLAIN_TYPES: Final = frozenset(
    {"stream", "display_data", "update_display_data", "execute_result", "clear_output", "error"}
)
COMM_TYPES: Final = frozenset({"comm_open", "comm_msg", "comm_close"})


class Publisher(Protocol):
    """Sends on iopub under one request."""

    def publish(self, msg_type: str, content: dict[str, Any], metadata: dict[str, Any], buffers: list[bytes]) -> None:
        """Sends one message."""
        ...


class RequestPublisher:
    """A Publisher under the request `parent`, whatever the kernel serves meanwhile.

    `publish_under(parent, msg_type, content, metadata, buffers)` sends; `follow_comm` gets each comm message before.
    """

    def __init__(
        self, parent: Any, publish_under: Callable[..., None], follow_comm: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._parent = parent
        self._publish_under = publish_under
        self._follow_comm = follow_comm

    def publish(self, msg_type: str, content: dict[str, Any], metadata: dict[str, Any], buffers: list[bytes]) -> None:
        """See Publisher."""
        if msg_type in COMM_TYPES:
            self._follow_comm({"type": msg_type, **content})
        self._publish_under(self._parent, msg_type, content, metadata, buffers)


def publish_output(publisher: Publisher, message: Mapping[str, Any]) -> None:
    """Publishes one output message.

    Raises InvalidArgument `OUTPUT_UNKNOWN` for a type that the protocol does not have.
    """
    kind = message.get("type")
    if kind not in PLAIN_TYPES and kind not in COMM_TYPES:
        raise InvalidArgument("OUTPUT_UNKNOWN", f"a worker sent an output of unknown type {kind!r}")
    content = {key: value for key, value in message.items() if key not in ("type", "buffers")}
    # A display's metadata is part of its content, a comm's rides beside it.
    metadata = content.pop("metadata", {}) if kind in COMM_TYPES else {}
    publisher.publish(str(kind), content, metadata, list(message.get("buffers", [])))


def error_output(ename: str, text: str) -> dict[str, Any]:
    """An error message whose traceback is one plain text."""
    return {"type": "error", "ename": ename, "evalue": text, "traceback": [f"{ename}: {text}"]}


def error_reply(output: Mapping[str, Any]) -> dict[str, Any]:
    """The reply of a cell that ended with the error message `output`."""
    return {"status": "error", **{key: output[key] for key in ("ename", "evalue", "traceback")}}


def error_text(error: LooseLeafError) -> str:
    """What a person reads of an error."""
    return error.message or error.reason
