from __future__ import annotations

from typing import Any

import pytest
import structlog

from looseleaf.errors import NotFound
from looseleaf.ids import SessionId
from looseleaf.protocol.rpc import Reply
from looseleaf.services.worker_daemon.log_ids import with_ids
from looseleaf.services.worker_daemon.state_requests import StateOwner


async def test_handler_has_its_connections_session_and_its_messages_ids() -> None:
    owner = StateOwner()
    seen: list[dict[str, Any]] = []

    async def handle(body: dict[str, Any], _fds: list[int]) -> Reply:
        seen.append(structlog.contextvars.get_contextvars())
        if body:
            raise NotFound("SESSION_UNKNOWN")
        return Reply({})

    handlers = with_ids(owner, {"submit": handle})
    await handlers["submit"]({}, [])
    owner.session_id = SessionId("s-1")
    with pytest.raises(NotFound):
        await handlers["submit"]({"execution_id": "x-1", "cell_id": 7, "worker_id": "", "source": "secret = 1"}, [])
    assert seen == [{}, {"session": "s-1", "execution": "x-1"}]
    assert structlog.contextvars.get_contextvars() == {}
