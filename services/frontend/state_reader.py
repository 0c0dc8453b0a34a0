"""The session's newest state as facts, read from the checkpoint store; nothing is unpickled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from looseleaf.checkpoint.manifest import decode_manifest
from looseleaf.errors import PreconditionFailed, Timeout
from looseleaf.ids import SessionId
from looseleaf.recipe import facts_from_manifest
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.frontend.core.facts_cache import FactsCache, StateFacts

RunBlocking = Callable[..., Awaitable[Any]]


class StateReader:
    """Asks the store each time whether a newer version exists; its bytes move only then."""

    def __init__(self, store: StoreClient, cache: FactsCache, run_blocking: RunBlocking, timeout_s: float) -> None:
        self._store = store
        self._cache = cache
        self._run_blocking = run_blocking
        self._timeout_s = timeout_s

    async def newest(self, session_id: SessionId, *, at_least: int = 0) -> StateFacts:
        """Facts of the session's head.

        Raises NotFound `SESSION_UNKNOWN`, Unavailable `STORE_DOWN`, Timeout `STORE_TIMEOUT`, and PreconditionFailed
        `VERSION_LOST` if the head is older than `at_least`: the caller's state is not what the store has.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                facts = await self._read(session_id)
        except TimeoutError as error:
            text = f"The checkpoint store did not answer within {self._timeout_s:g} s. Saved state is safe; ask again."
            raise Timeout("STORE_TIMEOUT", text) from error
        if facts.version < at_least:
            raise PreconditionFailed(
                "VERSION_LOST",
                f"The store has version {facts.version}, the kernel knows {at_least}: fetch the head and ask again.",
                version=facts.version,
            )
        return facts

    async def _read(self, session_id: SessionId) -> StateFacts:
        known = self._cache.get(session_id)
        answer = await self._store.manifest(session_id, known_version=known.version if known is not None else 0)
        if known is not None and not answer.manifest and answer.version == known.version:
            if answer.head.epoch == known.epoch:
                return known
            # The same number in another epoch may be another state.
            answer = await self._store.manifest(session_id)
        if not answer.manifest:
            facts = StateFacts(epoch=answer.head.epoch, version=answer.version)
        else:
            names = await self._run_blocking(_decoded, answer.manifest)
            facts = StateFacts(epoch=answer.head.epoch, version=answer.version, names=names)
        self._cache.put(session_id, facts)
        return facts


def _decoded(manifest: bytes) -> Any:
    return facts_from_manifest(decode_manifest(manifest))
