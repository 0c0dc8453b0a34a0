"""Ids of a kernel's or worker's request in the log context of its handler, and so in the calls that it makes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from looseleaf.ids import SessionId
from looseleaf.logs import log_context
from looseleaf.protocol.rpc import Reply

Handler = Callable[[dict[str, Any], list[int]], Awaitable[Reply]]

# Fields of the worker protocol's messages that are ids of the log context.
LOGGED_FIELDS = {"execution_id": "execution", "cell_id": "cell", "worker_id": "worker"}


class Owner(Protocol):
    """Whose connection it is; the session may be given to it later."""

    @property
    def session_id(self) -> SessionId: ...


def with_ids(owner: Owner, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """The handlers, each in a log context of its own."""
    return {name: _with_ids(owner, handler) for name, handler in handlers.items()}


def _with_ids(owner: Owner, handler: Handler) -> Handler:
    async def handle(body: dict[str, Any], fds: list[int]) -> Reply:
        # Not checked here: what is no text is refused by the handler that reads it.
        ids = {key: body[field] for field, key in LOGGED_FIELDS.items() if isinstance(body.get(field), str)}
        with log_context(session=owner.session_id, **ids):
            return await handler(body, fds)

    return handle
