"""The version that a worker will ask for first: asked of the store while its process is forked (design §5)."""

from __future__ import annotations

import asyncio
from contextvars import Context

import structlog

from looseleaf.errors import LooseLeafError
from looseleaf.ids import SessionId, Version
from looseleaf.rpc.store_client import StoreClient
from looseleaf.v1.checkpoint_store_pb2 import GetManifestResponse

log = structlog.get_logger()


class ExpectedVersion:
    """Of one connection. An answer serves once, and only who asks for just that version."""

    def __init__(self, store: StoreClient) -> None:
        self._store = store
        self._asked: tuple[Version, asyncio.Task[GetManifestResponse]] | None = None

    def ask(self, session_id: SessionId, version: Version) -> None:
        """Asks the store. Where it does not answer, the next `take` finds nothing."""
        self.forget()
        # In a context of its own, as all that the worker asks for: the deadline is the store's, not that of the call
        # that wants the worker.
        task = asyncio.create_task(self._store.manifest(session_id, version=version), context=Context())
        # Read here too, for an answer that nobody takes.
        task.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        self._asked = version, task

    async def take(self, version: Version) -> GetManifestResponse | None:
        """The store's answer if it was asked for this version, and has one."""
        asked, self._asked = self._asked, None
        if asked is None:
            return None
        if asked[0] != version:
            asked[1].cancel()
            return None
        try:
            return await asked[1]
        except LooseLeafError as error:
            log.info("expected_version_not_there", version=version, reason=error.reason)
            return None

    def forget(self) -> None:
        """Nobody will take it."""
        if self._asked is not None:
            self._asked[1].cancel()
            self._asked = None
